"""Configs that name the folder of a text encoder, see `jitm.importers.text_folders`.

In a config, `model.text = dict(name='text.BERTEncoder', path=FOLDER)` names such a folder, or an installed package.
`complete` replaces it by the keys that a run stores: a run needs no folder.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jitm.config import schema
from jitm.config.hints import check_value
from jitm.errors import UserError
from jitm.files.packages import located
from jitm.importers.text_folders import TextFolder, read_folder, read_pooling

NAME = 'text.BERTEncoder'  # the module that reads a folder
PUBLISHED = 'published'  # the pooling of the folder, as `model.text_pooling`


def complete(config: Mapping[str, Any]) -> dict[str, Any]:
    """Checks a config, and replaces the folders of text encoders by the keys that they stand for.

    `path` of a text encoder becomes `size` and `max_length`, `vocabulary.path` and `initialize.bert`; the pooling
    'published' becomes that of the folder, with its linear layer as `dense` of the text encoder and `initialize.dense`.

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
        _complete(stages['first'])
    _complete(config, weights=not stages.get('fine_tune'))
    return config


def _complete(config: dict[str, Any], weights: bool = True) -> None:
    """Completes the config of a stage, see `complete`; `weights` is False for one that starts from another run."""
    members = config['members'].values()
    models = [config['model'], *(member['model'] for member in members if member.get('model'))]
    models = [model for model in models if _names_folder(model)]
    paths = list(dict.fromkeys(model['text']['path'] for model in models))
    if not any(paths):
        return
    if len(paths) > 1:
        problem = f"is '{paths[0]}' and '{paths[1]}', but all models of a run read one vocabulary: name one folder"
        raise UserError(f"config key 'model.text.path' {problem}")
    for section, key in (('vocabulary', 'path'), ('initialize', 'bert')):
        value = config[section][key]
        if value:
            problem = "is set, but 'model.text.path' names a folder that has it: set one of them to ''"
            raise UserError(f"config key '{section}.{key}' '{value}' {problem}")
    if not Path(located(paths[0])).is_dir():
        raise UserError(
            f'there is no folder {paths[0]}: give one of Hugging Face or sentence-transformers; to resume a run whose '
            'folder has moved, put a link to it in its old place'
        )
    folder = read_folder(paths[0])
    dense_weights = [_replace(model, folder) for model in models]
    config['vocabulary']['path'] = folder.path
    if weights and not all(member.get('init_from') or member.get('of') for member in members):
        config['initialize']['bert'] = folder.path
        if any(dense_weights):
            config['initialize']['dense'] = max(dense_weights)


def _names_folder(model: Mapping[str, Any]) -> bool:
    """Returns whether a model names a folder; raises a UserError if its text encoder is another one or has sizes."""
    text = model.get('text')
    if not isinstance(text, Mapping) or 'path' not in text:
        return False
    check_value('model.text.path', text['path'], str)
    if text.get('name') != NAME:
        problem = f"is set, but 'model.text.name' is '{text.get('name')}', not '{NAME}': leave one of them out"
        raise UserError(f"config key 'model.text.path' {problem}")
    if 'size' in text:
        raise UserError("config keys 'model.text.path' and 'model.text.size' both name sizes: leave one of them out")
    return True


def _replace(model: dict[str, Any], folder: TextFolder) -> str:
    """Replaces the folder that a model names by keys; returns the folder of the weights of `dense`, '' without one."""
    text = model['text']
    path = text.pop('path')
    text['size'] = {'name': 'transformer.BERTSize', **dataclasses.asdict(folder.size)}
    text['max_length'] = min(folder.max_length, text.get('max_length') or folder.max_length)
    if model.get('text_pooling') != PUBLISHED:
        return ''
    pooling = read_pooling(path)
    model['text_pooling'] = pooling.name
    if pooling.dense is not None:
        text['dense'] = {'name': 'pooling.Dense', 'pooling': pooling.name, **pooling.dense}
        model['text_pooling'] = 'first'  # all words have one vector
    return pooling.weights
