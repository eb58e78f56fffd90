"""Models that score a tile of images and texts at a time, among them those with cross-attention."""

import functools

import jax
from chex import Array, ArrayTree
from flax import linen as nn

from jitm.errors import UserError
from jitm.layers import attention
from jitm.layers.lengths import by_length
from jitm.models import tiling
from jitm.models.matcher import Encoding, Matcher, as_function, check_width
from jitm.types import Count, Elements, Images, TextFormat, Texts

DIRECTIONS = {'both': ('t2i', 'i2t'), 't2i': ('t2i',), 'i2t': ('i2t',)}  # option -> `CrossAttentionMatcher.directions`


class TiledMatcher(Matcher):
    """Scores a tile of images and texts at a time, which bounds the memory.

    A model adds `score_block` and `floats_per_pair`.

    Attributes:
      encoders: Names of the submodules that only `encode_image` and `encode_text` use. Their parameters stay out of
        the tiles, where their gradients would be materialized as zeros.
    """

    encoders = 'image', 'text'

    @property
    def trains_on_batches(self) -> bool:
        """Whether the score of a pair in training depends on the whole batch."""
        return False

    def score_block(self, images: Encoding, texts: Encoding) -> Array:
        """Scores every image of one tile with every text of it: float32 [I, T]."""
        raise NotImplementedError

    def similarity(self, images: Encoding, texts: Encoding, train: bool = False) -> Array:
        """Scores every image with every text: float32 [I, T]."""
        return self.score_in_tiles('score_block', *self.prepare(images, texts))

    def similarity_pairwise(self, images: Encoding, texts: Encoding, train: bool = False) -> Array:
        """Scores image n with text n: float32 [N].

        Raises:
          UserError: In training, if a score depends on the whole batch.
        """
        if train and self.trains_on_batches:
            raise UserError(
                f'{type(self).__name__} scores a whole batch in training and no single pairs, so losses on mined pairs '
                'do not apply: use another model, or other terms'
            )
        block, variables = self.as_block('score_block', images, texts)
        size = tiling.pairs_at_once(self.floats_per_pair(images, texts) + tiling.floats_of_pair(images, texts))
        return tiling.map_tiles(lambda pairs: tiling.over_pairs(block)(variables, *pairs), (images, texts), size)

    def as_block(self, method: str, images: Encoding, texts: Encoding) -> tuple[tiling.Block, ArrayTree]:
        """Returns a method as `as_function` does, without the parameters of the encoders."""
        block, variables = as_function(self, method, images, texts)
        params = {name: part for name, part in variables.get('params', {}).items() if name not in self.encoders}
        return block, {**variables, 'params': params}

    def prepare(self, images: Encoding, texts: Encoding) -> tuple[Encoding, Encoding]:
        """Adds to encodings the values per image or text that `score_block` uses for all of its pairs."""
        return images, texts

    def score_in_tiles(
        self, method: str, images: Encoding, texts: Encoding, precomputed: tiling.Block | None = None
    ) -> Array:
        """Scores every image with every text, with a gradient that is sparse, see `tiling.with_sparse_gradient`.

        Args:
          method: `score_block`, or another method whose pairs do not depend on each other.
          images, texts: Encodings that are prepared.
          precomputed: A function that returns scores computed before, so that only the gradient is computed; None
            computes them.

        Returns:
          float32 [I, T].
        """
        block, variables = self.as_block(method, images, texts)
        scores = tiling.with_sparse_gradient(
            self.tiles(block, images, texts),
            tiling.over_pairs(block),
            *tiling.sparse_plan(self.floats_per_pair(images, texts), images, texts),
            precomputed,
        )
        return scores(variables, images, texts)

    def in_tiles(self, method: str, images: Encoding, texts: Encoding, all_images: bool = False) -> ArrayTree:
        """Applies a method such as `score_block` to every image with every text: leaves [I, T, ...]; see `tiles`."""
        block, variables = self.as_block(method, images, texts)
        return self.tiles(block, images, texts, all_images)(variables, images, texts)

    def tiles(self, block: tiling.Block, images: Encoding, texts: Encoding, all_images: bool = False) -> tiling.Block:
        """Returns a function of all images and texts that applies a function tile by tile.

        Args:
          block: A function of the images and texts of a tile.
          images, texts: Leaves [I, ...] and [T, ...], whose shapes decide the size of a tile.
          all_images: Passes all images at once, with few texts.
        """
        image_tile, text_tile = tiling.tile_edges(self.floats_per_pair(images, texts))
        if all_images:
            image_tile = len(jax.tree.leaves(images)[0])
        return functools.partial(tiling.map_pairs, block, image_tile=image_tile, text_tile=text_tile)


