"""The data that a config names: splits, the relevance of captions, and scene graphs."""

import dataclasses
import functools
import inspect
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jitm.config import names
from jitm.config.section import Bound, Section, bind
from jitm.data.own import check_own
from jitm.data.pairs import noise
from jitm.data.scene_graphs.tag_rules import CaptionGraph
from jitm.data.splits import Split
from jitm.data.text.vocabularies import Tokenizer, load_vocabulary
from jitm.data.text.word_level import Vocabulary
from jitm.errors import UserError
from jitm.types import Count, Index, Positive, Share


def sample_images(split: Split, *, train_share: Share, train_seed: Index = 0) -> Split:
    """Samples a part of the images, with all their texts, such as half of the training data (Diao et al., 2024, IV-C).

    Args:
      split: The training split.
      train_share: The share of the images.
      train_seed: The seed. With one seed, a larger part contains the smaller ones.
    """
    order = np.random.default_rng(train_seed).permutation(split.num_images)
    return split.take(np.sort(order[: max(1, round(train_share * split.num_images))]))


def scale_features(split: Split, *, scale: Positive) -> Split:
    """Multiplies the features, which a model reads as float32.

    Raises:
      UserError: If the split has photos.
    """
    if split.regions is None:
        raise UserError(f"config key 'data.scale' is {scale}, but {split.name} has no features: leave it out")
    return dataclasses.replace(split, scale=scale)


# Optional keys of the section `data` with any source: arguments of the changes of each split, and those of the training
# split, in this order.
CHANGES = {scale_features: ('scale',)}
TRAIN_CHANGES = {
    sample_images: ('train_share', 'train_seed'),
    noise.mix: ('noise_rate', 'noise_seed', 'noise_of'),
    noise.read: ('noise_file',),
    noise.drop: ('noise_dropped',),
}
TRAIN_KEYS = tuple(itertools.chain(*TRAIN_CHANGES.values()))
PUBLISHED = "docs/data.md says where data are published, and presets with the option 'scenes' need none"
MOVED = 'the run keeps the path given for training: from another folder, give --data_root (data_root= in Python)'


def is_loader(value: Any) -> bool:
    """Whether a value is a function whose first argument is `split`."""
    return inspect.isfunction(value) and [*inspect.signature(value).parameters][:1] == ['split']


LOADER = Section('source', 'jitm.data', null='', takes=('split',))
DATA = Section('source', 'jitm.data', own=is_loader, takes=('split',), extra=(*CHANGES, *TRAIN_CHANGES))


def load_split(
    data: Mapping[str, Any], split: str, root: str | None = None, noisy: bool = False, imports: bool = False
) -> Split:
    """Loads a split of the data set of a config, and only the share `train_share` of the training split.

    Args:
      data, root, imports: See `bind_data`.
      split: The name of a split, such as 'dev'.
      noisy: Whether captions of the training split are moved as in training; for evaluation they are not.

    Raises:
      UserError: See `bind_data` and `change_train`.
    """
    split_of_source = bind_data(data, root, imports)(split)
    return change_train(split_of_source, data, noisy) if split == 'train' else split_of_source


def change_train(train: Split, data: Mapping[str, Any], noisy: bool = True) -> Split:
    """Returns the training split as the section `data` of a config changes it: a part of the images, moved captions.

    Raises:
      UserError: If a key is out of its range, two keys name a noise, or a file of noise belongs to other data.
    """
    if {'noise_rate', 'noise_file'} <= data.keys():
        raise UserError("config keys 'data.noise_rate' and 'data.noise_file' both name a noise; give one")
    changes = TRAIN_CHANGES if noisy else {sample_images: TRAIN_CHANGES[sample_images]}
    return _change(train, changes, data)


def _change(split: Split, changes: Mapping[Callable, tuple[str, ...]], data: Mapping[str, Any]) -> Split:
    """Returns a split after the changes of which the section `data` of a config has a key."""
    for change, keys in changes.items():
        part = {key: data[key] for key in keys if key in data}
        if part:
            split = bind(Section(function=change, takes=('split',)), part, 'data')(split)
    return split


def bind_data(data: Mapping[str, Any], root: str | None = None, imports: bool = False) -> Callable[[str], Split]:
    """Returns the function that loads a split of the data set of a config, dict(source='precomp.load', ...).

    Args:
      data: The section `data` of the config.
      root: The folder of the data, if it is not the config's `data.root`.
      imports: Whether the module of a source of the user is imported; only for a config that the user wrote.

    Returns:
      The function from the name of a split, such as 'dev', see `load_whole`.

    Raises:
      UserError: If a key is wrong, or a root is given but the source reads no folder.
    """
    if root is not None:
        if 'root' not in data:
            raise UserError(f"--data_root does not apply: the data source '{data['source']}' reads no folder")
        data = {**data, 'root': root}
    remedy = PUBLISHED if imports or root is not None else MOVED
    return functools.partial(load_whole, bind(DATA, data, 'data', imports), data=data, remedy=remedy)


def load_whole(load: Bound, split: str, data: Mapping[str, Any], remedy: str = PUBLISHED) -> Split:
    """Loads a split as it is stored, with scaled features where the config says so.

    Args:
      load: The function that a config names.
      split: The name of the split.
      data: The section `data` of the config.
      remedy: The end of an error where there is no folder of the data.

    Raises:
      UserError: If the data cannot be read, or a source of the user fails or returns no consistent split.
    """
    if not isinstance(split, str) or split != os.path.basename(split):
        raise UserError(f"the split is '{split}'; give the name of one, such as dev, and its folder as data.root")
    try:
        loaded = load(split)
        if names.is_own(load.func):
            check_own(loaded, f"{load.setting}, but for the split '{split}' it returns")
    except UserError as error:
        if os.path.exists(load.keywords.get('root', '.')):
            raise
        raise UserError(f'{error}; {remedy}') from None
    return _change(loaded, CHANGES, data)


def make_vocabulary(split: Split, max_length: int | None, *, path: str, min_count: Count) -> Tokenizer:
    """Makes the vocabulary of a run.

    Args:
      split: The whole training split.
      max_length: The number of ids to which captions are cut, see `load_vocabulary`.
      path: The path of a vocabulary; '' builds one from the captions.
      min_count: The least number of times that a word of a built vocabulary occurs.

    Raises:
      UserError: If it cannot be read, or the split has vectors of tokens, which come with their own.
    """
    if split.token_vectors is None:
        return load_vocabulary(path, max_length) if path else Vocabulary.build(split.captions, min_count)
    if path:
        raise UserError(
            f"config key 'vocabulary.path' is '{path}', but vectors of tokens come with the vocabulary of their "
            "encoder ('data.token_vectors'): set it to ''"
        )
    return split.token_vectors.vocabulary


SECTIONS = {
    'data': DATA,
    'scene_graphs': LOADER,
    'vocabulary': Section(function=make_vocabulary, takes=('split', 'max_length')),
}


def load_scene_graphs(graphs: Mapping[str, Any], split: Split) -> Sequence[CaptionGraph] | None:
    """Loads the scene graphs of a config: dict(source='scene_graphs.rules') -> T graphs; None for source ''."""
    load = bind(LOADER, graphs, 'scene_graphs')
    return load and load(split)
