"""Text encoders as folders of Hugging Face or sentence-transformers: their sizes, weights, tokenizers and pooling.

A folder may also be the name of an installed package, such as 'all-MiniLM-L6-v2'.
"""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import chex
import jax
import numpy as np
from annotated_types import Ge

from jitm.config.foreign import declared, read_declared, read_json
from jitm.data.text.published import read_tokenizer_config, transformer_config
from jitm.data.text.vocabularies import Tokenizer, load_vocabulary
from jitm.errors import UserError
from jitm.files import check_within
from jitm.files.packages import located
from jitm.importers.bert_weights import load_bert, read_size
from jitm.importers.containers import open_checkpoint
from jitm.importers.tensors import KeyMap, convert
from jitm.layers.text import BERTEncoder
from jitm.layers.transformer import BERTSize
from jitm.types import Count, Texts

POOLINGS = {  # sentence-transformers' -> ours
    'cls': 'first',
    'cls_token': 'first',
    'max': 'max',
    'max_tokens': 'max',
    'mean': 'mean',
    'mean_tokens': 'mean',
    'mean_sqrt_len_tokens': 'mean_sqrt',
    'weightedmean': 'weighted_mean',
    'weightedmean_tokens': 'weighted_mean',
    'lasttoken': 'last',
}
# The modules of sentence-transformers in their order; dropout has no effect, and a second normalization neither.
MODULES = re.compile(r'(Transformer( Pooling( Dense)?)?( Normalize)*)?')
TORCH = 'torch.nn.modules'
ACTIVATIONS = {  # torch's -> ours
    f'{TORCH}.linear.Identity': 'identity',
    f'{TORCH}.activation.Tanh': 'tanh',
    f'{TORCH}.activation.ReLU': 'relu',
    f'{TORCH}.activation.GELU': 'gelu',
    f'{TORCH}.activation.SiLU': 'silu',
    f'{TORCH}.activation.Sigmoid': 'sigmoid',
}
DENSE = KeyMap({'linear': 'linear'})
REMEDY = "set 'model.text_pooling' to 'mean', 'max', 'first' or another pooling"
SENTENCE = 'sentence_embedding'
Length = Annotated[int, Ge(2)]
STATES = {'text': {'method': 'forward', 'method_output_name': 'last_hidden_state'}}  # what is pooled


@declared
class Module:
    """An entry of `modules.json`."""

    harmless = 'idx name'
    remedy = 'give another encoder'

    type: str
    path: str


@declared
class ModuleList:
    """`modules.json`, which is a list."""

    modules: Sequence[Module]


@declared
class ModelConfig:
    """`config_sentence_transformers.json`."""

    harmless = '__version__ similarity_fn_name'

    model_type: Literal['SentenceTransformer'] = 'SentenceTransformer'
    prompts: dict | None = None
    default_prompt_name: str | None = None


@declared
class TransformerConfig:
    """`sentence_bert_config.json`; the tokenizer reads `do_lower_case`."""

    harmless = 'unpad_inputs'

    max_seq_length: Length | None = None
    do_lower_case: bool = False
    transformer_task: Literal['feature-extraction'] = 'feature-extraction'
    module_output_name: Literal['token_embeddings'] = 'token_embeddings'
    modality_config: Literal[STATES, None] = None
    processing_kwargs: None = None
    query_length: None = None
    document_length: None = None
    query_expansion: None = None


@declared
class PoolingConfig:
    """`config.json` of a `Pooling`, with a list of names or, in old files, a flag for each."""

    harmless = 'embedding_dimension word_embedding_dimension include_prompt'
    remedy = REMEDY

    pooling_mode: str | Sequence | None = None
    pooling_mode_cls_token: bool = False
    pooling_mode_max_tokens: bool = False
    pooling_mode_mean_tokens: bool = False
    pooling_mode_mean_sqrt_len_tokens: bool = False
    pooling_mode_weightedmean_tokens: bool = False
    pooling_mode_lasttoken: bool = False


@declared
class DenseConfig:
    """`config.json` of a `Dense`."""

    remedy = REMEDY

    in_features: Count
    out_features: Count
    bias: bool = True
    activation_function: Literal[*ACTIVATIONS] = f'{TORCH}.activation.Tanh'
    module_input_name: Literal[SENTENCE] = SENTENCE
    module_output_name: Literal[SENTENCE, None] = SENTENCE
    use_residual: Literal[False] = False


@declared
class NormalizeConfig:
    """`config.json` of a `Normalize`, which old folders lack."""

    remedy = REMEDY

    module_input_name: Literal[SENTENCE] = SENTENCE
    module_output_name: Literal[SENTENCE, None] = SENTENCE


class TextFolder(NamedTuple):
    """A text encoder in a folder.

    Attributes:
      path: The folder of its weights, its tokenizer and `config.json`, or its name.
      size: Its sizes.
      max_length: The number of ids to which captions are cut.
    """

    path: str
    size: BERTSize
    max_length: int


class PublishedPooling(NamedTuple):
    """The pooling of a folder, and the linear layer after it.

    Attributes:
      name: The pooling, a key of `jitm.layers.pooling.POOLINGS`.
      dense: The other arguments of `jitm.layers.pooling.Dense`; None without the layer.
      weights: The folder of its weights; '' without it.
    """

    name: str
    dense: dict[str, Any] | None = None
    weights: str = ''


