"""Converts Hugging Face's BERT weights to the parameters of `jitm.layers.transformer.BERT`."""

import functools
from pathlib import Path

import chex

from jitm.errors import UserError
from jitm.importers.clip_config import read_json
from jitm.importers.containers import open_checkpoint
from jitm.importers.tensors import OLD_NAMES, KeyMap, convert, rename
from jitm.layers.transformer import EPSILON, SIZES

MODULES = {
    'embeddings/words': 'embeddings.word_embeddings',
    'embeddings/positions': 'embeddings.position_embeddings',
    'embeddings/token_types': 'embeddings.token_type_embeddings',
    'embeddings/norm': 'embeddings.LayerNorm',
    'encoder/block_*/attention/query': 'encoder.layer.*.attention.self.query',
    'encoder/block_*/attention/key': 'encoder.layer.*.attention.self.key',
    'encoder/block_*/attention/value': 'encoder.layer.*.attention.self.value',
    'encoder/block_*/attention/out': 'encoder.layer.*.attention.output.dense',
    'encoder/block_*/attention_norm': 'encoder.layer.*.attention.output.LayerNorm',
    'encoder/block_*/mlp_in': 'encoder.layer.*.intermediate.dense',
    'encoder/block_*/mlp_out': 'encoder.layer.*.output.dense',
    'encoder/block_*/mlp_norm': 'encoder.layer.*.output.LayerNorm',
}
# Unread are the pooler, heads and numbers of positions, but nothing else inside of the embeddings and blocks.
NAMES = KeyMap(MODULES, unread=r'(?!embeddings|encoder).*|embeddings\.(position_ids|token_type_ids)')


def load_bert(path: str, params: chex.ArrayTree) -> chex.ArrayTree:
    """Reads published weights.

    Args:
      path: The path of a `.safetensors` file, a PyTorch file such as `pytorch_model.bin`, or a folder with one of the
        two. Names may have the prefix `bert.` and normalizations the old names gamma and beta; the pooler and heads are
        skipped.
        A `config.json` beside them must state this model.
      params: The parameters of a `jitm.layers.transformer.BERT`; only shapes are read.

    Returns:
      The same tree with float32 numpy arrays.

    Raises:
      UserError: If a file cannot be read, the config states another model, or a tensor is missing, left over or has
        another shape than the model's.
    """
    _check_config((Path(path) if Path(path).is_dir() else Path(path).parent) / 'config.json', params)
    new_name = functools.partial(rename, ((r'^bert\.', ''), *OLD_NAMES))
    opened = open_checkpoint(path, 'a BERT', NAMES.pattern(), new_name)
    return convert(path, opened.tensors, {'params': params}, NAMES, 'a BERT of this size')['params']


def _check_config(file: Path, params: chex.ArrayTree) -> None:
    """Raises a UserError if a config states another model than one of these parameters."""
    stated = read_json(file) if file.is_file() else {}
    hidden, heads, _ = params['encoder']['block_0']['attention']['query']['kernel'].shape
    model = {
        'model_type': 'bert',
        'hidden_size': hidden,
        'num_hidden_layers': len(params['encoder']),
        'num_attention_heads': heads,
        'intermediate_size': params['encoder']['block_0']['mlp_in']['kernel'].shape[1],
        'hidden_act': 'gelu',
        'layer_norm_eps': EPSILON,
        'position_embedding_type': 'absolute',
    }
    names = 'num_hidden_layers', 'hidden_size', 'num_attention_heads'
    for key, value in model.items():
        if stated.get(key, value) != value:
            size = 'L-{}_H-{}_A-{}'.format(*((model | stated)[name] for name in names))
            remedy = f"set its size in the config to '{size}'" if key in names else 'give another BERT'
            raise UserError(f'{file} has {key} {stated[key]!r}, but the model has {value!r}: {remedy}')


def modules_below(ours: str, theirs: str) -> dict[str, str]:
    """Returns the names of a BERT that is a module of a larger model.

    Args:
      ours: The prefix of our modules, such as 'bert/'.
      theirs: The prefix of the published ones, such as 'bert.'.
    """
    return {ours + module: theirs + published for module, published in MODULES.items()}


def size_of(path: str, hidden: int) -> str:
    """Returns the name of the size of a BERT.

    Args:
      path: The path of its weights, for the message.
      hidden: The number of its hidden units.

    Raises:
      UserError: If no size has this number.
    """
    for name, size in SIZES.items():
        if size.hidden == hidden:
            return name
    raise UserError(f'{path} has a BERT of {hidden} hidden units: give one of the sizes {", ".join(SIZES)}')
