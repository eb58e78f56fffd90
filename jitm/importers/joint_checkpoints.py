"""Converts UNITER, TAGS-DC, OSCAR and VinVL: weights to parameters, fine-tuned checkpoints to configs and variables."""

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import chex
import jax
import numpy as np

from jitm.config import build as config_lib
from jitm.data.text.vocabularies import load_vocabulary
from jitm.errors import UserError
from jitm.importers import bert_weights
from jitm.importers.containers import open_checkpoint
from jitm.importers.released import ReleasedModel, shapes_of
from jitm.importers.tensors import OLD_NAMES, KeyMap, below, convert, rename, shape_of
from jitm.models.oscar import BOX_NUMBERS
from jitm.models.uniter import HEAD_SOURCES
from jitm.types import Images, Texts

UNITER_HEADS = {  # the model's head -> a tensor of it
    'itm': 'itm_output.weight',
    'mlm': 'cls.predictions.bias',
    'discriminate': 'disc_output.weight',
    'correct': 'correction_output.predictions.bias',
}
UNITER_NAMES = KeyMap(
    {
        **below(bert_weights.MODULES, 'bert/', 'uniter.'),
        'regions/features': 'uniter.img_embeddings.img_linear',
        'regions/features_norm': 'uniter.img_embeddings.img_layer_norm',
        'regions/locations': 'uniter.img_embeddings.pos_linear',
        'regions/locations_norm': 'uniter.img_embeddings.pos_layer_norm',
        'regions/norm': 'uniter.img_embeddings.LayerNorm',
        'pooler': 'uniter.pooler.dense',
        'rank_head': 'rank_output',
        'itm_head': 'itm_output',
        'discriminate_head': 'disc_output',
        'mlm_head': 'cls.predictions',
        'mlm_head/dense': 'cls.predictions.transform.dense',
        'mlm_head/norm': 'cls.predictions.transform.LayerNorm',
        'correct_head': 'correction_output.predictions',
        'correct_head/dense': 'correction_output.predictions.transform.dense',
        'correct_head/norm': 'correction_output.predictions.transform.LayerNorm',
    },
    # Heads that the model may lack, parts used in pre-training only, and a constant.
    unread=r'(rank_output|itm_output|disc_output|cls|correction_output|feat_regress|region_classifier|'
    r'uniter\.img_embeddings\.mask_embedding)\..*|uniter\.embeddings\.position_ids',
)
_ADDED = {'region_norm': 'bert.LayerNorm', 'itm_head': 'classifier'}  # modules that pre-trained weights may lack
OSCAR_NAMES = KeyMap(
    {
        **below(bert_weights.MODULES, 'bert/', 'bert.'),
        'region_features': 'bert.img_embedding',
        'pooler': 'bert.pooler.dense',
        **_ADDED,
    },
    unread=r'cls\..*|bert\.embeddings\.position_ids',  # heads of pre-training, and a constant
)
uniter_name = functools.partial(rename, ((r'^bert\.', 'uniter.'), (r'^ITM\.', 'itm_output.'), *OLD_NAMES))
oscar_name = functools.partial(rename, ((r'^(?!bert\.|cls\.|classifier\.)', 'bert.'), *OLD_NAMES))


def load_uniter(path: str, params: chex.ArrayTree) -> chex.ArrayTree:
    """Reads published weights.

    A head that the file lacks is initialized from another one, as `jitm.models.uniter.HEAD_SOURCES` states. A trained
    rank head is kept; the released evaluation instead replaces it by the matching head's row.

    Args:
      path: The path of the weights, see `load_bert`. Names may have the prefix `bert.` for `uniter.`, gamma and beta,
        and the matching head's old name `ITM.`; parts that only pre-training needs are skipped.
      params: The parameters of a `jitm.models.uniter.UNITER`; only shapes are read.

    Returns:
      The same tree with float32 numpy arrays.

    Raises:
      UserError: If the file cannot be read, or tensors are missing, left over or of another shape than the model's.
    """
    stored = open_checkpoint(path, 'UNITER', UNITER_NAMES.pattern(), uniter_name).tensors
    has_rank = 'rank_output.weight' in stored
    tensors = UNITER_HEADS | {'rank': 'rank_output.weight'}
    for heads in HEAD_SOURCES.items():
        new, old = (f'{tensors[head].partition(".")[0]}.' for head in heads)
        if not any(name.startswith(new) for name in stored):
            stored |= {name.replace(old, new, 1): read for name, read in stored.items() if name.startswith(old)}
    if not has_rank:  # its copy of the matching head has both classes; the second is kept below
        doubled = jax.tree.map(lambda x: jax.ShapeDtypeStruct((*x.shape[:-1], 2), x.dtype), params['rank_head'])
        params = params | {'rank_head': doubled}
    loaded = convert(path, stored, {'params': params}, UNITER_NAMES, 'a UNITER of this size')['params']
    return loaded | {'rank_head': jax.tree.map(lambda x: x[..., -1:], loaded['rank_head'])}


