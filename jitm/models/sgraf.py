"""SGRAF: similarity graph reasoning (SGR) and attention filtration (SAF) (Diao et al., 2021), the network of DBL."""

import einops
import jax
import jax.numpy as jnp
from chex import Array
from flax import linen as nn

from jitm.errors import ArgumentError, check_choice
from jitm.layers import attention
from jitm.layers.alignment import Alignments
from jitm.layers.lengths import by_length, longest_first
from jitm.layers.linear import XavierLinear
from jitm.models.tiled import CrossAttentionMatcher
from jitm.types import Count, Elements, Images, InverseTemperature, Texts

ACTIVATIONS = {'sigmoid': nn.sigmoid, 'tanh': nn.tanh}


class SGRAF(CrossAttentionMatcher):
    """Compares each word with the regions it attends to and computes the score from these alignments.

    The published SGRAF averages the scores of two models: SGR has `alignment.GraphReasoning`, and SAF has
    `alignment.AttentionFiltration`. The network of DBL (Diao et al., 2024) has `alignment.Mean`.

    Attributes:
      embed_dim, image, text: See `CrossAttentionMatcher`.
      alignment_dim: The size M of an alignment, 256 as published.
      image_whole: A module that maps regions to a global vector of the image, such as `SelfAttention`; None for no
        global alignment.
      text_whole: A module that maps words to a global vector of the text; None exactly if `image_whole` is.
      reasoning: A module that maps the alignments of a pair, global and of its words, to one vector, such as
        `alignment.Mean`. If its `over_images` is True, a text's vectors in training depend on all images of the batch,
        and it has `moments` and `update`, see `alignment.AttentionFiltration`.
      lambda_softmax: The attention's inverse temperature.
      activation: The function of the score, 'sigmoid' or 'tanh' (DBL).
    """

    alignment_dim: Count
    image_whole: nn.Module | None
    text_whole: nn.Module | None
    reasoning: nn.Module
    lambda_softmax: InverseTemperature
    activation: str

    encoders = 'image', 'text', 'image_whole', 'text_whole'

    @property
    def trains_on_batches(self) -> bool:
        """Whether `reasoning` normalizes each text over all images of the batch."""
        return self.reasoning.over_images

    def setup(self):
        """Checks the options and creates the layers of the similarity."""
        check_choice(self.activation, ACTIVATIONS, 'activation')
        if (self.image_whole is None) != (self.text_whole is None):
            raise ArgumentError('image_whole', 'and text_whole must both be given, or neither')
        self.local = Alignments(self.alignment_dim)
        if self.image_whole is not None:
            self.whole = Alignments(self.alignment_dim)
        self.score = XavierLinear(1)

    def encode_image(self, images: Images, train: bool = False) -> Elements:
        """Encodes [I, R, F] regions as unit vectors [I, R, D] and the image as one vector [I, D]."""
        return self._with_whole(super().encode_image(images, train), self.image_whole, train)

    def encode_text(self, texts: Texts, train: bool = False) -> Elements:
        """Encodes [T, L] words as unit vectors [T, L, D] and the text as one vector [T, D]."""
        return self._with_whole(super().encode_text(texts, train), self.text_whole, train)

    def _with_whole(self, elements: Elements, pooling: nn.Module | None, train: bool) -> Elements:
        if pooling is None:
            return elements
        return elements.replace(whole=pooling(elements.vectors, elements.mask, train))

    def alignments(self, images: Elements, texts: Elements) -> Array:
        """Compares every image with every text: alignments [I, T, N, M], the global one first if the model has it.

        Attended vectors have unit length, as in the released code; SGRAF's paper does not normalize them.
        """
        weights = self.weights(attention.similarities(images, texts), images, texts)
        weights = weights / attention.attended_norm(weights, attention.gram(images))[:, None]
        attended = attention.attended(weights, images.vectors)
        nodes = self.local(attended, texts.vectors)
        if self.image_whole is None:
            return nodes
        global_node = self.whole(images.whole[:, None], texts.whole)
        return jnp.concatenate([einops.rearrange(global_node, 'i t m -> i t 1 m'), nodes], axis=2)

    def reason(self, nodes: Array, mask: Array, train: bool) -> Array:
        """Computes scores [I, T] from alignments [I, T, N, M] with a mask [T, N] of the valid ones."""
        return ACTIVATIONS[self.activation](self.score(self.reasoning(nodes, mask, train))[..., 0])

    def node_mask(self, texts: Elements) -> Array:
        """Returns the mask [T, N] of the valid alignments of each text, the global one first if the model has it."""
        num_global = 0 if self.image_whole is None else 1
        return jnp.pad(texts.mask, [(0, 0), (num_global, 0)], constant_values=True)

    def score_block(self, images: Elements, texts: Elements) -> Array:
        """Scores every image of a block with every text of it: [I, T]."""
        return self.reason(self.alignments(images, texts), self.node_mask(texts), train=False)

    def score_over_images(self, images: Elements, texts: Elements) -> tuple[Array, ...]:
        """Scores all images with a few texts in training: [I, T], and the moments of each text's alignments, [1, T]."""
        nodes = self.in_tiles('alignments', images, texts)
        mask = self.node_mask(texts)
        moments = jax.lax.stop_gradient(self.reasoning.moments(nodes, mask))
        return self.reason(nodes, mask, train=True), *(moment[None] for moment in moments)

    def floats_per_pair(self, images: Elements, texts: Elements) -> int:
        """Returns the size of the attended vectors of all words."""
        return texts.mask.shape[1] * self.embed_dim

    def similarity(self, images: Elements, texts: Elements, train: bool = False) -> Array:
        """Scores every image with every text: [I, T]."""
        if not (train and self.trains_on_batches):
            return super().similarity(images, texts, train)
        images, texts = self.prepare(images, texts)
        scores, *moments = by_length(
            lambda part: self.in_tiles('score_over_images', images, part, all_images=True), texts, axis=1
        )
        if not self.is_initializing():
            order = longest_first(texts)
            self.reasoning.update(*(jax.lax.stop_gradient(moment[0, order]) for moment in moments))
        return scores
