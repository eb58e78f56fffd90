"""Converts checkpoints of the authors' training scripts to configs and variables of our models.

A checkpoint is a file of torch, or a safetensors file with the same names, such as 'model.0.fc.weight', whose metadata
has the options as JSON.
"""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jitm.config import build as config_lib
from jitm.data.text.vocabularies import FILES, Tokenizer, load_vocabulary
from jitm.data.text.word_level import Vocabulary
from jitm.errors import UserError
from jitm.importers import systems
from jitm.importers.containers import Checkpoint, Tensors, first_file, open_checkpoint
from jitm.importers.released import ReleasedModel, shapes_of
from jitm.importers.systems import FEATURES, PIECES, SYSTEMS, WORDS, ReleasedSystem
from jitm.importers.tensors import convert, rename, shape_of
from jitm.types import Images

OPTIONS = 'opt'  # the key of the training script's options in a checkpoint
DATA_NAME = 'data_name'  # the option that names the training data, such as 'f30k_precomp'
# Patterns of other names of tensors -> the current names, such as weight normalization in torch 2.
_RENAMED = (
    (r'^(?!model\.|opt\.)', 'model.'),
    (r'^model\.img_enc\.', 'model.0.'),  # DBL and IMRAM, whose modules are not a list
    (r'^model\.txt_enc\.', 'model.1.'),
    (r'^model\.sim_enc\.', 'model.2.'),
    (r'\.embed\.glove\.', '.embed.'),  # NAAF
    (r'\.parametrizations\.weight\.original0$', '.weight_g'),
    (r'\.(parametrizations\.weight\.original1|weight_v)$', '.weight'),
)


def load_checkpoint(name: str, path: str, vocabulary: str | None, model: Mapping[str, Any]) -> ReleasedModel:
    """Reads a checkpoint of a training script.

    Args:
      name: The name of the system, a key of `SYSTEMS`.
      path: The path of the checkpoint, or of a folder with `model.safetensors`.
      vocabulary: The path of the vocabulary that it was trained with, see `load_vocabulary`; None for the one in the
        folder.
      model: The config's `model`, for options that the checkpoint does not state.

    Returns:
      The model, in float32.

    Raises:
      UserError: If a file is missing or damaged, tensors are missing, left over or of another shape, or the vocabulary
        is another one.
    """
    system = SYSTEMS[name]
    folder = Path(path)
    if folder.is_dir():
        path = str(folder / 'model.safetensors')
        beside = first_file(folder, FILES)
        vocabulary = vocabulary or (beside and str(beside))
    checkpoint = _open(path, system)
    tensors = checkpoint.tensors
    section, assumed = _recognize(system, checkpoint, model)
    words = _read_vocabulary(vocabulary, path, tensors, system.adds_mask)

    # One image, and the known properties of the training images.
    if section.get('image', {}).get('name') == systems.ENCODER:
        data = {'pixels': [0, systems.SIZE, systems.SIZE, 3], 'dtype': 'uint8', 'hash': ''}
        images = Images(pixels=np.zeros((1, *data['pixels'][1:]), np.uint8))
    else:
        features = shape_of(path, tensors, FEATURES, 2)[1]
        regions = (section.get('image_whole') or {}).get('slots', 1)
        data = {'regions': [0, 0, features], 'dtype': 'float32', 'hash': ''}
        images = Images(np.zeros((1, regions, features), np.float32), np.full(1, regions, np.int32))
    names = {name for name in checkpoint.values.get(DATA_NAME, {}).values() if isinstance(name, str)}
    if len(names) == 1:
        data['name'] = names.pop()
    shapes = shapes_of(section, len(words), images)
    variables = convert(path, tensors, shapes, system.names, f'{system.title}, as --from names it')
    return ReleasedModel(section, variables, words, vocabulary, data, assumed)