class CrossAttentionMatcher(TiledMatcher):
    """Compares regions and words, encoded as unit vectors; a model adds `score_block`.

    Attributes:
      directions: 't2i' if words attend to regions, 'i2t' if regions attend to words, or both.
      reads_gram: Whether scores depend on the Gram matrix of the side that is attended to.
      embed_dim: The size D of the vectors.
      image: A module that encodes images as [I, R, D] and a mask bool [I, R] of the valid regions.
      text: A module that encodes texts as [T, L, D].
    """

    directions = ('t2i',)
    reads_gram = True

    embed_dim: Count
    image: nn.Module
    text: nn.Module

    @property
    def text_format(self) -> TextFormat:
        """The text format of the text encoder; comparisons skip padding."""
        return super().text_format._replace(skips_padding=True)

    def encode_image(self, images: Images, train: bool = False) -> Elements:
        """Encodes [I, R, F] regions as unit vectors [I, R, D]."""
        regions, mask = self.image(images, train)
        check_width(self, 'image', regions)
        return attention.unit_elements(regions, mask)

    def encode_text(self, texts: Texts, train: bool = False) -> Elements:
        """Encodes [T, L] words as unit vectors [T, L, D]."""
        words = self.text(texts, train)
        check_width(self, 'text', words)
        return attention.unit_elements(words, texts.mask)

    def floats_per_pair(self, images: Elements, texts: Elements) -> int:
        """Returns the number of similarities between regions and words."""
        return images.mask.shape[1] * texts.mask.shape[1]

    def prepare(self, images: Elements, texts: Elements) -> tuple[Elements, Elements]:
        """Adds the Gram matrix of each side that is attended to."""
        if self.reads_gram and 't2i' in self.directions:
            images = images.replace(gram=attention.gram(images))
        if self.reads_gram and 'i2t' in self.directions:
            texts = texts.replace(gram=attention.gram(texts))
        return images, texts

    def sides(self, images: Elements, texts: Elements) -> dict[str, tuple[Elements, Elements]]:
        """Returns the context and the queries of each of the model's directions."""
        sides = {'t2i': (images, texts), 'i2t': (texts, images)}
        return {direction: sides[direction] for direction in self.directions}

    def similarity(self, images: Elements, texts: Elements, train: bool = False) -> Array:
        """Scores every image with every text: [I, T]."""
        images, texts = self.prepare(images, texts)
        return by_length(lambda part: self.score_in_tiles('score_block', images, part), texts, axis=1)

    def attention_block(self, images: Elements, texts: Elements) -> dict[str, Array]:
        """Returns the attention between the words and the regions of every pair of a small block.

        Returns:
          float32 [I, T, L, R] by name, see `attention.word_by_region`: 't2i' is the attention of each word to the
          regions, 'i2t' the attention of each region to the words. A model has only its `directions`.
        """
        result = {}
        for direction, (context, queries) in self.sides(images, texts).items():
            weights = self.weights(attention.similarities(context, queries), context, queries)
            result[direction] = attention.word_by_region(weights, queries, direction)
        return result

    def weights(self, scores: Array, context: Elements, queries: Elements) -> Array:
        """Returns the unnormalized attention weights of each query element over the context: [C, K, Q, M].

        The default is SCAN's attention, which reads the attribute `lambda_softmax` of a subclass.

        Args:
          scores: The `attention.similarities` of both sides.
          context, queries: The encodings of both sides.
        """
        scores = attention.normalize_over_queries(scores, queries.mask)
        return attention.attend(scores, context.mask, self.lambda_softmax)

    def attention_pairwise(self, images: Elements, texts: Elements) -> dict[str, Array]:
        """Returns the attention between image n and text n: name -> float32 [N, L, R]; see `attention_block`."""
        block, variables = self.as_block('attention_block', images, texts)
        return tiling.over_pairs(block)(variables, images, texts)
