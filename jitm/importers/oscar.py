"""Converts the released weights of OSCAR and VinVL to the parameters of `jitm.models.oscar.OSCAR`."""

import functools
import logging

import chex

from jitm.importers import bert
from jitm.importers.containers import open_checkpoint
from jitm.importers.tensors import OLD_NAMES, KeyMap, convert, rename
from jitm.models.oscar import BOX_NUMBERS

MODEL = 'oscar.OSCAR'
WORDS = 'bert.embeddings.word_embeddings.weight'
FEATURES, BOXES = 'bert.img_embedding.weight', BOX_NUMBERS  # its layer reads features and these numbers of a box
HEADS = {'itm': 'classifier.weight'}
_ADDED = {'region_norm': 'bert.LayerNorm', 'itm_head': 'classifier'}  # modules that pre-trained weights may lack
NAMES = KeyMap(
    {
        **bert.modules_below('bert/', 'bert.'),
        'region_features': 'bert.img_embedding',
        'pooler': 'bert.pooler.dense',
        **_ADDED,
    },
    unread=r'cls\..*|bert\.embeddings\.position_ids',  # heads of pre-training, and a constant
)

new_name = functools.partial(rename, ((r'^(?!bert\.|cls\.|classifier\.)', 'bert.'), *OLD_NAMES))


def load_oscar(path: str, params: chex.ArrayTree) -> chex.ArrayTree:
    """Reads published weights.

    Pre-trained weights lack the matching head, and older ones the normalization of regions. As released, these then
    keep their initial values, which is logged.

    Args:
      path: The path of the weights, see `load_bert`. Names may lack the prefix `bert.`, and normalizations may have the
        old names gamma and beta; the heads of pre-training are skipped.
      params: The parameters of a `jitm.models.oscar.OSCAR`; only shapes are read.

    Returns:
      The same tree with float32 numpy arrays, without modules that the file lacks.

    Raises:
      UserError: if the file cannot be read, or tensors are missing, left over or of another shape than the model's.
    """
    found = open_checkpoint(path, 'OSCAR', NAMES.pattern(), new_name).tensors
    added = [ours for ours, theirs in _ADDED.items() if not any(name.startswith(f'{theirs}.') for name in found)]
    for module in added:
        logging.warning('%s has no tensors of %s, which keeps its initial values', path, module)
    given = {name: module for name, module in params.items() if name not in added}
    return convert(path, found, {'params': given}, NAMES, 'an OSCAR of this size')['params']