def _open(path: str, system: ReleasedSystem) -> Checkpoint:
    """Opens a checkpoint: its tensors, also those that are options, and the options."""
    checkpoint = open_checkpoint(path, system.title, system.names.pattern(), functools.partial(rename, _RENAMED))
    tensors = dict(checkpoint.tensors)
    for name in system.names.variables.values():
        option = name.removeprefix(f'{OPTIONS}.')
        if option != name and isinstance(value := checkpoint.option(option), int | float):
            tensors[name] = functools.partial(np.float32, value)
    return checkpoint._replace(tensors=system.prepare(_without_weight_norm(tensors)))


def _without_weight_norm(tensors: Tensors) -> Tensors:
    """Replaces the length g and the direction V of weight normalization by the weight g V / |V|."""
    plain = dict(tensors)
    for name in tensors:
        weight = name.removesuffix('_g')
        if name.endswith('.weight_g') and weight in tensors:
            plain[weight] = functools.partial(_scaled, tensors[weight], plain.pop(name))
    return plain


def _scaled(direction: Callable[[], np.ndarray], length: Callable[[], np.ndarray]) -> np.ndarray:
    vector = direction()
    return vector * (length() / np.linalg.norm(vector))


def _recognize(
    system: ReleasedSystem, checkpoint: Checkpoint, model: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the config's `model` of a checkpoint, and the keys of it that are assumed."""
    path, tensors, _ = checkpoint
    if model['name'].partition('.')[0] != system.module:
        raise UserError(f"--config has the model '{model['name']}', which is not {system.title}: give another one")
    section = config_lib.to_json(model)
    assumed = {}
    if 'image' in section:
        network = systems.recognize_network(path, tensors) if system.photos else None
        section['image'] = systems.with_network(section['image'], network)
    for option, value in system.required.items():
        stored = checkpoint.option(option, value)
        if stored != value:
            raise UserError(
                f'{path} was trained with {option}={stored!r}, but {system.title} has {value!r} here: convert '
                'another one'
            )
    for key, value in system.fixed.items():
        _set(section, key, value)
    for key, (option, values) in system.options.items():
        default = config_lib.flatten(section).get(key)
        stored = checkpoint.option(option)
        if option not in checkpoint.values and default is not None:
            assumed[key] = default
        else:
            _set(section, key, _option(path, option, stored, values, default))
    for key, value in system.recognize(path, tensors).items():
        _set(section, key, value)
    return section, assumed


def _set(section: dict[str, Any], key: str, value: Any) -> None:
    """Sets a dotted key of the config's `model`; keys of `image` leave out its network."""
    parent, _, leaf = key.rpartition('.')
    part = systems.regions_of(section['image']) if parent == 'image' else section[parent] if parent else section
    part[leaf] = value


def _option(path: str, option: str, value: Any, values: Mapping[Any, Any] | None, default: Any) -> Any:
    """Returns a stored option as a value of our config."""
    kind = float if isinstance(default, float) else type(default)
    if values is not None and isinstance(value, str | bool) and value in values:
        return values[value]
    if values is None and type(value) in {kind, int if kind is float else kind}:
        return kind(value)
    raise UserError(f'{path} has the option {option}={value!r}, which is unknown: convert it with another one')


def _read_vocabulary(vocabulary: str | None, path: str, tensors: Tensors, adds_mask: bool) -> Tokenizer:
    """Reads the vocabulary of a checkpoint; `<mask>` is appended if its training did so and it has one word more."""
    if not vocabulary:
        raise UserError(
            f'--vocabulary is missing: give the file of the words of {path}, JSON or .pkl, or the vocab.txt of its BERT'
        )
    words = load_vocabulary(vocabulary)
    size, _ = shape_of(path, tensors, PIECES if PIECES in tensors else WORDS, 2)
    if adds_mask and isinstance(words, Vocabulary) and size == len(words) + 1:
        words = words.with_mask()
    if len(words) != size:
        raise UserError(f'{vocabulary} has {len(words)} words, but {path} has {size}: give the vocabulary it came with')
    return words
