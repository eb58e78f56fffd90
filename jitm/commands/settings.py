"""List the presets with their published results, or print the config of one.

    jitm settings                               the systems, and the words of their presets
    jitm settings vse f30k                      the presets that have every word, in their own name or the system's
    jitm settings --show vse:rvse,selhn,f30k    the changes of a preset: config key: default -> value

A published result is R@1 from image to text, R@1 from text to image and rsum, in percent, of a single model or of the
averaged scores of several.
"""

import itertools
import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from absl import flags

from jitm import configs
from jitm.commands import cli
from jitm.commands import flags as shared
from jitm.configs import common, reduced
from jitm.configs.tuning import TUNING
from jitm.errors import UserError, did_you_mean
from jitm.evaluation import published

ARGUMENTS = '[WORD...]'
HEADER = ('preset', 'system', 'protocol', 'i2t R@1', 't2i R@1', 'rsum', 'models', 'source')
METRICS = ('i2t/recall@1', 't2i/recall@1', 'rsum')
NEXT = """
jitm settings WORD...                     lists the presets that have every word
jitm settings --show vse:rvse,selhn,f30k  prints the changes of a preset"""
FLAGS = {'show': shared.text('Prints the config of this preset, as NAME:WORDS.')}


def main(values: flags.FlagValues, words: Sequence[str]) -> None:
    """Prints the systems, the presets with the given words, or the changes of one."""
    if values.show is None:
        print(table(select(presets(), words), published.load()) if words else f'{overview()}\n{NEXT}')
        return
    if words:
        raise UserError(f"--show prints one preset: leave out '{words[0]}', or join the words by commas")
    print('\n'.join([f'config key: default -> {values.show}', *show(cli.read_config(values.show))]))


def overview() -> str:
    """Returns a line for each system: the words of its presets; and one for the words of all."""
    lines = [(name, ' '.join(itertools.chain(*configs.tables(name)))) for name in configs.SYSTEMS]
    lines.append(('most of them', ' '.join(TUNING)))
    return '\n'.join(
        textwrap.fill(f'{name:<14}{words}', shared.WIDTH, subsequent_indent=' ' * 14).rstrip()
        for name, words in (('config', 'words'), *lines)
    )


def presets() -> published.Presets:
    """Returns every combination of words that a system may accept -> the keys of its rows, as `published.presets`."""
    named = {words_of(name): (name, keys) for name, keys in published.presets().items()}
    combinations = ((name, *words) for name in configs.SYSTEMS for words in itertools.product(*configs.tables(name)))
    return dict(named.get((name, *words), (f'{name}:{",".join(words)}', [])) for name, *words in combinations)


def words_of(preset: str) -> tuple[str, ...]:
    """Returns the system of a preset, and its word of each table."""
    name, _, words = preset.partition(':')
    return name, *common.parse(words, *configs.tables(name))


def is_accepted(preset: str) -> bool:
    """Returns whether the words of a preset go together."""
    try:
        configs.load(preset)
    except ValueError:
        return False
    return True


def show(config: Mapping[str, Any]) -> list[str]:
    """Returns the changes of a config and of its first stage, as `key: default -> value`."""
    from jitm.config.build import changes, flatten

    default = flatten(configs.load('default').to_dict())
    prefix = 'stages.first.'
    last = {key: value for key, value in flatten(config).items() if not key.startswith(prefix)}
    first = {key[len(prefix) :]: value for key, value in flatten(config).items() if key.startswith(prefix)}
    sections = {key.partition('.')[0] for key in first}  # the others belong to the last stage
    of_first = {key: value for key, value in default.items() if key.partition('.')[0] in sections}
    return changes(default, last) + [f'{prefix}{line}' for line in changes(of_first, first)]


def select(
    presets: Mapping[str, tuple[published.RowKey, ...]], words: Collection[str]
) -> dict[str, tuple[published.RowKey, ...]]:
    """Returns the presets that start and have every word, in their name or in the system's name in a published row.

    Words are compared without regard to case; 'VSE++' is the word vsepp.

    Raises:
      UserError: If no preset has a word, or none has them all.
    """
    options_of = {}
    for name, keys in presets.items():
        systems = [word for system, *_ in keys for word in re.findall(r'\w[\w+*-]*', system)]
        options_of[name] = {_plain(word) for word in [*re.split('[:,]', name), *systems]}
    for word in words:
        if word in TUNING:
            raise UserError(f"'{word}' may be added to most presets: leave it out, or show one with it by --show")
        if _plain(word) not in set().union(*options_of.values()):
            near = did_you_mean(_plain(word), set().union(*options_of.values()))
            raise UserError(f"no preset has the word '{word}'{near or '; jitm settings lists the words'}")
    chosen = {*map(_plain, words)}
    selected = {name: presets[name] for name, options in options_of.items() if chosen <= options and is_accepted(name)}
    if not selected:
        raise UserError(f'no preset has all of the words {", ".join(words)}; leave one out')
    return selected


def table(presets: Mapping[str, Sequence[published.RowKey]], rows: Sequence[published.Row]) -> str:
    """Returns a line for each published row of each preset, and then for the others, without columns that none has.

    A preset without a row has its kind instead: a reduced variant, or '-'.

    Args:
      presets: Name -> keys of its rows.
      rows: All published rows.
    """
    lines = [HEADER]
    for name, keys in sorted(presets.items(), key=lambda item: not item[1]):
        printed = [(key, row) for key in keys for row in published.find(key, rows)]
        file, _, words = name.partition(':')
        is_reduced = {*reduced.VARIANTS.get(file, ())} & {*words.split(',')}
        kind = 'reduced: small, for a CPU' if is_reduced else '-'
        lines += [_cells(name, key[2], row) for key, row in printed] or [(name, kind, *'-' * (len(HEADER) - 2))]
    columns = [column for column in zip('<<<>>><<', *lines, strict=True) if {*column[2:]} != {'-'}]
    padded = [[f'{cell:{side}{max(map(len, cells))}}' for cell in cells] for side, *cells in columns]
    return '\n'.join('  '.join(cells).rstrip() for cells in zip(*padded, strict=True))


def _plain(word: str) -> str:
    """Returns a word as the names of presets have it: vsepp for VSE++, tags_dc for TAGS-DC."""
    return word.lower().replace('+', 'p').replace('-', '_')


def _cells(name: str, source: str, row: published.Row) -> tuple[str, ...]:
    numbers = [f'{row.metrics[key]:.1f}' if key in row.metrics else '-' for key in METRICS]
    dataset = 'Flickr30K' if row.dataset == 'f30k' else row.dataset.upper()
    return name, row.system, f'{dataset} {row.protocol}', *numbers, published.MODELS[row.ensemble], source
