"""Published models, as their importers return them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import chex
import jax
import numpy as np

from jitm.data.text.vocabularies import Tokenizer
from jitm.errors import UserError
from jitm.importers.containers import Tensors
from jitm.importers.tensors import KeyMap, convert
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
      assumed: Keys of the model that the files do not state -> their values.
      resizing: Keys of the config's `data` that determine how photos become pixels, where the config may differ.
    """

    model: dict[str, Any]
    variables: dict[str, chex.ArrayTree]
    vocabulary: Tokenizer
    vocabulary_path: str
    data: dict[str, Any]
    assumed: Mapping[str, Any] = {}
    resizing: Mapping[str, Any] = {}


def with_towers(
    path: str, tensors: Tensors, names: KeyMap, model: dict[str, Any], pieces: Tokenizer, file: str, **options: Any
) -> ReleasedModel:
    """Returns a model with towers of photos and captions.

    Args:
      path: The path of the weights, for messages.
      tensors: The weights.
      names: The names of its tensors.
      model: The config's `model`.
      pieces: The vocabulary, which must have as many pieces as there are word embeddings.
      file: The path of the vocabulary.
      **others: Other fields of the result.

    Raises:
      UserError: If tensors are missing, left over or of another shape, or the vocabulary has another size.
    """
    embedding = tensors.get(names.name(('text', 'words', 'embedding')))
    rows = len(pieces) if embedding is None else len(embedding())
    if rows != len(pieces):
        raise UserError(f'{file} has {len(pieces)} pieces, but {path} has {rows}: give its own tokenizer')
    size = model['image']['image_size']
    shapes = shapes_of(model, len(pieces), Images(pixels=np.zeros((1, size, size, 3), np.uint8)))
    variables = convert(path, tensors, shapes, names, 'a model of its config')
    data = {'pixels': [0, size, size, 3], 'dtype': 'uint8', 'hash': ''}
    return ReleasedModel(model, variables, pieces, file, data, **options)


def shapes_of(model: Mapping[str, Any], vocab_size: int, images: Images) -> dict[str, chex.ArrayTree]:
    """Returns the shapes of the variables of a model, 'params' and perhaps 'batch_stats'.

    Args:
      model: The config's `model`.
      vocab_size: The number of entries of the vocabulary.
      images: One image, with the fields that the model reads; only shapes are read.

    Raises:
      UserError: If the config is wrong.
    """
    texts = Texts(np.zeros((1, 2), np.int32), np.full(1, 2, np.int32))
    with model_keys():
        return dict(jax.eval_shape(make_model(model, vocab_size).init, jax.random.key(0), images, texts))
