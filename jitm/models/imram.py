"""Iterative matching with recurrent attention memory (IMRAM; Chen et al., 2020c)."""

from collections.abc import Iterator

import jax.numpy as jnp
from chex import Array
from flax import linen as nn

from jitm.errors import check_choice
from jitm.layers import attention
from jitm.layers.linear import Linear, product
from jitm.models.tiled import DIRECTIONS, CrossAttentionMatcher
from jitm.types import Count, Elements, InverseTemperature


class Memory(nn.Module):
    """Updates queries q by the vectors c that they attend to, the memory distillation unit of IMRAM.

    It returns g q + (1 - g) o with the gate g = sigmoid([q; c] W_g + b_g) and o = tanh([q; c] W_o + b_o). Here c is a
    weighted mean of context elements v, so that the maps of c are weighted means of the maps of v. The latter are
    computed once for all pairs, and c is not computed.

    Attributes:
      features: The size D of the vectors.
    """

    features: Count

    def setup(self):
        """Creates W_g, b_g, W_o and b_o, initialized as in `torch.nn.Linear`."""
        self.gate = Linear(self.features)
        self.linear = Linear(self.features)

    def _kernels(self) -> tuple[Array, Array, Array]:
        """Returns the kernels of the queries and of the context, each [D, 2 D], and the bias [2 D]."""
        parameters = [layer.parameters(2 * self.features) for layer in (self.gate, self.linear)]
        kernel, bias = (jnp.concatenate(parts, axis=-1) for parts in zip(*parameters, strict=True))
        return *jnp.split(kernel, 2), bias

    def map_context(self, vectors: Array) -> Array:
        """Maps context elements [C, K, D] to their part of the arguments of sigmoid and tanh: [C, K, 2 D]."""
        return product('ckd,de->cke', vectors, self._kernels()[1].astype(vectors.dtype)).astype(vectors.dtype)

    def __call__(self, queries: Array, weights: Array, mapped: Array) -> Array:
        """Updates queries.

        Args:
          queries: [Q, M, D] in the first step, later [C, Q, M, D].
          weights: The attention to the context, [C, K, Q, M], which sums to 1 over K.
          mapped: The result of `map_context`.

        Returns:
          float32 [C, Q, M, D].
        """
        kernel, _, bias = self._kernels()
        arguments = product('...d,de->...e', queries, kernel.astype(mapped.dtype)) + bias
        gate, output = jnp.split(arguments + product('ckqm,cke->cqme', weights, mapped), 2, axis=-1)
        gate = nn.sigmoid(gate)
        return gate * queries + (1 - gate) * nn.tanh(output)


class IMRAM(CrossAttentionMatcher):
    """Attends as SCAN in several steps, between which a memory updates the queries.

    The score is the sum over steps of the mean cosine of the first queries, words or regions, with the attended vectors
    of the step. With one step it is SCAN's with the aggregation 'Mean'.

    Attributes:
      embed_dim, image, text: See `CrossAttentionMatcher`.
      direction: 't2i', words attend to regions (Text-IMRAM); 'i2t', regions attend to words (Image-IMRAM); or 'both',
        the sum of both scores (Full-IMRAM), where each direction has its own memory.
      steps: The number of steps, 3 as published.
      lambda_softmax: The attention's inverse temperature.
    """

    direction: str
    steps: Count
    lambda_softmax: InverseTemperature

    @property
    def directions(self) -> tuple[str, ...]:
        """The direction, or both."""
        return DIRECTIONS[self.direction]

    def setup(self):
        """Checks the options and creates the memories."""
        check_choice(self.direction, DIRECTIONS, 'direction')
        if self.steps > 1:
            self.memory = {direction: Memory(self.embed_dim) for direction in self.directions}

    def prepare(self, images: Elements, texts: Elements) -> tuple[Elements, Elements]:
        """Adds the Gram matrix and the maps of the side, or both sides, that are attended to."""
        if 't2i' in self.directions:
            images = self._as_context('t2i', images)
        if 'i2t' in self.directions:
            texts = self._as_context('i2t', texts)
        return images, texts

    def _as_context(self, direction: str, elements: Elements) -> Elements:
        if elements.gram is not None:  # they are prepared
            return elements
        mapped = self.memory[direction].map_context(elements.vectors) if self.steps > 1 else None
        return elements.replace(gram=attention.gram(elements), mapped=mapped)

    def _attend(self, direction: str, scores: Array, context: Elements, queries: Elements) -> Iterator[Array]:
        """Yields the unnormalized attention of each step, [C, K, Q, M], from the similarities of the first queries."""
        current = queries.vectors
        for step in range(1, self.steps + 1):
            weights = self.weights(scores, context, queries)
            yield weights
            if step < self.steps:
                current = self.memory[direction](current, attention.normalize(weights), context.mapped)
                scores = product('cqmd,ckd->ckqm', current, context.vectors)

    def score_block(self, images: Elements, texts: Elements) -> Array:
        """Scores every image of a block with every text of it: [I, T]."""
        total = 0
        for direction, (context, queries) in self.sides(*self.prepare(images, texts)).items():
            scores = attention.similarities(context, queries)
            gram = attention.gram(context)
            for weights in self._attend(direction, scores, context, queries):
                relevance = attention.attended_cosine(scores, weights, gram)
                score = jnp.mean(relevance, axis=-1, where=queries.mask)
                total += score if direction == 't2i' else score.T
        return total

    def attention_block(self, images: Elements, texts: Elements) -> dict[str, Array]:
        """Returns the attention in the model's directions, the mean over the steps: name -> [I, T, L, R]."""
        result = {}
        for direction, (context, queries) in self.sides(*self.prepare(images, texts)).items():
            scores = attention.similarities(context, queries)
            total = sum(map(attention.normalize, self._attend(direction, scores, context, queries)))
            result[direction] = attention.word_by_region(total, queries, direction)
        return result

    def floats_per_pair(self, images: Elements, texts: Elements) -> int:
        """Returns the size of the arguments of the gates of all queries; with one step SCAN's size."""
        if self.steps == 1:
            return super().floats_per_pair(images, texts)
        return max(queries.mask.shape[1] for _, queries in self.sides(images, texts).values()) * 2 * self.embed_dim
