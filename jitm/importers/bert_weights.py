"""Converts Hugging Face's weights of BERT and its variants to the parameters of `jitm.layers.transformer.BERT`."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import chex
import numpy as np

from jitm.config.foreign import declared, read_declared, read_json
from jitm.data.text.published import CLASSES, FAST
from jitm.data.text.vocabularies import load_vocabulary
from jitm.errors import UserError
from jitm.files.packages import located
from jitm.importers.containers import folder_of, open_checkpoint
from jitm.importers.tensors import OLD_NAMES, KeyMap, below, convert, projections, rename
from jitm.importers.transformers_keys import HARMLESS, Encoder
from jitm.layers.transformer import EPSILON, SIZES, BERTSize
from jitm.types import Count, Index, Positive

MODULES = {
    'embeddings/words': 'embeddings.word_embeddings',
    'embeddings/positions': 'embeddings.position_embeddings',
    'embeddings/token_types': 'embeddings.token_type_embeddings',
    'embeddings/norm': 'embeddings.LayerNorm',
    **projections('encoder/block_*/attention', 'encoder.layer.*.attention.self.%(part)s'),
    'encoder/block_*/attention/out': 'encoder.layer.*.attention.output.dense',
    'encoder/block_*/attention_norm': 'encoder.layer.*.attention.output.LayerNorm',
    'encoder/block_*/mlp_in': 'encoder.layer.*.intermediate.dense',
    'encoder/block_*/mlp_out': 'encoder.layer.*.output.dense',
    'encoder/block_*/mlp_norm': 'encoder.layer.*.output.LayerNorm',
}
_EMBEDDINGS = {ours: theirs for ours, theirs in MODULES.items() if ours.startswith('embeddings')}
_DISTILBERT = {  # in a block
    **projections('attention', 'attention.%(letter)s_lin'),
    'attention/out': 'attention.out_lin',
    'attention_norm': 'sa_layer_norm',
    'mlp_in': 'ffn.lin1',
    'mlp_out': 'ffn.lin2',
    'mlp_norm': 'output_layer_norm',
}
_MPNET = {  # that differ from BERT's
    **projections('encoder/block_*/attention', 'encoder.layer.*.attention.attn.%(letter)s'),
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
WORDS = 'embeddings.word_embeddings.weight'


ACTIVATIONS = {  # Hugging Face's -> ours
    'gelu': 'gelu',
    'gelu_python': 'gelu',
    'gelu_new': 'gelu_tanh',
    'gelu_fast': 'gelu_tanh',
    'gelu_accurate': 'gelu_tanh',
    'gelu_pytorch_tanh': 'gelu_tanh',
    'quick_gelu': 'quick_gelu',
    'relu': 'relu',
    'silu': 'silu',
    'swish': 'silu',
}


# Keys of single variants that change no state: of the pooler, of dropout, and of how the weights were made.
_OTHERS = """
    directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type
    qa_dropout seq_classif_dropout sinusoidal_pos_embds tie_weights_ vocab_size
"""


@declared
class EncoderConfig(Encoder):
    """What jitm knows of the `config.json` of any variant; the defaults are those of the classes of transformers."""

    harmless = HARMLESS + _OTHERS

    max_position_embeddings: Count = 512
    position_embedding_type: Literal['absolute'] = 'absolute'
    pad_token_id: Index | None = 0
    tokenizer_class: Literal[*CLASSES, *FAST] = None


@declared
class MPNetConfig(EncoderConfig):
    """An MPNet's: that of a BERT without token types."""

    hidden_size: Count = 768
    num_hidden_layers: Count = 12
    num_attention_heads: Count = 12
    intermediate_size: Count = 3072
    hidden_act: Literal[*ACTIVATIONS] = 'gelu'
    layer_norm_eps: Positive = EPSILON
    pad_token_id: Literal[1] = 1
    relative_attention_num_buckets: Literal[32] = 32


@declared
class RobertaConfig(MPNetConfig):
    """A RoBERTa's or XLM-R's."""

    type_vocab_size: Count = 2


@declared
class BertConfig(RobertaConfig):
    """A BERT's."""

    pad_token_id: Index | None = 0


@declared
class DistilBertConfig(EncoderConfig):
    """A DistilBERT's."""

    dim: Count = 768
    n_layers: Count = 6
    n_heads: Count = 12
    hidden_dim: Count = 3072
    activation: Literal[*ACTIVATIONS] = 'gelu'


class Variant(NamedTuple):
    """A `model_type` of Hugging Face.

    Attributes:
      config: The declaration of its `config.json`.
      names: The names of its tensors.
      keys: Field of `BERTSize` -> key of `config.json`.
      fixed: Fields of `BERTSize` that the file does not state.
      prefix: The prefix of the tensors in files with heads.
    """

    config: type[EncoderConfig]
    names: KeyMap
    keys: Mapping[str, str]
    fixed: Mapping[str, Any]
    prefix: str


