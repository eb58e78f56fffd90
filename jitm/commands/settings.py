"""`jitm settings`, see `usage.settings`."""

import ast
import itertools
import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from absl import flags

from jitm import configs
from jitm.commands import cli
from jitm.commands import flags as shared
from jitm.configs import common, reduced
from jitm.configs.meanings import MEANINGS
from jitm.configs.tuning import TUNING
from jitm.errors import UserError, did_you_mean
from jitm.evaluation import published

HEADER = ('preset', 'system', 'protocol', 'i2t R@1', 't2i R@1', 'rsum', 'models', 'source')
METRICS = ('i2t/recall@1', 't2i/recall@1', 'rsum')
NEXT = """
jitm settings vse                         says what the options of a config mean
jitm settings vse f30k                    lists the presets that have every option
jitm settings --show vse:rvse,selhn,f30k  prints the changes of a preset, with --full all keys"""


def main(values: flags.FlagValues, options: Sequence[str]) -> None:
    """Prints the systems, the options of one, the presets with the given options, or the changes of one."""
    if values.show is None:
        print(answer(options))
        return
    if options:
        raise UserError(f"--show prints one preset: leave out '{options[0]}', or join the options by commas")
    config = cli.read_config(values.show)
    lines = show_all(config) if values.full else [f'config key: default -> {values.show}', *show(config)]
    print('\n'.join(lines))


def answer(options: Sequence[str]) -> str:
    """Returns what is printed for some options: nothing, the name of a system, or options of presets.

    Raises:
      UserError: If no preset has an option, or none has them all.
    """
    if not options:
        return f'{overview()}\n{NEXT}'
    selected = select(presets(), options)
    if len(options) == 1 and _plain(options[0]) in configs.SYSTEMS:
        of_papers = {preset: keys for preset, keys in selected.items() if keys}
        rows = f'\n\nPublished:\n\n{table(of_papers, published.load())}' if of_papers else ''
        return describe(_plain(options[0])) + rows
    return table(selected, published.load())


def describe(system: str) -> str:
    """Returns what a system is, and what the options of its presets mean, a paragraph for each table."""
    summary = ast.get_docstring(ast.parse(configs.FILES[system].read_text(encoding='utf-8'))).partition('\n')[0]
    blocks = [_meanings(options) for options in configs.tables(system)]
    parts = [summary]
    if blocks:
        parts += ['One option of each block; the first is the default:', *blocks]
    tuning = [option for option in TUNING if is_accepted(f'{system}:{option}')]
    if tuning:
        parts += ['Any of these as well, if they go with the others:', _meanings(tuning)]
    return '\n\n'.join(parts)


def _meanings(options: Iterable[str]) -> str:
    """Returns a line for each option, with its meaning."""
    lines = [
        textwrap.fill(f'  {option:<20}{MEANINGS[option]}', shared.WIDTH, subsequent_indent=' ' * 22)
        for option in options
    ]
    return '\n'.join(lines)


def overview() -> str:
    """Returns a line for each system: the options of its presets; and one for the options of all."""
    lines = [(name, ' '.join(itertools.chain(*configs.tables(name)))) for name in configs.SYSTEMS]
    lines.append(('most of them', ' '.join(TUNING)))
    return '\n'.join(
        textwrap.fill(f'{name:<14}{options}', shared.WIDTH, subsequent_indent=' ' * 14).rstrip()
        for name, options in (('config', 'options'), *lines)
    )


def presets() -> published.Presets:
    """Returns every combination of options that a system may accept -> the keys of its rows, as `published.presets`."""
    named = {options_of_preset(name): (name, keys) for name, keys in published.presets().items()}
    combined = {}
    for name in configs.SYSTEMS:
        for options in itertools.product(*configs.tables(name)):
            preset, keys = named.get((name, *options), (f'{name}:{",".join(options)}', []))
            combined[preset] = keys
    return combined


def options_of_preset(preset: str) -> tuple[str, ...]:
    """Returns the system of a preset, and its option of each table."""
    name, _, options = preset.partition(':')
    return name, *common.parse(options, *configs.tables(name))


def is_accepted(preset: str) -> bool:
    """Returns whether the options of a preset go together."""
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


def show_all(config: Mapping[str, Any]) -> list[str]:
    """Returns every key of a config as `key: value`."""
    from jitm.config.build import listing
    from jitm.training.sections import complete  # imports jax, which the lists of presets do not need

    return listing(complete(config))


def select(
    presets: Mapping[str, tuple[published.RowKey, ...]], options: Collection[str]
) -> dict[str, tuple[published.RowKey, ...]]:
    """Returns the presets that start and have every option, in their name or in the system's name in a published row.

    Options are compared without regard to case; 'VSE++' is the option vsepp.

    Raises:
      UserError: If no preset has an option, or none has them all.
    """
    names_of = {}
    for name, keys in presets.items():
        systems = ' '.join(system for system, *_ in keys)
        names_of[name] = {*map(_plain, [*re.split('[:,]', name), *re.findall(r'\w[\w+*-]*', systems)])}
    for option in options:
        if ':' in option:
            raise UserError(f"'{option}' is a preset, not an option: jitm settings --show {option} prints it")
        if option in TUNING:
            raise UserError(f"'{option}' may be added to most presets: leave it out, or show one with it by --show")
        if _plain(option) not in set().union(*names_of.values()):
            near = did_you_mean(_plain(option), set().union(*names_of.values()))
            raise UserError(f"no preset has the option '{option}'{near or '; jitm settings lists the options'}")
    chosen = {*map(_plain, options)}
    selected = {name: presets[name] for name, names in names_of.items() if chosen <= names and is_accepted(name)}
    if not selected:
        raise UserError(f'no preset has all of the options {", ".join(options)}; leave one out')
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
        printed = []
        for key in keys:
            printed += [_cells(name, key[2], row) for row in published.find(key, rows)]
        file, _, options = name.partition(':')
        is_reduced = {*reduced.VARIANTS.get(file, ())} & {*options.split(',')}
        kind = 'reduced: small, for a CPU' if is_reduced else '-'
        lines += printed or [(name, kind, *'-' * (len(HEADER) - 2))]
    columns = [column for column in zip('<<<>>><<', *lines, strict=True) if {*column[2:]} != {'-'}]
    padded = []
    for side, *cells in columns:
        width = max(map(len, cells))
        padded.append([f'{cell:{side}{width}}' for cell in cells])
    return '\n'.join('  '.join(cells).rstrip() for cells in zip(*padded, strict=True))


def _plain(option: str) -> str:
    """Returns an option as the names of presets have it: vsepp for VSE++, tags_dc for TAGS-DC."""
    return option.lower().replace('+', 'p').replace('-', '_')


def _cells(name: str, source: str, row: published.Row) -> tuple[str, ...]:
    numbers = [f'{row.metrics[key]:.1f}' if key in row.metrics else '-' for key in METRICS]
    dataset = 'Flickr30K' if row.dataset == 'f30k' else row.dataset.upper()
    return name, row.system, f'{dataset} {row.protocol}', *numbers, published.MODELS[row.ensemble], source