def read_folder(path: str) -> TextFolder:
    """Reads the files of a folder that are JSON.

    Args:
      path: The path of a folder, or a name, see `located`.

    Raises:
      UserError: If a file is missing or damaged, or it is another kind of model.
    """
    folder = Path(located(path))
    _check_prompt(folder / 'config_sentence_transformers.json')
    modules = _modules(folder)
    if modules and modules[0][0] != 'Transformer':
        raise UserError(f'{folder} starts with the module {modules[0][0]}: give a folder whose first is a Transformer')
    inner = modules[0][1] if modules else folder
    if not (inner / 'config.json').is_file():
        raise UserError(f'{inner} has no config.json: give a folder of Hugging Face or sentence-transformers')
    _, size = read_size(inner / 'config.json')
    limit = read_tokenizer_config(inner).length
    config = read_declared(TransformerConfig, transformer_config(inner))
    limit = config.max_seq_length or limit or size.max_length
    return TextFolder(path if inner == folder else str(inner), size, min(size.max_length, limit))


def _check_prompt(file: Path) -> None:
    """Raises a UserError if a folder puts a prompt before each text."""
    config = read_declared(ModelConfig, file)
    prompt = (config.prompts or {}).get(config.default_prompt_name)
    if prompt:
        problem = f"puts the prompt '{prompt}' before each text by 'default_prompt_name', which jitm does not"
        raise UserError(f'{file} {problem}: remove this key, and write the prompt into the captions')


def read_pooling(path: str) -> PublishedPooling:
    """Returns the pooling of a folder; 'mean' if none is stated.

    Raises:
      UserError: If a file is damaged, or jitm has no such pooling, or other layers follow it than one `Dense`.
    """
    folder = Path(located(path))
    modules = [(kind, path) for kind, path in _modules(folder) if kind != 'Dropout']
    kinds = ' '.join(kind for kind, _ in modules)
    if not MODULES.fullmatch(kinds):
        raise UserError(f'{folder} has the modules {kinds}, which are not read in this order: {REMEDY}')
    files = {kind: path / 'config.json' for kind, path in modules}
    name = _pooling_in(files['Pooling']) if 'Pooling' in files else 'mean'
    if 'Normalize' in files:
        read_declared(NormalizeConfig, files['Normalize'])
    if 'Dense' not in files:
        return PublishedPooling(name)
    projection = read_declared(DenseConfig, files['Dense'])
    dense = {
        'size': projection.out_features,
        'activation': ACTIVATIONS[projection.activation_function],
        'use_bias': projection.bias,
    }
    return PublishedPooling(name, dense, str(files['Dense'].parent))


def _pooling_in(file: Path) -> str:
    """Returns the pooling that the config of a `Pooling` states, a key of `jitm.layers.pooling.POOLINGS`."""
    config = read_declared(PoolingConfig, file, read_json(file))
    modes = config.pooling_mode or [
        key.removeprefix('pooling_mode_') for key, value in dataclasses.asdict(config).items() if value is True
    ]
    names = [modes] if isinstance(modes, str) else [str(mode) for mode in modes]
    if len(names) != 1 or names[0] not in POOLINGS:
        raise UserError(f'{file} states the pooling {" and ".join(names) or "none"}, which is not read: {REMEDY}')
    return POOLINGS[names[0]]


def load_dense(path: str, params: chex.ArrayTree) -> chex.ArrayTree:
    """Reads the weights of a `Dense` of sentence-transformers.

    Args:
      path: The path of its folder, or of the file of weights in it.
      params: The parameters of a `jitm.layers.pooling.Dense`; only shapes are read.

    Returns:
      The same tree with float32 numpy arrays.

    Raises:
      UserError: If the file cannot be read, or a tensor is missing, left over or has another shape.
    """
    tensors = open_checkpoint(path, 'a Dense of sentence-transformers', DENSE.pattern()).tensors
    return convert(path, tensors, {'params': params}, DENSE, 'a Dense of these sizes')['params']


def _modules(folder: Path) -> list[tuple[str, Path]]:
    """Returns the kind and the path of each module of sentence-transformers; none if the folder does not list any."""
    file = folder / 'modules.json'
    if not file.is_file():
        return []
    modules = []
    for module in read_declared(ModuleList, file, {'modules': read_json(file, list)}).modules:
        package, _, kind = module.type.rpartition('.')
        if not package.startswith('sentence_transformers.'):
            raise UserError(f"{file} has a module of the type '{module.type}', which is not read: give another encoder")
        if module.path:
            check_within(module.path, str(file))
        modules.append((kind, folder / module.path))
    return modules


def load_text_encoder(path: str) -> tuple[BERTEncoder, chex.ArrayTree, Tokenizer]:
    """Reads a whole folder.

    Args:
      path: See `read_folder`.

    Returns:
      The encoder, whose `features` are the last hidden states, its parameters, and its tokenizer.

    Raises:
      UserError: If a file is missing or damaged, or it is another kind of model.
    """
    folder = read_folder(path)
    vocabulary = load_vocabulary(folder.path, folder.max_length)
    encoder = BERTEncoder(len(vocabulary), 1, folder.size, folder.max_length)
    texts = Texts(np.zeros((1, 2), np.int32), np.full(1, 2, np.int32))
    shapes = jax.eval_shape(lambda: encoder.init(jax.random.key(0), texts, method='features'))['params']
    return encoder, {'bert': load_bert(folder.path, shapes['bert'], folder.size)}, vocabulary
