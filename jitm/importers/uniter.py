"""Converts the released weights of UNITER and TAGS-DC to the parameters of `jitm.models.uniter.UNITER`."""

import functools

import chex
import jax

from jitm.importers import bert
from jitm.importers.containers import open_checkpoint
from jitm.importers.tensors import OLD_NAMES, KeyMap, convert, rename
from jitm.models.uniter import HEAD_SOURCES

MODEL = 'uniter.UNITER'
WORDS = 'uniter.embeddings.word_embeddings.weight'
FEATURES, BOXES = 'uniter.img_embeddings.img_linear.weight', 0  # its layer reads features and no numbers of boxes
HEADS = {  # the model's head -> a tensor of it
    'itm': 'itm_output.weight',
    'mlm': 'cls.predictions.bias',
    'discriminate': 'disc_output.weight',
    'correct': 'correction_output.predictions.bias',
}
_PREFIXES = {head: f'{tensor.partition(".")[0]}.' for head, tensor in {**HEADS, 'rank': 'rank_output.weight'}.items()}
NAMES = KeyMap(
    {
        **bert.modules_below('bert/', 'uniter.'),
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
    # Heads that the model may lack, parts that only pre-training needs, and a constant.
    unread=r'(rank_output|itm_output|disc_output|cls|correction_output|feat_regress|region_classifier|'
    r'uniter\.img_embeddings\.mask_embedding)\..*|uniter\.embeddings\.position_ids',
)

new_name = functools.partial(rename, ((r'^bert\.', 'uniter.'), (r'^ITM\.', 'itm_output.'), *OLD_NAMES))


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
      UserError: if the file cannot be read, or tensors are missing, left over or of another shape than the model's.
    """
    found = open_checkpoint(path, 'UNITER', NAMES.pattern(), new_name).tensors
    has_rank = 'rank_output.weight' in found
    for head, source in HEAD_SOURCES.items():
        new, old = _PREFIXES[head], _PREFIXES[source]
        if not any(name.startswith(new) for name in found):
            found |= {name.replace(old, new, 1): read for name, read in found.items() if name.startswith(old)}
    if not has_rank:  # its copy of the matching head has both classes, the second of which is kept below
        both = jax.tree.map(lambda x: jax.ShapeDtypeStruct((*x.shape[:-1], 2), x.dtype), params['rank_head'])
        params = params | {'rank_head': both}
    loaded = convert(path, found, {'params': params}, NAMES, 'a UNITER of this size')['params']
    return loaded | {'rank_head': jax.tree.map(lambda x: x[..., -1:], loaded['rank_head'])}
