"""The interface of all models, and their kinds: dual encoders, cross-attention models and joint encoders."""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import chex
import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import traverse_util

from jitm.layers import attention
from jitm.layers.linear import product
from jitm.models import tiling
from jitm.types import Elements, Images, TextFormat, Texts, TokenPredictions

Encoding = chex.ArrayTree

UNPAIRED = (
    '{} scores a whole batch in training and no single pairs, so losses on mined pairs do not apply: '
    'take another model, or other terms'
)


class Matcher(nn.Module):
    """Scores images against texts.

    Encodings are pytrees whose every leaf has the image (or the text) on axis 0. Caching, chunking, gathering
    candidates and sharding are therefore the same tree indexing for all models. Further capabilities are classes:
    `DualEncoder`, `CrossAttentionMatcher` and `JointEncoder`.
    """

    @property
    def reads(self) -> tuple[str, ...]:
        """The fields of `Images` that `encode_image` requires; by default those of the image encoder."""
        return self.image.reads

    @property
    def text_format(self) -> TextFormat:
        """The texts that the model reads; by default those of its text encoder."""
        return self.text.text_format

    @property
    def temperature(self) -> chex.Array | None:
        """The learned temperature of the scores in a softmax, float32 []; None for models that learn none."""
        return None

    def encode_image(self, images: Images, train: bool = False) -> Encoding:
        """Encodes I images.

        Args:
          images: I images.
          train: applies dropout and the statistics of the batch; the result may have additional leaves for
            `predict_tokens`.

        Returns:
          Leaves [I, ...].
        """
        raise NotImplementedError

    def encode_text(self, texts: Texts, train: bool = False) -> Encoding:
        """Encodes T texts: leaves [T, ...]."""
        raise NotImplementedError

    def similarity(self, images: Encoding, texts: Encoding, train: bool = False) -> chex.Array:
        """Scores every image with every text: float32 [I, T]."""
        raise NotImplementedError

    def similarity_pairwise(self, images: Encoding, texts: Encoding, train: bool = False) -> chex.Array:
        """Scores image n with text n: float32 [N]."""
        raise NotImplementedError

    def training_scores(self, scores: chex.Array) -> chex.Array:
        """Maps scores in evaluation to the scale of the scores in training, which is the same for most models."""
        return scores

    def floats_per_pair(self, images: Encoding, texts: Encoding) -> int:
        """Returns the size of the largest array that scoring one pair needs; it limits how many are scored at once."""
        raise NotImplementedError

    def predict_tokens(self, images: Encoding, texts: Texts, train: bool = False) -> dict[str, TokenPredictions]:
        """Predicts the words of matching pairs, for the token terms of the objective.

        Args:
          images: N images as `encode_image` encodes them in training.
          texts: N texts; text n describes image n.
          train: applies dropout.

        Returns:
          Name of a loss in `jitm.losses.tokens` -> its inputs; empty for a model that predicts none.
        """
        return {}

    def __call__(self, images: Images, texts: Texts, train: bool = False) -> chex.Array:
        """Encodes and scores every image with every text: float32 [I, T].

        At initialization, which requires matching pairs, every parameter is created.
        """
        if self.is_initializing():
            self.predict_tokens(self.encode_image(images, train=True), texts)
        return self.similarity(self.encode_image(images, train), self.encode_text(texts, train), train)


class DualEncoder(Matcher):
    """Encodes both sides independently; the score is the inner product of two vectors."""

    def vectors(self, encoding: Encoding) -> chex.Array:
        """Returns the vectors [N, D] of N encoded images or texts, whose inner products are the scores."""
        return encoding

    def similarity(self, images: Encoding, texts: Encoding, train: bool = False) -> chex.Array:
        """Scores every image with every text: float32 [I, T]."""
        return product('id,td->it', self.vectors(images), self.vectors(texts))

    def similarity_pairwise(self, images: Encoding, texts: Encoding, train: bool = False) -> chex.Array:
        """Scores image n with text n: float32 [N]."""
        return product('nd,nd->n', self.vectors(images), self.vectors(texts))

    def floats_per_pair(self, images: Encoding, texts: Encoding) -> int:
        """Returns the size of a vector."""
        return self.vectors(images).shape[-1]


