"""Converts the released weights of OSCAR and VinVL to the parameters of `jitm.models.oscar.OSCAR`."""

import logging

import chex

from jitm.importers import bert, tensors
from jitm.importers.tensors import LEAVES, convert, open_tensors, refuse_others

# Module of our model -> module of the published one.
_MODULES = {
    'region_features': 'bert.img_embedding',
    'region_norm': 'bert.LayerNorm',
    'pooler': 'bert.pooler.dense',
    'itm_head': 'classifier',
}
_ADDED = ('region_norm', 'itm_head')  # modules that pre-trained weights may lack; fine-tuning adds them
UNREAD = ('cls.', 'bert.embeddings.position_ids')  # heads of pre-training, and a constant


def load_oscar(path: str, params: chex.ArrayTree) -> chex.ArrayTree:
    """Reads published weights.

    Pre-trained weights lack the matching head, and older ones the normalization of regions. As released, these then
    keep their initial values, which is logged.

    Args:
      path: see `load_bert`. Names may lack the prefix `bert.`, and normalizations may have the old names gamma and
        beta; the heads of pre-training are skipped.
      params: of a `jitm.models.oscar.OSCAR`; only shapes are read.

    Returns:
      The same tree with float32 numpy arrays, without modules that the file lacks.

    Raises:
      UserError: if the file cannot be read, a tensor is missing or has another shape than the model's, or the file has
        tensors that the model does not.
    """
    names, read = open_tensors(path, 'OSCAR')
    names = {new_name(name): name for name in names}
    added = [name for name in _ADDED if not any(new.startswith(f'{_MODULES[name]}.') for new in names)]
    for module in added:
        logging.warning('%s has no tensors of %s, which keeps its initial values', path, module)
    given = {name: module for name, module in params.items() if name not in added}
    refuse_others(path, names, given, published_name, UNREAD, 'OSCAR')
    return convert(path, names, read, given, published_name, 'OSCAR')


def published_name(path: tuple[str, ...]) -> str:
    """Returns the name of a parameter's tensor in released weights."""
    if path[0] == 'bert':
        return f'bert.{bert.published_name(path[1:])}'
    return f'{_MODULES["/".join(path[:-1])]}.{LEAVES[path[-1]]}'


def new_name(name: str) -> str:
    """Returns the current name of a tensor."""
    has_prefix = name.startswith(('bert.', 'cls.', 'classifier.'))
    return tensors.new_name(name if has_prefix else f'bert.{name}')
