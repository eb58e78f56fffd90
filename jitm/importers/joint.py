"""Converts fine-tuned checkpoints of UNITER, TAGS-DC and OSCAR to configs and variables of our models."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import chex
import numpy as np

from jitm import config as config_lib
from jitm.data.vocabularies import load_vocabulary
from jitm.errors import UserError
from jitm.importers import oscar, uniter
from jitm.importers.published import Published, shapes_of
from jitm.importers.tensors import open_tensors
from jitm.layers.transformer import SIZES
from jitm.models.oscar import BOX_NUMBERS
from jitm.types import Images, Texts


class System(NamedTuple):
    """How a system was released.

    Attributes:
      model: name of our model.
      new_name: maps the name of a tensor to its current one.
      words: the tensor of the word embeddings.
      features: the tensor of the layer that reads regions.
      boxes: numbers of a box that this layer reads besides the features.
      heads: key of the model's `heads` -> a tensor of the head.
      load: reads the parameters of a file.
    """

    model: str
    new_name: Callable[[str], str]
    words: str
    features: str
    boxes: int
    heads: Mapping[str, str]
    load: Callable[[str, chex.ArrayTree], chex.ArrayTree]


_UNITER = System(
    'uniter.UNITER',
    uniter.new_name,
    'uniter.embeddings.word_embeddings.weight',
    'uniter.img_embeddings.img_linear.weight',
    0,
    {
        'itm': 'itm_output.weight',
        'mlm': 'cls.predictions.bias',
        'discriminate': 'disc_output.weight',
        'correct': 'correction_output.predictions.bias',
    },
    uniter.load_uniter,
)
SYSTEMS = {
    'uniter': _UNITER,
    'tags_dc': _UNITER,
    'oscar': System(
        'oscar.OSCAR',
        oscar.new_name,
        'bert.embeddings.word_embeddings.weight',
        'bert.img_embedding.weight',
        BOX_NUMBERS,
        {'itm': 'classifier.weight'},
        oscar.load_oscar,
    ),
}


def load_joint(name: str, path: str, vocabulary: str | None, model: Mapping[str, Any]) -> Published:
    """Reads a fine-tuned checkpoint.

    Args:
      name: of the system, a key of `SYSTEMS`.
      path: of the file, see `load_uniter` and `load_oscar`.
      vocabulary: path of BERT's vocab.txt.
      model: the config's `model`, for dropout and precision.

    Returns:
      The model, in float32.

    Raises:
      UserError: if a file is missing or damaged, tensors are missing, left over or of another shape, the checkpoint
        cannot score pairs, or the vocabulary is another one.
    """
    system = SYSTEMS[name]
    if model['name'] != system.model:
        raise UserError(f"--config has the model '{model['name']}', not '{system.model}': give another one")
    names, read = open_tensors(path, name)
    stored = {system.new_name(stored): stored for stored in names}
    for tensor in (system.words, system.features):
        if tensor not in stored or read(stored[tensor]).ndim != 2:
            raise UserError(f"{path} has no matrix '{tensor}': give a checkpoint of the system that --from names")
    words, (hidden, inputs) = (read(stored[tensor]).shape for tensor in (system.words, system.features))
    section, features = config_lib.to_json(model), inputs - system.boxes
    section['size'] = next((size for size, numbers in SIZES.items() if numbers.hidden == hidden), None)
    if section['size'] is None:
        raise UserError(f'{path} has {hidden} hidden units, but {", ".join(SIZES)} have others: it cannot be converted')
    heads = [head for head, tensor in system.heads.items() if tensor in stored]
    if 'itm' not in heads and 'rank_output.weight' not in stored:
        raise UserError(f'{path} lacks {system.heads["itm"]}, so that it cannot score pairs: fine-tune it first')
    _set_heads(section, heads, stored)
    if not vocabulary:
        raise UserError(f'--vocabulary is missing: give the vocab.txt of the BERT of {path}')
    pieces = load_vocabulary(vocabulary)
    if len(pieces) != words[0]:
        raise UserError(f'{vocabulary} has {len(pieces)} word pieces, but {path} has {words[0]}: give its own')
    params = system.load(path, shapes_of(section, len(pieces), _one_image(features))['params'])
    data = {'regions': [0, 0, features], 'dtype': 'float32', 'hash': ''}
    return Published(section, {'params': params, 'batch_stats': {}}, pieces, vocabulary, data)


def _set_heads(section: dict[str, Any], heads: list[str], stored: Mapping[str, str]) -> None:
    if 'heads' in section:
        section['heads'] = heads
    if 'image_norm' in section:
        section['image_norm'] = 'bert.LayerNorm.weight' in stored


def _one_image(features: int) -> Images:
    regions, locations = (np.zeros((1, 1, size), np.float32) for size in (features, 7))
    tags = Texts(np.zeros((1, 1), np.int32), np.ones(1, np.int32))
    return Images(regions, np.ones(1, np.int32), locations=locations, tags=tags)