class TiledMatcher(Matcher):
    """Scores a tile of images and texts at a time, which bounds the memory; a model adds `score_block`."""

    def score_block(self, images: Encoding, texts: Encoding) -> chex.Array:
        """Scores every image of a small block with every text of it, without tiling: float32 [I, T]."""
        raise NotImplementedError

    def similarity(self, images: Encoding, texts: Encoding, train: bool = False) -> chex.Array:
        """Scores every image with every text: float32 [I, T]."""
        return self.score_in_tiles('score_block', images, texts)

    def similarity_pairwise(self, images: Encoding, texts: Encoding, train: bool = False) -> chex.Array:
        """Scores image n with text n: float32 [N]."""
        block, variables = as_block(self, 'score_block', images, texts)
        size = tiling.pair_tile(self.floats_per_pair(images, texts), images, texts)
        return tiling.map_tiles(lambda pairs: tiling.over_pairs(block)(variables, *pairs), (images, texts), size)

    def prepare(self, images: Encoding, texts: Encoding) -> tuple[Encoding, Encoding]:
        """Adds to encodings what `score_block` needs of every image or text for all of its pairs."""
        return images, texts

    def score_in_tiles(
        self,
        method: str,
        images: Encoding,
        texts: Encoding,
        cut: bool = False,
        known: Callable[[Encoding], chex.Array] | None = None,
    ) -> chex.Array:
        """Scores every image with every text, with a gradient that is sparse, see `tiling.with_sparse_gradient`.

        Args:
          method: `score_block`, or another method whose pairs do not depend on each other.
          images, texts, cut: see `tiles`.
          known: returns the scores if the texts have them, so that only the gradient is left to compute.

        Returns:
          float32 [I, T].
        """
        images, texts = self.prepare(images, texts)
        block, variables = as_block(self, method, images, texts)
        pairs = tiling.over_pairs(block)
        scores = tiling.with_sparse_gradient(
            self.tiles(block, images, texts, cut),
            tiling.at_own_length(pairs) if cut else pairs,
            tiling.pair_tile(self.floats_per_pair(images, texts), images, texts),
            known and (lambda variables, images, texts: known(texts)),
        )
        return scores(variables, images, texts)

    def in_tiles(self, method: str, images: Encoding, texts: Encoding, **options: bool) -> chex.ArrayTree:
        """Applies a method such as `score_block` to every image with every text.

        Args:
          method: maps leaves [i, ...] and [t, ...] to leaves [i, t, ...].
          images: leaves [I, ...].
          texts: leaves [T, ...].
          options: see `tiles`.

        Returns:
          Leaves [I, T, ...].
        """
        images, texts = self.prepare(images, texts)
        block, variables = as_block(self, method, images, texts)
        return self.tiles(block, images, texts, **options)(variables, images, texts)

    def tiles(
        self, block: tiling.Block, images: Encoding, texts: Encoding, cut: bool = False, all_images: bool = False
    ) -> tiling.Block:
        """Returns a block of all images and texts that applies a block to one tile after the other.

        Args:
          block: of a few images and texts.
          images, texts: leaves [I, ...] and [T, ...], whose shapes decide the size of a tile; with `cut`, texts are
            Elements sorted by length, the longest first.
          cut: cuts the padding of each tile of texts. This pays off in training, where texts are padded to the longest
            of a batch; several lengths are compiled.
          all_images: passes all images at once, with few texts.
        """
        floats = self.floats_per_pair(images, texts)
        if cut:
            block, floats = tiling.at_own_length(block), floats / 2  # half of the positions are padding
        edge = tiling.tile_edge(floats)
        image_tile = len(jax.tree.leaves(images)[0]) if all_images else edge
        return functools.partial(tiling.map_pairs, block, image_tile=image_tile, text_tile=edge)