def load_oscar(path: str, params: chex.ArrayTree) -> chex.ArrayTree:
    """Reads published weights.

    Pre-trained weights lack the matching head, and older ones the normalization of regions. As in the
    released code, these then keep their initial values, which is logged.

    Args:
      path: The path of the weights, see `load_bert`. Names may lack the prefix `bert.`, and normalizations may have the
        old names gamma and beta; the heads of pre-training are skipped.
      params: The parameters of a `jitm.models.oscar.OSCAR`; only shapes are read.

    Returns:
      The same tree with float32 numpy arrays, without modules that the file lacks.

    Raises:
      UserError: If the file cannot be read, or tensors are missing, left over or of another shape than the model's.
    """
    tensors = open_checkpoint(path, 'OSCAR', OSCAR_NAMES.pattern(), oscar_name).tensors
    stored = dict(params)
    for module, prefix in _ADDED.items():
        if not any(name.startswith(f'{prefix}.') for name in tensors):
            logging.warning('%s has no tensors of %s, which keeps its initial values', path, module)
            stored.pop(module, None)
    return convert(path, tensors, {'params': stored}, OSCAR_NAMES, 'an OSCAR of this size')['params']


class JointSystem(NamedTuple):
    """A joint encoder as it was released.

    Attributes:
      model: The name of our model.
      names: The names of its tensors.
      new_name: Maps the name of a tensor to its current one.
      load: Reads the parameters of a model from a file.
      words: The tensor of its word embeddings.
      features: The tensor of the layer that reads regions.
      box_numbers: The count of numbers of a box that this layer reads beside the features.
      heads: A head of the model -> a tensor of it.
    """

    model: str
    names: KeyMap
    new_name: Callable[[str], str]
    load: Callable[[str, chex.ArrayTree], chex.ArrayTree]
    words: str
    features: str
    box_numbers: int
    heads: Mapping[str, str]


_UNITER = JointSystem(
    *('uniter.UNITER', UNITER_NAMES, uniter_name, load_uniter),
    *('uniter.embeddings.word_embeddings.weight', 'uniter.img_embeddings.img_linear.weight', 0, UNITER_HEADS),
)
_OSCAR = JointSystem(
    *('oscar.OSCAR', OSCAR_NAMES, oscar_name, load_oscar, 'bert.embeddings.word_embeddings.weight'),
    *('bert.img_embedding.weight', BOX_NUMBERS, {'itm': 'classifier.weight'}),
)
JOINT_SYSTEMS = {'uniter': _UNITER, 'tags_dc': _UNITER, 'oscar': _OSCAR}


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
      UserError: If a file is missing or damaged, tensors are missing, left over or of another shape, the checkpoint
        cannot score pairs, or the vocabulary is another one.
    """
    system = JOINT_SYSTEMS[name]
    if model['name'] != system.model:
        raise UserError(f"--config has the model '{model['name']}', not '{system.model}': give another one")
    tensors = open_checkpoint(path, name, system.names.pattern(), system.new_name).tensors
    words, hidden = shape_of(path, tensors, system.words, 2)
    features = shape_of(path, tensors, system.features, 2)[1] - system.box_numbers
    heads = [head for head, tensor in system.heads.items() if tensor in tensors]
    if 'itm' not in heads and 'rank_output.weight' not in tensors:
        raise UserError(f'{path} lacks {system.heads["itm"]}, so that it cannot score pairs: fine-tune it first')
    section = config_lib.to_json(model) | {'size': bert_weights.size_of(path, hidden)}
    section |= {'heads': heads} if 'heads' in section else {}
    section |= {'image_norm': 'bert.LayerNorm.weight' in tensors} if 'image_norm' in section else {}
    if not vocabulary:
        raise UserError(f'--vocabulary is missing: give the vocab.txt of the BERT of {path}')
    pieces = load_vocabulary(vocabulary)
    if len(pieces) != words:
        raise UserError(f'{vocabulary} has {len(pieces)} word pieces, but {path} has {words}: give its own')
    params = system.load(path, shapes_of(section, len(pieces), _one_image(features))['params'])
    data = {'regions': [0, 0, features], 'dtype': 'float32', 'hash': ''}
    return ReleasedModel(section, {'params': params, 'batch_stats': {}}, pieces, vocabulary, data)


def _one_image(features: int) -> Images:
    regions, locations = (np.zeros((1, 1, size), np.float32) for size in (features, 7))
    tags = Texts(np.zeros((1, 1), np.int32), np.ones(1, np.int32))
    return Images(regions, np.ones(1, np.int32), locations=locations, tags=tags)
