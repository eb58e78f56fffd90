"""What every model is, and how a block of pairs becomes a similarity matrix."""

from collections.abc import Callable

import chex
import einops
import jax
import numpy as np
from flax import linen as nn

from jitm import parallel
from jitm.errors import UserError
from jitm.layers.attention import PRODUCT
from jitm.types import Images, TextFormat, Texts, TokenPredictions

Encoding = chex.ArrayTree


class Matcher(nn.Module):
    """Scores images against texts. Each model is one final subclass.

    Encodings are pytrees whose every leaf has the image (or the text) on axis 0, so that caching, chunking, gathering
    candidates and sharding are the same tree indexing for all models.
    """

    @property
    def text_format(self) -> TextFormat:
        """What texts it reads: those that its `text` does, if a model has no `text_format` of its own."""
        return self.text.text_format

    def encode_image(self, images: Images, train: bool = False) -> Encoding:
        """Encodes I images; every leaf of the result is [I, ...].

        In training there may be more leaves than `similarity` needs, for `predict_tokens`.
        """
        raise NotImplementedError

    def encode_text(self, texts: Texts, train: bool = False) -> Encoding:
        """Encodes T texts; every leaf of the result is [T, ...]."""
        raise NotImplementedError

    def score_block(self, images: Encoding, texts: Encoding) -> chex.Array:
        """Scores every image of a small block with every text of it, at once: float32 [I, T].

        What `similarity` and `similarity_pairwise` are made of, unless a model has its own.
        """
        raise NotImplementedError

    def floats_per_pair(self, images: Encoding, texts: Encoding) -> int:
        """How many floats the largest array within `score_block` holds for one pair; decides how large blocks are."""
        raise NotImplementedError

    def similarity(self, images: Encoding, texts: Encoding, train: bool = False) -> chex.Array:
        """Scores every image with every text: float32 [I, T]."""
        edge = tile_edge(self.floats_per_pair(images, texts))
        return score_in_tiles(self, type(self).score_block, images, texts, edge, edge)

    def similarity_pairwise(self, images: Encoding, texts: Encoding, train: bool = False) -> chex.Array:
        """Scores image n with text n: float32 [N]."""
        pairs = over_pairs(type(self).score_block)
        return in_tiles(self, pairs, (images, texts), tile_edge(self.floats_per_pair(images, texts)) ** 2)

    def attention_block(self, images: Encoding, texts: Encoding) -> dict[str, chex.Array]:
        """How words and regions of every image and every text of a small block attend to each other.

        Returns:
          Name -> float32 [I, T, L, R], see `attention.word_by_region`: 't2i', each word's attention to the regions, and
          'i2t', each region's to the words; those a model has.

        Raises:
          UserError: if the model has none.
        """
        raise UserError(f'{type(self).__name__} compares whole vectors, without attention of words over regions')

    def attention_pairwise(self, images: Encoding, texts: Encoding) -> dict[str, chex.Array]:
        """The attention between image n and text n: name -> float32 [N, L, R]; see `attention_block`."""
        return over_pairs(type(self).attention_block)(self, (images, texts))

    def predict_tokens(self, images: Encoding, texts: Texts, train: bool = False) -> dict[str, TokenPredictions]:
        """Predicts words of matching pairs, for the token terms of the objective.

        Args:
          images: N images as `encode_image` encodes them in training.
          texts: N texts; text n describes image n.
          train: drops out.

        Returns:
          The name of a loss in `jitm.losses.tokens` -> what it takes.
        """
        return {}

    def __call__(self, images: Images, texts: Texts, train: bool = False) -> chex.Array:
        """Encodes and scores every image with every text: float32 [I, T].

        At initialisation, which takes matching pairs, it touches every parameter.
        """
        if self.is_initializing():
            self.predict_tokens(self.encode_image(images, train=True), texts)
        return self.similarity(self.encode_image(images, train), self.encode_text(texts, train), train)


def over_pairs(block: Callable[[nn.Module, Encoding, Encoding], chex.ArrayTree]) -> Callable:
    """Lifts `(module, images, texts) -> leaves [I, T, ...]` to N pairs: `(module, (images, texts)) -> [N, ...]`."""

    def pair(module: nn.Module, pair: tuple[Encoding, Encoding]) -> chex.ArrayTree:
        result = block(module, *jax.tree.map(lambda x: x[None], pair))
        return jax.tree.map(lambda x: x[0, 0], result)

    return nn.vmap(pair, variable_axes={'params': None, 'batch_stats': None}, split_rngs={'params': False})


def tile_edge(floats_per_pair: int) -> int:
    """How many images and how many texts are scored at once, a power of two."""
    return 2 ** int(np.log2(max(1, parallel.tile_floats() / floats_per_pair)) / 2)


def in_tiles(
    module: nn.Module, function: Callable[[nn.Module, Encoding], chex.ArrayTree], items: Encoding, size: int
) -> chex.ArrayTree:
    """Applies a function to so many items at a time, and puts the results together.

    For the gradient, what is not named `PRODUCT` is computed again.

    Args:
      module: whose parameters and statistics the function reads.
      function: `(module, tile) -> results`, leaves [size, ...] to leaves [size, ...].
      items: leaves [N, ...].
      size: of a tile; the last one is filled up with the first items.

    Returns:
      Leaves [N, ...].
    """
    count = len(jax.tree.leaves(items)[0])
    size = min(size, count)
    if count % size:
        index = np.arange(-(-count // size) * size) % count
        items = jax.tree.map(lambda x: x[index], items)
    tiles = jax.tree.map(lambda x: einops.rearrange(x, '(n s) ... -> n s ...', s=size), items)
    policy = jax.checkpoint_policies.save_only_these_names(PRODUCT)
    scan = nn.scan(
        nn.remat(lambda module, carry, tile: (carry, function(module, tile)), policy=policy),
        variable_broadcast=('params', 'batch_stats'),
        split_rngs={'params': False},
    )
    _, results = scan(module, (), tiles)
    return jax.tree.map(lambda x: einops.rearrange(x, 'n s ... -> (n s) ...')[:count], results)


def score_in_tiles(
    module: nn.Module,
    block: Callable[[nn.Module, Encoding, Encoding], chex.Array],
    images: Encoding,
    texts: Encoding,
    image_tile: int,
    text_tile: int,
) -> chex.Array:
    """Scores every image with every text, few images and few texts at a time.

    Args:
      module: whose parameters the block reads.
      block: `(module, images [i, ...], texts [t, ...]) -> scores [i, t, ...]`.
      images: leaves [I, ...].
      texts: leaves [T, ...].
      image_tile: i.
      text_tile: t.

    Returns:
      Scores [I, T, ...].
    """

    def rows(module: nn.Module, images: Encoding) -> chex.Array:
        columns = in_tiles(module, lambda module, texts: block(module, images, texts).swapaxes(0, 1), texts, text_tile)
        return columns.swapaxes(0, 1)

    return in_tiles(module, rows, images, image_tile)
