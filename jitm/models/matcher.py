"""The interface of all models, and dual encoders; `tiled` and `joint` have the other kinds."""

import functools
import math

import jax
import jax.numpy as jnp
from chex import Array, ArrayTree
from flax import linen as nn

from jitm.errors import ArgumentError, UserError
from jitm.layers.linear import product
from jitm.models import tiling
from jitm.types import Bias, Images, Temperature, TextFormat, Texts, TokenPredictions

Encoding = ArrayTree


class Matcher(nn.Module):
    """Scores images against texts.

    Encodings are pytrees whose every leaf has the image (or the text) on axis 0. Caching, chunking, gathering
    candidates and sharding are therefore the same tree indexing for all models. Further capabilities are classes:
    `DualEncoder`, `tiled.CrossAttentionMatcher` and `joint.JointEncoder`.

    Attributes:
      temperature: The learned temperature of the scores in a softmax, float32 []; None for models that learn none.
      bias: The learned bias of the scores in a sigmoid, float32 []; None for models that learn none.
    """

    temperature = None
    bias = None

    @property
    def reads(self) -> tuple[str, ...]:
        """The fields of `Images` that `encode_image` requires; by default the image encoder's."""
        return self.image.reads

    @property
    def scale_matters(self) -> bool:
        """Whether the scale of the features changes what is learned; by default the image encoder's.

        It does where the output of a batch-normalized network is added to that of a linear layer.
        """
        return getattr(getattr(self, 'image', None), 'scale_matters', False)

    @property
    def text_format(self) -> TextFormat:
        """The texts that the model reads; by default the text encoder's."""
        return self.text.text_format

    @property
    def reranker(self) -> 'Matcher':
        """The model that orders a shortlist, with the same variables; by default this one."""
        return self

    def encode_image(self, images: Images, train: bool = False) -> Encoding:
        """Encodes I images: leaves [I, ...].

        In training it applies dropout and the statistics of the batch, and may add leaves for `predict_tokens`.
        """
        raise NotImplementedError

    def encode_text(self, texts: Texts, train: bool = False) -> Encoding:
        """Encodes T texts: leaves [T, ...]."""
        raise NotImplementedError

    def similarity(self, images: Encoding, texts: Encoding, train: bool = False) -> Array:
        """Scores every image with every text: float32 [I, T]."""
        raise NotImplementedError

    def similarity_pairwise(self, images: Encoding, texts: Encoding, train: bool = False) -> Array:
        """Scores image n with text n: float32 [N]."""
        raise NotImplementedError

    def training_scores(self, scores: Array) -> Array:
        """Maps scores in evaluation to the scale of the scores in training, which is the same for most models."""
        return scores

    def floats_per_pair(self, images: Encoding, texts: Encoding) -> int:
        """Returns the size of the largest array that scoring one pair needs; it limits how many are scored at once."""
        raise NotImplementedError

    def predict_tokens(self, images: Encoding, texts: Texts, train: bool = False) -> dict[str, TokenPredictions]:
        """Predicts the words of texts, where text n describes image n, for the token terms of the objective.

        Returns:
          The inputs of each loss in `jitm.losses.tokens`, by its name; empty for a model that predicts no words.
        """
        return {}

    def __call__(self, images: Images, texts: Texts, train: bool = False) -> Array:
        """Encodes and scores every image with every text: float32 [I, T].

        At initialization, which requires matching pairs, every parameter is created.
        """
        if self.is_initializing():
            self.predict_tokens(self.encode_image(images, train=True), texts)
        return self.similarity(self.encode_image(images, train), self.encode_text(texts, train), train)


class DualEncoder(Matcher):
    """Encodes both sides independently; the score is the inner product of two vectors."""

    def vectors(self, encoding: Encoding) -> Array:
        """Returns the vectors [N, D] of N encoded images or texts, whose inner products are the scores."""
        return encoding

    def _both(self, images: Encoding, texts: Encoding) -> tuple[Array, Array]:
        """Returns the vectors of both sides; raises a UserError unless they are equally wide."""
        sides = self.vectors(images), self.vectors(texts)
        first, second = (list(getattr(side, 'shape', [type(side).__name__])) for side in sides)
        if not (len(first) == len(second) == 2 and first[1] == second[1]):
            raise UserError(
                f'{type(self).__name__} encodes images as {first} and texts as {second}; the vectors of a dual encoder '
                'are [N, D] with the same D: change one of its encoders, or set model.embed_dim for both'
            )
        return sides

    def similarity(self, images: Encoding, texts: Encoding, train: bool = False) -> Array:
        """Scores every image with every text: float32 [I, T]."""
        return product('id,td->it', *self._both(images, texts))

    def similarity_pairwise(self, images: Encoding, texts: Encoding, train: bool = False) -> Array:
        """Scores image n with text n: float32 [N]."""
        return product('nd,nd->n', *self._both(images, texts))

    def floats_per_pair(self, images: Encoding, texts: Encoding) -> int:
        """Returns the size of a vector."""
        return self.vectors(images).shape[-1]


class TemperatureEncoder(DualEncoder, kw_only=True):
    """A dual encoder that can learn the temperature of its scores (Radford et al., 2021), and a bias (SigLIP).

    Only the loss divides by the temperature and adds the bias: the ranks are the same, and margins apply to the scores
    themselves.

    Attributes:
      initial_temperature: 0.07 as published, 0.1 for SigLIP; its inverse is learned as a logarithm, `logit_scale`. None
        to learn none.
      initial_bias: -10 as published for SigLIP; `logit_bias` is learned. None to learn none.
    """

    initial_temperature: Temperature | None = None
    initial_bias: Bias | None = None

    def setup(self):
        """Creates the temperature and the bias."""
        if self.initial_temperature is not None:
            initial = nn.initializers.constant(-math.log(self.initial_temperature))
            self.logit_scale = self.param('logit_scale', initial, ())
        if self.initial_bias is not None:
            self.logit_bias = self.param('logit_bias', nn.initializers.constant(self.initial_bias), ())

    @property
    def temperature(self) -> Array | None:
        """The learned temperature, float32 []; None if none is learned."""
        return None if self.initial_temperature is None else jnp.exp(-self.logit_scale)

    @property
    def bias(self) -> Array | None:
        """The learned bias, float32 []; None if none is learned."""
        return None if self.initial_bias is None else self.logit_bias


def check_width(model: Matcher, side: str, vectors: Array) -> None:
    """Raises an ArgumentError unless the encoder of a side, 'image' or 'text', gives vectors of `model.embed_dim`."""
    size = vectors.shape[-1]
    if size != model.embed_dim:
        joint = f"'model.embed_dim', which sets both encoders, is {model.embed_dim}"
        raise ArgumentError(side, f"has vectors of {size} numbers, but {joint}: leave 'model.{side}.embed_dim' out")


def as_function(model: Matcher, method: str, images: Encoding, texts: Encoding) -> tuple[tiling.Block, ArrayTree]:
    """Returns a method of a bound model as a pure function and its first argument, the model's variables.

    Tiles are computed within `lax.map` and `recompute`, which must not close over a bound module. At
    initialization the method is called once on one pair, so that the variables are complete.
    """
    if model.is_initializing():
        getattr(model, method)(*jax.tree.map(lambda x: x[:1], (images, texts)))
    module, variables = model.unbind()
    return functools.partial(module.apply, method=method), variables
