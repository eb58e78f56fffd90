"""The data that a config names: splits, the relevance of captions, and scene graphs."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jitm import names
from jitm.config import bind, choose
from jitm.data.cider import Relevance
from jitm.data.scene_graphs.grammar import CaptionGraph
from jitm.data.splits import Split, sample_images
from jitm.errors import UserError
from jitm.hints import check_keys

PART_KEYS = ('train_share', 'train_seed')  # of the section `data` with any source, optional: see `sample_images`


def load_split(data: Mapping[str, Any], split: str, root: str | None = None) -> Split:
    """Loads a split of the data set of a config; of the training split the part that `train_share` names.

    The arguments and errors are those of `load_whole`.
    """
    whole = load_whole(data, split, root)
    return take_part(whole, data) if split == 'train' else whole


def take_part(train: Split, data: Mapping[str, Any]) -> Split:
    """Returns the part of a training split that the section `data` of a config names, all of it without a share.

    Raises:
      UserError: If the share or the seed is out of its range.
    """
    part = {key: data[key] for key in PART_KEYS if key in data}
    return bind(sample_images, part, where='data', later=('split',))(train) if part else train


def load_whole(data: Mapping[str, Any], split: str, root: str | None = None) -> Split:
    """Loads a split of the data set of a config: dict(source='precomp.load', ...) -> Split.

    Args:
      data: The section `data` of the config.
      split: The name of a split, such as 'dev'.
      root: The folder of the data, if it is not the config's `data.root`.

    Raises:
      UserError: If a root is given but the source reads no folder, or the data cannot be read.
    """
    if not isinstance(split, str) or split != os.path.basename(split):
        raise UserError(f"the split is '{split}'; give the name of one, such as dev, and its folder as data.root")
    if root is not None:
        if 'root' not in data:
            raise UserError(f"--data_root does not apply: the data source '{data['source']}' reads no folder")
        data = {**data, 'root': root}
    source, keywords = choose(data, 'source', where='data')
    keywords = {key: value for key, value in keywords.items() if key not in PART_KEYS}
    load = names.resolve('jitm.data', source, where='data.source')
    return bind(load, keywords, where='data', later=('split',))(split)


def load_relevance(relevance: Mapping[str, Any], split: Split) -> Relevance | None:
    """Loads the caption metric of a config: dict(source='cider.from_captions') -> Relevance; None for source ''."""
    load = source_of(relevance, 'relevance')
    return load and load(split)


def load_scene_graphs(graphs: Mapping[str, Any], split: Split) -> Sequence[CaptionGraph] | None:
    """Loads the scene graphs of a config: dict(source='scene_graphs.rules') -> T graphs; None for source ''."""
    load = source_of(graphs, 'scene_graphs')
    return load and load(split)


def source_of(section: Mapping[str, Any], where: str) -> Callable | None:
    """Returns the function `split -> data` of a sub-dict dict(source=, ...); None for source ''.

    Args:
      section: A section of the config.
      where: The key of the section.

    Raises:
      UserError: If the source or one of its arguments is unknown.
    """
    source, keywords = choose(section, 'source', where=where)
    if not source:
        check_keys(keywords, (), where=where)
        return None
    return bind(names.resolve('jitm.data', source, where=f'{where}.source'), keywords, where=where, later=('split',))
