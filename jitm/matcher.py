"""What every model is, and how a one-pair kernel becomes a similarity matrix."""

from collections.abc import Callable

import chex
import jax
from flax import linen as nn

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

    def similarity(self, images: Encoding, texts: Encoding, train: bool = False) -> chex.Array:
        """Scores every image with every text: float32 [I, T]."""
        raise NotImplementedError

    def similarity_pairwise(self, images: Encoding, texts: Encoding, train: bool = False) -> chex.Array:
        """Scores image n with text n: float32 [N]."""
        raise NotImplementedError

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


def all_pairs(kernel: Callable[[Encoding, Encoding], chex.Array], images: Encoding, texts: Encoding) -> chex.Array:
    """Lifts a one-pair kernel to every image with every text.

    The kernel is vectorised over the texts and mapped over the images one at a time, and its intermediate values are
    recomputed for the gradient, so memory holds one row of pairs, not the whole block.

    Args:
      kernel: one image's encoding (no image axis) and one text's to a scalar.
      images: leaves [I, ...].
      texts: leaves [T, ...].

    Returns:
      Scores [I, T].
    """
    row = jax.checkpoint(lambda image: jax.vmap(kernel, (None, 0))(image, texts))
    return jax.lax.map(row, images)
