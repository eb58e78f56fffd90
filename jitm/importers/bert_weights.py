"""Converts Hugging Face's weights of BERT and its variants to the parameters of `jitm.layers.transformer.BERT`."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import chex

from jitm.config.foreign import read_json
from jitm.errors import UserError
from jitm.files.packages import located
from jitm.importers.clip_config import values_of
from jitm.importers.containers import open_checkpoint
from jitm.importers.tensors import OLD_NAMES, KeyMap, convert, rename
from jitm.layers.transformer import EPSILON, SIZES, BERTSize

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
_EMBEDDINGS = {ours: theirs for ours, theirs in MODULES.items() if ours.startswith('embeddings')}
_DISTILBERT = {  # in a block
    'attention/query': 'attention.q_lin',
    'attention/key': 'attention.k_lin',
    'attention/value': 'attention.v_lin',
    'attention/out': 'attention.out_lin',
    'attention_norm': 'sa_layer_norm',
    'mlp_in': 'ffn.lin1',
    'mlp_out': 'ffn.lin2',
    'mlp_norm': 'output_layer_norm',
}
_MPNET = {  # that differ from BERT's
    'encoder/block_*/attention/query': 'encoder.layer.*.attention.attn.q',
    'encoder/block_*/attention/key': 'encoder.layer.*.attention.attn.k',
    'encoder/block_*/attention/value': 'encoder.layer.*.attention.attn.v',
    'encoder/block_*/attention/out': 'encoder.layer.*.attention.attn.o',
    'encoder/block_*/attention_norm': 'encoder.layer.*.attention.LayerNorm',
    'relative/buckets': 'encoder.relative_attention_bias',
}


def _names(modules: Mapping[str, str]) -> KeyMap:
    """Returns the names of a variant.

    Unread are the pooler, heads and numbers of positions, but nothing else inside of the embeddings and blocks.
    """
    return KeyMap(modules, unread=r'(?!embeddings|encoder|transformer).*|embeddings\.(position_ids|token_type_ids)')


NAMES = _names(MODULES)


class Variant(NamedTuple):
    """A `model_type` of Hugging Face.

    Attributes:
      names: The names of its tensors.
      keys: Field of `BERTSize` -> key of `config.json`, and its value in files without it.
      fixed: Fields of `BERTSize` that the file does not state.
      prefix: The prefix of the tensors in files with heads.
    """

    names: KeyMap
    keys: Mapping[str, tuple[str, Any]]
    fixed: Mapping[str, Any]
    prefix: str


_KEYS = {
    'hidden': ('hidden_size', 768),
    'layers': ('num_hidden_layers', 12),
    'heads': ('num_attention_heads', 12),
    'mlp_dim': ('intermediate_size', 3072),
    'max_positions': ('max_position_embeddings', 512),
    'activation': ('hidden_act', 'gelu'),
    'epsilon': ('layer_norm_eps', EPSILON),
}
_TYPED = _KEYS | {'token_types': ('type_vocab_size', 2)}
_DISTILLED = {
    'hidden': ('dim', 768),
    'layers': ('n_layers', 6),
    'heads': ('n_heads', 12),
    'mlp_dim': ('hidden_dim', 3072),
    'max_positions': ('max_position_embeddings', 512),
    'activation': ('activation', 'gelu'),
}
_ROBERTA = Variant(NAMES, _TYPED, {'first_position': 2}, 'roberta')
VARIANTS = {  # the defaults are those of the classes of transformers
    'bert': Variant(NAMES, _TYPED, {}, 'bert'),
    'roberta': _ROBERTA,
    'xlm-roberta': _ROBERTA,
    'distilbert': Variant(
        _names(
            _EMBEDDINGS
            | {f'encoder/block_*/{ours}': f'transformer.layer.*.{_DISTILBERT[ours]}' for ours in _DISTILBERT}
        ),
        _DISTILLED,
        {'token_types': 0},
        'distilbert',
    ),
    'mpnet': Variant(
        _names(MODULES | _MPNET), _KEYS, {'token_types': 0, 'first_position': 2, 'relative_positions': True}, 'mpnet'
    ),
}
ACTIVATIONS = {  # Hugging Face's -> ours
    'gelu': 'gelu',
    'gelu_new': 'gelu_tanh',
    'gelu_pytorch_tanh': 'gelu_tanh',
    'quick_gelu': 'quick_gelu',
    'relu': 'relu',
}
REQUIRED = {  # other keys of `config.json` -> the only value that is read
    'position_embedding_type': 'absolute',
    'is_decoder': False,
    'relative_attention_num_buckets': 32,
}


def read_size(file: Path) -> tuple[str, BERTSize]:
    """Returns the model type and the sizes that a `config.json` states.

    Raises:
      UserError: If the file cannot be read, a value has a wrong type, or it is a model that jitm does not have.
    """
    content = read_json(file)
    kind = content.get('model_type')
    if kind not in VARIANTS:
        raise UserError(f"{file} has the model_type '{kind}': give a model of one of {', '.join(VARIANTS)}")
    keys, fixed, required = VARIANTS[kind].keys, VARIANTS[kind].fixed, REQUIRED
    if 'first_position' in fixed:
        required = required | {'pad_token_id': fixed['first_position'] - 1}
    for key, value in required.items():
        if content.get(key) not in (None, value):
            raise UserError(f'{file} has {key} {content[key]!r}, but jitm has {value!r} only: give another model')
    values = values_of(file, content, dict(keys.values()))
    fields = {field: values[key] for field, (key, _) in keys.items()}
    if fields['activation'] not in ACTIVATIONS:
        key = keys['activation'][0]
        raise UserError(f"{file} has the {key} '{fields['activation']}'; jitm has {', '.join(ACTIVATIONS)}")
    fields['activation'] = ACTIVATIONS[fields['activation']]
    if fields['hidden'] % fields['heads']:
        problem = f'{fields["hidden"]} hidden units, which are no multiple of its {fields["heads"]} heads'
        raise UserError(f'{file} has {problem}: download it again')
    return kind, BERTSize(**fields, **fixed)


def variant_of(size: str | Mapping[str, Any]) -> Variant:
    """Returns the variant of the sizes in a config; those that have a name are a BERT's."""
    stated = {} if isinstance(size, str) else size
    fitting = (one for one in VARIANTS.values() if one.fixed.items() <= stated.items())
    return max(fitting, key=lambda one: len(one.fixed))


