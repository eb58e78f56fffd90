"""Text encoders as folders of Hugging Face or sentence-transformers: their sizes, weights, tokenizers and pooling.

In a config, `model.text = dict(name='text.BERTEncoder', path=FOLDER)` names such a folder, or the name of an installed
package such as 'all-MiniLM-L6-v2'. `complete` replaces it by the keys that a run stores: a run needs no
folder.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import chex
import jax
import numpy as np

from jitm.config import schema
from jitm.config.hints import check_value
from jitm.data.text.vocabularies import Tokenizer, load_vocabulary
from jitm.errors import UserError
from jitm.files import check_within, parse_json
from jitm.importers.bert_weights import load_bert, read_size
from jitm.importers.clip_config import read_json
from jitm.importers.packages import located
from jitm.layers.text import BERTEncoder
from jitm.layers.transformer import BERTSize
from jitm.types import Texts

NAME = 'text.BERTEncoder'  # the module that reads a folder
PUBLISHED = 'published'  # the pooling of the folder, as `model.text_pooling`
POOLINGS = {  # sentence-transformers' -> ours; the mean with a square root has another norm only
    'cls': 'first',
    'cls_token': 'first',
    'max': 'max',
    'max_tokens': 'max',
    'mean': 'mean',
    'mean_tokens': 'mean',
    'mean_sqrt_len_tokens': 'mean',
    'lasttoken': 'last',
}


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


def read_folder(path: str) -> TextFolder:
    """Reads the files of a folder that are JSON.

    Args:
      path: The path of a folder, or a name, see `located`.

    Raises:
      UserError: If a file is missing or damaged, or it is another kind of model.
    """
    folder = Path(located(path))
    inner = next((one['path'] for one in _modules(folder) if one['kind'] == 'Transformer'), '')
    if not (folder / inner / 'config.json').is_file():
        raise UserError(f'{folder / inner} has no config.json: give a folder of Hugging Face or sentence-transformers')
    _, size = read_size(folder / inner / 'config.json')
    lengths = [size.max_length]
    for file in sorted((folder / inner).glob('sentence_*_config.json')):
        if (length := read_json(file).get('max_seq_length')) is not None:
            if type(length) is not int or length < 2:
                raise UserError(f"{file} has 'max_seq_length' {length!r}; it must be a whole number above 1")
            lengths.append(length)
    return TextFolder(str(folder / inner) if inner else path, size, min(lengths))


def read_pooling(path: str) -> str:
    """Returns the pooling of a folder, a key of `jitm.layers.pooling.POOLINGS`; 'mean' if none is stated.

    Raises:
      UserError: If a file is damaged, or jitm has no such pooling, or further layers follow it.
    """
    folder = Path(located(path))
    modules, remedy = _modules(folder), "set 'model.text_pooling' to 'mean', 'max', 'first' or another pooling"
    for module in modules:
        if module['kind'] not in ('Transformer', 'Pooling', 'Normalize'):
            raise UserError(f'{folder} pools words and then applies a {module["kind"]}, which is not read: {remedy}')
    file = next((folder / one['path'] / 'config.json' for one in modules if one['kind'] == 'Pooling'), None)
    if file is None:
        return 'mean'
    content = read_json(file)
    stated = content.get('pooling_mode') or [
        key.removeprefix('pooling_mode_') for key, value in content.items() if key.startswith('pooling_mode_') and value
    ]
    names = [*map(str, stated if isinstance(stated, list) else [stated])]
    if len(names) != 1 or names[0] not in POOLINGS:
        raise UserError(f'{file} states the pooling {" and ".join(names) or "none"}, which is not read: {remedy}')
    return POOLINGS[names[0]]


def _modules(folder: Path) -> list[dict[str, str]]:
    """Returns the kind and the path of each module of sentence-transformers; none if the folder does not list any."""
    file = folder / 'modules.json'
    if not file.is_file():
        return []
    try:
        modules = parse_json(file.read_bytes())
        found = [{'kind': one['type'].rpartition('.')[2], 'path': str(one['path'])} for one in modules]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f'{file} is no list of modules ({error}): download it again') from error
    for path in filter(None, (one['path'] for one in found)):
        check_within(path, str(file))
    return found


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
    vocabulary = load_vocabulary(located(folder.path), folder.max_length)
    encoder = BERTEncoder(len(vocabulary), 1, folder.size, folder.max_length)
    texts = Texts(np.zeros((1, 2), np.int32), np.full(1, 2, np.int32))
    shapes = jax.eval_shape(lambda: encoder.init(jax.random.key(0), texts, method='features'))['params']
    return encoder, {'bert': load_bert(folder.path, shapes['bert'], folder.size)}, vocabulary


def complete(config: Mapping[str, Any]) -> dict[str, Any]:
    """Checks a config, and replaces the folders of text encoders by the keys that they stand for.

    `path` of a text encoder becomes `size` and `max_length`, `vocabulary.path` and `initialize.bert`; the pooling
    'published' becomes that of the folder.

    Args:
      config: See `schema.check`.

    Returns:
      The config as it is stored with a run.

    Raises:
      UserError: See `schema.check`; if a folder cannot be read, or a key that it sets is set too.
    """
    config = schema.check(config)
    stages = config['stages']
    if 'first' in stages:
        config = {**config, 'stages': {**stages, 'first': _completed(stages['first'])}}
    return _completed(config, weights=not stages.get('fine_tune'))


def _completed(config: dict[str, Any], weights: bool = True) -> dict[str, Any]:
    """Completes the config of a stage, see `complete`; `weights` is False for one that starts from another run."""
    members = config['members']
    models = [config['model'], *(member['model'] for member in members.values() if member.get('model'))]
    path, *others = dict.fromkeys(text['path'] for model in models if 'path' in (text := _text_of(model))) or ['']
    if others:
        problem = f"is '{path}' and '{others[0]}', but all models of a run read one vocabulary: name one folder"
        raise UserError(f"config key 'model.text.path' {problem}")
    if not path:
        return config
    for section, key in (('vocabulary', 'path'), ('initialize', 'bert')):
        if given := config[section][key]:
            problem = "is set, but 'model.text.path' names a folder that has it: set one of them to ''"
            raise UserError(f"config key '{section}.{key}' '{given}' {problem}")
    folder = read_folder(path)
    weights = weights and not all(member.get('init_from') or member.get('of') for member in members.values())

    def changed(model: Mapping[str, Any]) -> dict[str, Any]:
        text = _text_of(model)
        if 'path' not in text:
            return dict(model)
        size = {'name': 'transformer.BERTSize', **dataclasses.asdict(folder.size)}
        text = {key: value for key, value in text.items() if key != 'path'}
        text = {**text, 'size': size, 'max_length': min(folder.max_length, text.get('max_length') or folder.max_length)}
        pooling = {'text_pooling': read_pooling(path)} if model.get('text_pooling') == PUBLISHED else {}
        return {**model, 'text': text, **pooling}

    return {
        **config,
        'model': changed(config['model']),
        'members': {
            name: {**member, **({'model': changed(member['model'])} if member.get('model') else {})}
            for name, member in members.items()
        },
        'vocabulary': {**config['vocabulary'], 'path': located(folder.path)},
        'initialize': {**config['initialize'], 'bert': folder.path if weights else ''},
    }


def _text_of(model: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the section of the text encoder of a model, {} without one; an error if `path` is set for another one."""
    text = model.get('text')
    text = text if isinstance(text, Mapping) else {}
    if 'path' not in text:
        return {}
    check_value('model.text.path', text['path'], str)
    if text.get('name') != NAME:
        problem = f"is set, but 'model.text.name' is '{text.get('name')}', not '{NAME}': leave one of them out"
        raise UserError(f"config key 'model.text.path' {problem}")
    if 'size' in text:
        raise UserError("config keys 'model.text.path' and 'model.text.size' both name sizes: leave one of them out")
    return text
