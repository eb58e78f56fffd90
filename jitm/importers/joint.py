"""Converts fine-tuned checkpoints of UNITER, TAGS-DC and OSCAR to configs and variables of our models."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jitm import config as config_lib
from jitm.data.vocabularies import load_vocabulary
from jitm.errors import UserError
from jitm.importers import bert, oscar, uniter
from jitm.importers.containers import open_checkpoint
from jitm.importers.released import ReleasedModel, shapes_of
from jitm.importers.tensors import shape_of
from jitm.types import Images, Texts

# system -> the module with its names and sizes, and what reads its parameters
JOINT_SYSTEMS = {
    'uniter': (uniter, uniter.load_uniter),
    'tags_dc': (uniter, uniter.load_uniter),
    'oscar': (oscar, oscar.load_oscar),
}


def load_joint(name: str, path: str, vocabulary: str | None, model: Mapping[str, Any]) -> ReleasedModel:
    """Reads a fine-tuned checkpoint.

    Args:
      name: The name of the system, a key of `JOINT_SYSTEMS`.
      path: The path of the file, see `load_uniter` and `load_oscar`.
      vocabulary: The path of BERT's vocab.txt.
      model: The config's `model`, for dropout and precision.

    Returns:
      The model, in float32.

    Raises:
      UserError: if a file is missing or damaged, tensors are missing, left over or of another shape, the checkpoint
        cannot score pairs, or the vocabulary is another one.
    """
    system, load = JOINT_SYSTEMS[name]
    if model['name'] != system.MODEL:
        raise UserError(f"--config has the model '{model['name']}', not '{system.MODEL}': give another one")
    tensors = open_checkpoint(path, name, system.NAMES.pattern(), system.new_name).tensors
    words, hidden = shape_of(path, tensors, system.WORDS, 2)
    features = shape_of(path, tensors, system.FEATURES, 2)[1] - system.BOXES
    heads = [head for head, tensor in system.HEADS.items() if tensor in tensors]
    if 'itm' not in heads and 'rank_output.weight' not in tensors:
        raise UserError(f'{path} lacks {system.HEADS["itm"]}, so that it cannot score pairs: fine-tune it first')
    section = config_lib.to_json(model) | {'size': bert.size_of(path, hidden)}
    section |= {'heads': heads} if 'heads' in section else {}
    section |= {'image_norm': 'bert.LayerNorm.weight' in tensors} if 'image_norm' in section else {}
    if not vocabulary:
        raise UserError(f'--vocabulary is missing: give the vocab.txt of the BERT of {path}')
    pieces = load_vocabulary(vocabulary)
    if len(pieces) != words:
        raise UserError(f'{vocabulary} has {len(pieces)} word pieces, but {path} has {words}: give its own')
    params = load(path, shapes_of(section, len(pieces), _one_image(features))['params'])
    data = {'regions': [0, 0, features], 'dtype': 'float32', 'hash': ''}
    return ReleasedModel(section, {'params': params, 'batch_stats': {}}, pieces, vocabulary, data)


def _one_image(features: int) -> Images:
    regions, locations = (np.zeros((1, 1, size), np.float32) for size in (features, 7))
    tags = Texts(np.zeros((1, 1), np.int32), np.ones(1, np.int32))
    return Images(regions, np.ones(1, np.int32), locations=locations, tags=tags)