_KEYS = {
    'hidden': 'hidden_size',
    'layers': 'num_hidden_layers',
    'heads': 'num_attention_heads',
    'mlp_dim': 'intermediate_size',
    'max_positions': 'max_position_embeddings',
    'activation': 'hidden_act',
    'epsilon': 'layer_norm_eps',
}
_TYPED = _KEYS | {'token_types': 'type_vocab_size'}
_DISTILLED = {
    'hidden': 'dim',
    'layers': 'n_layers',
    'heads': 'n_heads',
    'mlp_dim': 'hidden_dim',
    'max_positions': 'max_position_embeddings',
    'activation': 'activation',
}
_DISTILBERT_NAMES = _names(_EMBEDDINGS | below(_DISTILBERT, 'encoder/block_*/', 'transformer.layer.*.'))
_ROBERTA = Variant(RobertaConfig, NAMES, _TYPED, {'first_position': 2}, 'roberta')
VARIANTS = {
    'bert': Variant(BertConfig, NAMES, _TYPED, {}, 'bert'),
    'roberta': _ROBERTA,
    'xlm-roberta': _ROBERTA,
    'camembert': _ROBERTA,
    'distilbert': Variant(DistilBertConfig, _DISTILBERT_NAMES, _DISTILLED, {'token_types': 0}, 'distilbert'),
    'mpnet': Variant(
        MPNetConfig,
        _names(MODULES | _MPNET),
        _KEYS,
        {'token_types': 0, 'first_position': 2, 'relative_positions': True},
        'mpnet',
    ),
}


def read_size(file: Path) -> tuple[str, BERTSize]:
    """Returns the model type and the sizes that a `config.json` states.

    Raises:
      UserError: If the file cannot be read, a value has a wrong type, or it is a model that jitm does not have.
    """
    content = read_json(file)
    kind = content.get('model_type')
    if str(kind) not in VARIANTS:
        raise UserError(f"{file} has the model_type '{kind}': give a model of one of {', '.join(VARIANTS)}")
    variant = VARIANTS[kind]
    config = read_declared(variant.config, file, content)
    fields = {field: getattr(config, key) for field, key in variant.keys.items()}
    fields['activation'] = ACTIVATIONS[fields['activation']]
    if fields['hidden'] % fields['heads']:
        problem = f'{fields["hidden"]} hidden units, which are no multiple of its {fields["heads"]} heads'
        raise UserError(f'{file} has {problem}: download it again')
    return kind, BERTSize(**fields, **variant.fixed)


def variant_of(size: str | Mapping[str, Any]) -> Variant:
    """Returns the variant of the sizes in a config; those that have a name are a BERT's."""
    keys = {} if isinstance(size, str) else size
    fitting = (variant for variant in VARIANTS.values() if variant.fixed.items() <= keys.items())
    return max(fitting, key=lambda variant: len(variant.fixed))


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
    file = folder_of(path) / 'config.json'
    variant = _check_config(file, size or _size_of(params)) if file.is_file() else VARIANTS['bert']
    new_name = functools.partial(rename, ((rf'^{variant.prefix}\.', ''), *OLD_NAMES))
    tensors = dict(open_checkpoint(path, 'a BERT', variant.names.pattern(), new_name).tensors)
    read = tensors.get(WORDS)
    if read:
        tensors[WORDS] = functools.partial(_rows_of_tokens, read, path, params['embeddings']['words']['embedding'])
    return convert(path, tensors, {'params': params}, variant.names, 'a BERT of this size')['params']


def _rows_of_tokens(read: Callable[[], np.ndarray], path: str, embeddings: chex.Array) -> np.ndarray:
    """Reads the embeddings of words without the rows that belong to no token of the tokenizer beside them."""
    stored = read()
    tokens = len(embeddings)
    if len(stored) > tokens and Path(path).is_dir() and len(load_vocabulary(path)) == tokens:
        return stored[:tokens]
    return stored


def _size_of(params: chex.ArrayTree) -> BERTSize:
    """Returns the sizes of a BERT of these shapes."""
    embeddings = params['embeddings']
    block = params['encoder']['block_0']
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
    kind, stated_size = read_size(file)
    content = read_json(file)
    for field, value in dataclasses.asdict(dataclasses.replace(stated_size, deviation=size.deviation)).items():
        if value != (expected := getattr(size, field)):
            key = VARIANTS[kind].keys.get(field, field)
            problem = f'{key} {content[key]!r}' if key in content else f"model_type '{kind}' with {field} {value!r}"
            name = f'L-{stated_size.layers}_H-{stated_size.hidden}_A-{stated_size.heads}'
            remedy = "give another BERT, or name its folder as 'model.text.path'"
            if field in ('layers', 'hidden', 'heads'):
                remedy = f"set its size in the config to '{name}'"
            raise UserError(f'{file} has {problem}, but the model has {expected!r}: {remedy}')
    return VARIANTS[kind]


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
