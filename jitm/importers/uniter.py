"""Converts the released weights of UNITER and TAGS-DC to the parameters of `jitm.models.uniter.UNITER`."""

import re

import chex
import jax

from jitm.importers import bert, tensors
from jitm.importers.tensors import LEAVES, convert, open_tensors, refuse_others
from jitm.models.uniter import HEAD_SOURCES

# Module of our model -> module of the published one.
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
_HEADS = {  # head -> prefix of its tensors
    'rank': 'rank_output.',
    'itm': 'itm_output.',
    'discriminate': 'disc_output.',
    'mlm': 'cls.',
    'correct': 'correction_output.',
}
# Heads that the model may lack, parts that only pre-training needs, and a constant.
UNREAD = (
    *_HEADS.values(),
    'feat_regress.',
    'region_classifier.',
    'uniter.img_embeddings.mask_embedding.',
    'uniter.embeddings.position_ids',
)


def load_uniter(path: str, params: chex.ArrayTree) -> chex.ArrayTree:
    """Reads published weights.

    A head that the file lacks is initialized from another one, as `jitm.models.uniter.HEAD_SOURCES` states. A trained
    rank head is kept; the released evaluation instead replaces it by the matching head's row.

    Args:
      path: see `load_bert`. Names may have the prefix `bert.` for `uniter.`, gamma and beta, and the matching head's
        old name; parts that only pre-training needs are skipped.
      params: of a `jitm.models.uniter.UNITER`; only shapes are read.

    Returns:
      The same tree with float32 numpy arrays.

    Raises:
      UserError: if the file cannot be read, a tensor is missing or has another shape than the model's, or the file has
        tensors that the model does not.
    """
    names, read = open_tensors(path, 'UNITER')
    names = {new_name(name): name for name in names}
    refuse_others(path, names, params, published_name, UNREAD, 'UNITER')
    has_rank = 'rank_output.weight' in names
    for head, source in HEAD_SOURCES.items():
        new, old = _HEADS[head], _HEADS[source]
        if not any(name.startswith(new) for name in names):
            names |= {name.replace(old, new, 1): stored for name, stored in names.items() if name.startswith(old)}
    if not has_rank:  # its copy of the matching head has both classes, the second of which is kept below
        both = jax.tree.map(lambda x: jax.ShapeDtypeStruct((*x.shape[:-1], 2), x.dtype), params['rank_head'])
        params = params | {'rank_head': both}
    loaded = convert(path, names, read, params, published_name, 'UNITER')
    return loaded | {'rank_head': jax.tree.map(lambda x: x[..., -1:], loaded['rank_head'])}


def new_name(name: str) -> str:
    """Returns the current name of a tensor."""
    return tensors.new_name(re.sub(r'^ITM\.', 'itm_output.', re.sub(r'^bert\.', 'uniter.', name)))


def published_name(path: tuple[str, ...]) -> str:
    """Returns the name of a parameter's tensor in released weights."""
    if path[0] == 'bert':
        return f'uniter.{bert.published_name(path[1:])}'
    return f'{_MODULES["/".join(path[:-1])]}.{LEAVES[path[-1]]}'