def load_bert(path: str, params: chex.ArrayTree, size: BERTSize | None = None) -> chex.ArrayTree:
    """Reads published weights.

    Args:
      path: The path of a `.safetensors` file, a PyTorch file such as `pytorch_model.bin`, or a folder with one of the
        two; or a name, see `located`. Names may have a prefix such as `bert.` and normalizations the old names gamma
        and beta; the pooler and heads are skipped. A `config.json` beside them must state this model; without one they
        are of a BERT.
      params: The parameters of a `jitm.layers.transformer.BERT`; only shapes are read.
      size: The sizes of that BERT; None for those of its shapes, and otherwise the defaults.

    Returns:
      The same tree with float32 numpy arrays.

    Raises:
      UserError: If a file cannot be read, the config states another model, or a tensor is missing, left over or has
        another shape than the model's.
    """
    path = located(path)
    file = (Path(path) if Path(path).is_dir() else Path(path).parent) / 'config.json'
    variant = _check_config(file, size or _size_of(params)) if file.is_file() else VARIANTS['bert']
    new_name = functools.partial(rename, ((rf'^{variant.prefix}\.', ''), *OLD_NAMES))
    opened = open_checkpoint(path, 'a BERT', variant.names.pattern(), new_name)
    return convert(path, opened.tensors, {'params': params}, variant.names, 'a BERT of this size')['params']


def _size_of(params: chex.ArrayTree) -> BERTSize:
    """Returns the sizes of a BERT of these shapes."""
    embeddings, block = params['embeddings'], params['encoder']['block_0']
    hidden, heads, _ = block['attention']['query']['kernel'].shape
    types = embeddings.get('token_types')
    return BERTSize(
        hidden=hidden,
        layers=len(params['encoder']),
        heads=heads,
        mlp_dim=block['mlp_in']['kernel'].shape[1],
        max_positions=embeddings['positions']['embedding'].shape[0],
        token_types=types['embedding'].shape[0] if types else 0,
        relative_positions='relative' in params,
    )


def _check_config(file: Path, size: BERTSize) -> Variant:
    """Returns the variant that a config states; raises a UserError if it states other sizes than these."""
    kind, stated = read_size(file)
    content, sized = read_json(file), {'layers', 'hidden', 'heads'}
    for field, value in dataclasses.asdict(dataclasses.replace(stated, deviation=size.deviation)).items():
        if value != (wanted := getattr(size, field)):
            key = VARIANTS[kind].keys.get(field, (field,))[0]
            found = f'{key} {content[key]!r}' if key in content else f"model_type '{kind}' with {field} {value!r}"
            name = f"set its size in the config to 'L-{stated.layers}_H-{stated.hidden}_A-{stated.heads}'"
            remedy = name if field in sized else "give another BERT, or name its folder as 'model.text.path'"
            raise UserError(f'{file} has {found}, but the model has {wanted!r}: {remedy}')
    return VARIANTS[kind]


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
