"""List the settings of configs/ with their published results.

jitm settings             all settings
jitm settings vse f30k    those of configs/vse.py on Flickr30K: every word must be in the name

A published result is R@1 from image to text, R@1 from text to image and rsum, in percent, of a single model or of the
averaged scores of several.
"""

import importlib
import pkgutil
from collections.abc import Collection, Sequence

from absl import flags

from jitm.errors import UserError, did_you_mean
from jitm.evaluation import published

ARGUMENTS = '[WORD...]'
HEADER = ('setting', 'system', 'protocol', 'i2t R@1', 't2i R@1', 'rsum', 'models', 'source')
METRICS = ('i2t/recall@1', 't2i/recall@1', 'rsum')

# The key of published rows, as `SETTINGS` of a config file has it: system, data set, source and, if these do not
# determine one encoder, the backbone.
RowKey = tuple[str, ...]


def define_flags(values: flags.FlagValues) -> None:
    """Defines no flags."""


def main(values: flags.FlagValues, words: Sequence[str]) -> None:
    """Prints the settings with the given words."""
    del values
    print(table(select(all_settings(), words), published.load()))


def all_settings() -> dict[str, tuple[RowKey, ...]]:
    """Returns `configs/FILE.py:WORDS` -> the keys of its published rows, for every setting of configs/."""
    settings = {}
    for module in pkgutil.iter_modules(importlib.import_module('configs').__path__):
        keys = getattr(importlib.import_module(f'configs.{module.name}'), 'SETTINGS', {})
        settings |= {f'configs/{module.name}.py:{words}'.rstrip(':'): rows for words, rows in keys.items()}
    return settings


def select(settings: dict[str, tuple[RowKey, ...]], words: Collection[str]) -> dict[str, tuple[RowKey, ...]]:
    """Returns the settings whose file or setting has every word.

    Raises:
      UserError: if no setting has a word, or none has them all.
    """
    known = {word for name in settings for word in _words(name)}
    for word in words:
        if word not in known:
            near = did_you_mean(word, known)
            raise UserError(f"no setting has the word '{word}'{near}")
    selected = {name: keys for name, keys in settings.items() if _words(name).issuperset(words)}
    if not selected:
        raise UserError(f'no setting has all of the words {", ".join(words)}; leave one out')
    return selected


def find_rows(key: RowKey, rows: Sequence[published.Row]) -> list[published.Row]:
    """Returns the published rows with a key: one, or one for each protocol."""
    system, dataset, source, *backbone = key
    return [
        row
        for row in rows
        if (row.system, row.dataset) == (system, dataset) and source in row.sources and backbone in ([], [row.backbone])
    ]


def table(settings: dict[str, tuple[RowKey, ...]], rows: Sequence[published.Row]) -> str:
    """Returns a line for each published row of each setting; '-' where nothing is published.

    Args:
      settings: name -> keys of its rows.
      rows: all published rows.
    """
    lines = [HEADER]
    for name, keys in settings.items():
        found = [(key, row) for key in keys for row in find_rows(key, rows)]
        lines += [_cells(name, key[2], row) for key, row in found] or [(name, *'-' * (len(HEADER) - 1))]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    form = '  '.join(f'{{:{side}{width}}}' for side, width in zip('<<<>>><<', widths, strict=True))
    return '\n'.join(form.format(*cells).rstrip() for cells in lines)


def _words(name: str) -> set[str]:
    path, _, words = name.partition(':')
    return {path.removeprefix('configs/').removesuffix('.py'), *words.split(',')} - {''}


def _cells(name: str, source: str, row: published.Row) -> tuple[str, ...]:
    numbers = [f'{row.metrics[key]:.1f}' if key in row.metrics else '-' for key in METRICS]
    dataset = row.dataset.upper() if row.dataset == 'coco' else 'Flickr30K'
    return name, row.system, f'{dataset} {row.protocol}', *numbers, published.MODELS[row.ensemble], source
