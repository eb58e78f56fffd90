"""UNITER's released weights, and those of TAGS-DC, as parameters of our UNITER."""

import re

import chex
import jax

from jitm.importers import bert
from jitm.importers.tensors import LEAVES, convert, new_name, open_tensors

# Our modules and theirs.
_MODULES = {
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
}
# Heads that a file may not have yet, and the heads whose copies they begin as.
_COPIES = {'rank_output.': 'itm_output.', 'disc_output.': 'itm_output.', 'correction_output.': 'cls.'}


def load_uniter(path: str, params: chex.ArrayTree) -> chex.ArrayTree:
    """Reads published weights.

    A trained rank head is kept, unlike in the released evaluation, which puts the matching head's row over it; without
    one that row is what it begins as, and heads of TAGS-DC begin as copies likewise.

    Args:
      path: see `load_bert`. Names may have the prefix `bert.` for `uniter.`, gamma and beta, and the matching head's
        old name; what only pre-training needs is left out.
      params: of the `jitm.models.uniter.UNITER` they are for; shapes are enough.

    Returns:
      The same tree with float32 numpy arrays.

    Raises:
      UserError: the file cannot be read, or a tensor is missing or has another shape than the model's.
    """
    names, read = open_tensors(path, 'UNITER')
    names = {_new_name(name): name for name in names}
    ranks = 'rank_output.weight' in names
    for copy, head in _COPIES.items():
        if not any(name.startswith(copy) for name in names):
            names |= {name.replace(head, copy, 1): old for name, old in names.items() if name.startswith(head)}
    if not ranks:
        both = jax.tree.map(lambda x: jax.ShapeDtypeStruct((*x.shape[:-1], 2), x.dtype), params['rank_head'])
        params = params | {'rank_head': both}
    loaded = convert(path, names, read, params, _their_name, 'UNITER')
    return loaded | {'rank_head': jax.tree.map(lambda x: x[..., -1:], loaded['rank_head'])}


def _new_name(name: str) -> str:
    return new_name(re.sub(r'^ITM\.', 'itm_output.', re.sub(r'^bert\.', 'uniter.', name)))


def _their_name(ours: tuple[str, ...]) -> str:
    if ours[0] == 'bert':
        return f'uniter.{bert.their_name(ours[1:])}'
    return f'{_MODULES["/".join(ours[:-1])]}.{LEAVES[ours[-1]]}'