class CrossAttentionMatcher(TiledMatcher):
    """Compares regions and words, encoded as unit vectors; a model adds `score_block` and `attention_block`.

    Attributes:
      embed_dim: D.
      image: encodes images as [I, R, D] and a mask bool [I, R] of the valid regions.
      text: encodes texts as [T, L, D].
    """

    embed_dim: int
    image: nn.Module
    text: nn.Module

    def encode_image(self, images: Images, train: bool = False) -> Elements:
        """Encodes [I, R, F] regions as unit vectors [I, R, D]."""
        return attention.unit_elements(*self.image(images, train))

    def encode_text(self, texts: Texts, train: bool = False) -> Elements:
        """Encodes [T, L] words as unit vectors [T, L, D]."""
        return attention.unit_elements(self.text(texts, train), texts.mask)

    def floats_per_pair(self, images: Elements, texts: Elements) -> int:
        """Returns the number of similarities between regions and words."""
        return images.mask.shape[1] * texts.mask.shape[1]

    def prepare(self, images: Elements, texts: Elements) -> tuple[Elements, Elements]:
        """Adds the Gram matrix of the side that is attended to: by default that of the images."""
        return images.replace(gram=attention.gram(images)), texts

    def similarity(self, images: Elements, texts: Elements, train: bool = False) -> chex.Array:
        """Scores every image with every text: [I, T]."""
        if not train:
            return super().similarity(images, texts)
        return self.score_by_length('score_block', images, texts)

    def score_by_length(self, method: str, images: Elements, texts: Elements, **options: Callable) -> chex.Array:
        """Scores every image with every text as `score_in_tiles` does, each tile of texts cut to its length: [I, T]."""
        texts, order = tiling.longest_first(texts)
        return self.score_in_tiles(method, images, texts, cut=True, **options)[:, order]

    def attention_block(self, images: Elements, texts: Elements) -> dict[str, chex.Array]:
        """Returns the attention between the words and the regions of every pair of a small block.

        Args:
          images: I encoded images.
          texts: T encoded texts.

        Returns:
          Name -> float32 [I, T, L, R], see `attention.word_by_region`: 't2i', the attention of each word to the
          regions, 'i2t', that of each region to the words, or both, depending on the model.
        """
        raise NotImplementedError

    def attention_pairwise(self, images: Elements, texts: Elements) -> dict[str, chex.Array]:
        """Returns the attention between image n and text n: name -> float32 [N, L, R]; see `attention_block`."""
        block, variables = as_block(self, 'attention_block', images, texts)
        return tiling.over_pairs(block)(variables, images, texts)


class JointEncoder(Matcher):
    """Reads each pair with one transformer, whose states heads turn into a score and predictions for the words.

    A model adds `read_pairs` and `floats_per_pair` and has an attribute `heads`, the names of its heads besides `rank`.
    The parameters of head `x` are those of the module `x_head`.
    """

    head_sources = MappingProxyType({})  # head -> the head that it is initialized from

    def read_pairs(
        self, images: Encoding, texts: Encoding, heads: Sequence[str], train: bool = False
    ) -> dict[str, chex.Array]:
        """Reads image n together with text n, without tiling, and applies heads.

        Args:
          images: N encoded images.
          texts: N encoded texts of L token positions.
          heads: names of heads.
          train: applies dropout.

        Returns:
          Head -> output. `rank`: scores [N]. `itm`: logits [N, 2], class 1 for a match. `mlm`: logits [N, L, V] of the
          word at each position. `discriminate`: logits [N, L, 2], class 1 if the word matches the image. `correct`:
          logits [N, L, V] of the word that matches the image.

        Raises:
          ValueError: if the model lacks one of the heads.
        """
        raise NotImplementedError

    def similarity(self, images: Encoding, texts: Encoding, train: bool = False) -> chex.Array:
        """Scores every image with every text: [I, T]."""
        shape = tuple(len(jax.tree.leaves(side)[0]) for side in (images, texts))
        rows, columns = jnp.indices(shape)
        return self._score_in_tiles(images, texts, rows.ravel(), columns.ravel(), train).reshape(shape)

    def similarity_pairwise(self, images: Encoding, texts: Encoding, train: bool = False) -> chex.Array:
        """Scores image n with text n: [N]."""
        index = jnp.arange(len(jax.tree.leaves(images)[0]))
        return self._score_in_tiles(images, texts, index, index, train)

    def score_pairs(self, images: Encoding, texts: Encoding, train: bool = False) -> chex.Array:
        """Scores image n with text n without tiling: [N]."""
        return self.read_pairs(images, texts, ('rank',), train)['rank']

    def _score_in_tiles(
        self, images: Encoding, texts: Encoding, rows: chex.Array, columns: chex.Array, train: bool
    ) -> chex.Array:
        """Scores image rows[n] with text columns[n], a tile of pairs at a time: [N]."""
        score, variables = as_function(self, 'score_pairs', images, texts)
        key = self.make_rng('dropout') if train else None

        def tile(pairs: tuple[chex.Array, ...]) -> chex.Array:
            number, row, column = pairs
            rngs = {'dropout': jax.random.fold_in(key, number[0])} if train else {}
            sides = jax.tree.map(lambda x: x[row], images), jax.tree.map(lambda x: x[column], texts)
            return score(variables, *sides, train, rngs=rngs)

        size = tiling.tile_edge(self.floats_per_pair(images, texts)) ** 2
        return tiling.map_tiles(tile, (jnp.arange(len(rows)), rows, columns), size)

    def is_head(self, path: Sequence[str]) -> bool:
        """Whether a parameter, given by its path, belongs to a head."""
        return path[0].endswith('_head')

    def add_heads(self, params: Mapping[tuple[str, ...], chex.Array]) -> dict[tuple[str, ...], chex.Array]:
        """Initializes the heads that trained parameters lack as copies, as `head_sources` states.

        Args:
          params: path of a parameter -> its value, of a model that may have fewer heads.

        Returns:
          The same with the copies.
        """
        known = {path[0] for path in params}
        copies = {
            (f'{head}_head', *path[1:]): value
            for head, source in self.head_sources.items()
            if head in self.heads and f'{head}_head' not in known
            for path, value in params.items()
            if path[0] == f'{source}_head'
        }
        return {**params, **copies}


