"""What every model is, and how a block of pairs becomes a similarity matrix."""

import functools
from collections.abc import Sequence

import chex
import jax
from flax import linen as nn

from jitm.errors import UserError
from jitm.models import tiling
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

    @property
    def reads_locations(self) -> bool:
        """Whether it reads where regions are, which takes data with boxes."""
        return False

    @property
    def begins_as(self) -> dict[str, str]:
        """Which modules begin as copies of which others, where a run to begin with does not have them yet."""
        return {}

    def encode_image(self, images: Images, train: bool = False) -> Encoding:
        """Encodes I images; every leaf of the result is [I, ...].

        In training there may be more leaves than `similarity` needs, for `predict_tokens`.
        """
        raise NotImplementedError

    def encode_text(self, texts: Texts, train: bool = False) -> Encoding:
        """Encodes T texts; every leaf of the result is [T, ...]."""
        raise NotImplementedError

    @property
    def scores_products(self) -> bool:
        """Whether `similarity` is the inner product of what `vectors` makes of encodings, in evaluation."""
        return False

    def vectors(self, encoding: Encoding) -> chex.Array:
        """The vectors [N, D] of encoded images or texts whose inner products are the scores, if there are any."""
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
        return self.in_tiles('score_block', images, texts)

    def similarity_pairwise(self, images: Encoding, texts: Encoding, train: bool = False) -> chex.Array:
        """Scores image n with text n: float32 [N]."""
        block, variables = self._block('score_block', images, texts)
        size = tiling.tile_edge(self.floats_per_pair(images, texts)) ** 2
        return tiling.map_tiles(lambda pairs: tiling.over_pairs(block)(variables, *pairs), (images, texts), size)

    def in_tiles(
        self, method: str, images: Encoding, texts: Encoding, cut: bool = False, all_images: bool = False
    ) -> chex.ArrayTree:
        """Applies a method such as `score_block` to every image with every text.

        Args:
          method: from leaves [i, ...] and [t, ...] to leaves [i, t, ...].
          images: leaves [I, ...].
          texts: leaves [T, ...]; Elements, the longest first, if they are to be cut.
          cut: cuts each tile of texts to their own length, which is worth more than it takes to compile if texts are
            padded to the longest of a batch.
          all_images: gives the method all images at once, with few texts.

        Returns:
          Leaves [I, T, ...].
        """
        block, variables = self._block(method, images, texts)
        floats = self.floats_per_pair(images, texts)
        if cut:
            block, floats = tiling.at_own_length(block), floats / 2  # half of the places are padding
        edge = tiling.tile_edge(floats)
        count = len(jax.tree.leaves(images)[0])
        return tiling.map_pairs(block, variables, images, texts, count if all_images else edge, edge)

    def _block(self, method: str, images: Encoding, texts: Encoding) -> tuple[tiling.Block, chex.ArrayTree]:
        """A method as a pure function, and its first argument; at initialisation with all parameters."""
        if self.is_initializing():
            getattr(self, method)(*jax.tree.map(lambda x: x[:1], (images, texts)))
        module, variables = self.unbind()
        return functools.partial(module.apply, method=method), variables

    def attention_block(self, images: Encoding, texts: Encoding) -> dict[str, chex.Array]:
        """How words and regions of every image and every text of a small block attend to each other.

        Returns:
          Name -> float32 [I, T, L, R], see `attention.word_by_region`: 't2i', each word's attention to the regions, and
          'i2t', each region's to the words; those a model has.

        Raises:
          UserError: if the model has none.
        """
        raise UserError(f'{type(self).__name__} has no attention of words over regions to show')

    def attention_pairwise(self, images: Encoding, texts: Encoding) -> dict[str, chex.Array]:
        """The attention between image n and text n: name -> float32 [N, L, R]; see `attention_block`."""
        block, variables = self._block('attention_block', images, texts)
        return tiling.over_pairs(block)(variables, images, texts)

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

    def read_pairs(
        self, images: Encoding, texts: Encoding, heads: Sequence[str], train: bool = False
    ) -> dict[str, chex.Array]:
        """What heads say of image n read together with text n, all at once; all models have `rank`.

        Args:
          images: N of them, encoded.
          texts: N of them, encoded, each with L places.
          heads: of these.
          train: drops out.

        Returns:
          Head -> `rank`, scores [N] as `similarity_pairwise`; `itm`, logits [N, 2], class 1 for a match; of each place
          `mlm`, the word that stands there, logits [N, L, V]; `discriminate`, whether it fits the image, logits
          [N, L, 2], class 1 if it does; `correct`, the word that should stand there, logits [N, L, V].

        Raises:
          UserError: if the model has not all of these.
        """
        if tuple(heads) != ('rank',):
            raise UserError(f'{type(self).__name__} does not read words together with an image')
        return {'rank': self.similarity_pairwise(images, texts, train)}

    def __call__(self, images: Images, texts: Texts, train: bool = False) -> chex.Array:
        """Encodes and scores every image with every text: float32 [I, T].

        At initialisation, which takes matching pairs, it touches every parameter.
        """
        if self.is_initializing():
            self.predict_tokens(self.encode_image(images, train=True), texts)
        return self.similarity(self.encode_image(images, train), self.encode_text(texts, train), train)
