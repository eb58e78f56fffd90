"""Published models, as their importers return them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import chex
import jax
import numpy as np

from jitm.data.vocabularies import Tokenizer
from jitm.models.make import make_model, model_keys
from jitm.types import Images, Texts


class ReleasedModel(NamedTuple):
    """A published model.

    Attributes:
      model: The config's `model`.
      variables: 'params' and 'batch_stats'.
      vocabulary: The vocabulary of its texts.
      vocabulary_path: The path of the vocabulary.
      data: The known part of the identity of its training images, see `Split.identity`.
      assumed: Keys of the model that nothing in the files states -> their values.
      resizing: Keys of the config's `data` that state how photos become pixels, where the config may say otherwise.
    """

    model: dict[str, Any]
    variables: dict[str, chex.ArrayTree]
    vocabulary: Tokenizer
    vocabulary_path: str
    data: dict[str, Any]
    assumed: Mapping[str, Any] = {}
    resizing: Mapping[str, Any] = {}


def shapes_of(model: Mapping[str, Any], vocab_size: int, images: Images) -> dict[str, chex.ArrayTree]:
    """Returns the shapes of the variables of a model, 'params' and perhaps 'batch_stats'.

    Args:
      model: The config's `model`.
      vocab_size: The number of entries of the vocabulary.
      images: One image, with the fields that the model reads; only shapes are read.

    Raises:
      UserError: if the config is wrong.
    """
    texts = Texts(np.zeros((1, 2), np.int32), np.full(1, 2, np.int32))
    with model_keys():
        return dict(jax.eval_shape(make_model(model, vocab_size).init, jax.random.key(0), images, texts))