def has_heads(model: Matcher, heads: Sequence[str]) -> bool:
    """Whether a model is a joint encoder with these heads."""
    return isinstance(model, JointEncoder) and set(heads) <= {'rank', *model.heads}


def read_pairs(
    model: Matcher, images: Encoding, texts: Encoding, heads: Sequence[str], train: bool = False
) -> dict[str, chex.Array]:
    """Applies `JointEncoder.read_pairs`; the only head of any other model is `rank`, its pairwise similarity.

    Raises:
      ValueError: if the model lacks one of the heads.
    """
    if isinstance(model, JointEncoder):
        return model.read_pairs(images, texts, heads, train)
    if set(heads) != {'rank'}:
        raise ValueError(f'{type(model).__name__} does not read words together with an image')
    return {'rank': model.similarity_pairwise(images, texts, train)}


def as_function(model: Matcher, method: str, images: Encoding, texts: Encoding) -> tuple[tiling.Block, chex.ArrayTree]:
    """Returns a method of a bound model as a pure function and its first argument, the model's variables.

    Tiles are computed within `lax.map` and `jax.checkpoint`, which must not close over a bound module. At
    initialization the method is called once on one pair, so that the variables are complete.
    """
    if model.is_initializing():
        getattr(model, method)(*jax.tree.map(lambda x: x[:1], (images, texts)))
    module, variables = model.unbind()
    return functools.partial(module.apply, method=method), variables


def as_block(model: Matcher, method: str, images: Encoding, texts: Encoding) -> tuple[tiling.Block, chex.ArrayTree]:
    """Returns a method as `as_function` does, with only those parameters that it reads.

    The encoders' parameters would have a gradient of zeros in every tile.
    """
    block, variables = as_function(model, method, images, texts)
    pair = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype), (images, texts))
    jaxpr = jax.make_jaxpr(block)(variables, *pair).jaxpr
    read = {id(variable) for equation in jaxpr.eqns for variable in equation.invars}
    leaves, treedef = jax.tree.flatten(variables)
    paths = traverse_util.flatten_dict(treedef.unflatten(zip(leaves, jaxpr.invars[: len(leaves)], strict=True)))
    kept = {path: leaf for path, (leaf, variable) in paths.items() if path[0] != 'params' or id(variable) in read}
    return block, traverse_util.unflatten_dict(kept)
