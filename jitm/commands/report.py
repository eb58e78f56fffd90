"""`jitm report`, see `usage.report`."""

from collections.abc import Sequence
from pathlib import Path

from absl import flags

from jitm.commands import flags as shared
from jitm.errors import UserError, did_you_mean, require
from jitm.files.outputs import check_own, replacing_own
from jitm.metrics import evenly_spaced
from jitm.pages.figures import check_output, save
from jitm.report import curves, panels, training, validation
from jitm.report.bootstrap import hits_by_seed, mean_hits
from jitm.report.examples import read_examples
from jitm.report.groups import group_runs, read_groups, runs_of
from jitm.report.matrices import comparable, evaluated_on, read_evaluated, read_matrices
from jitm.report.page import headline, page
from jitm.report.rows import read_rows, read_runs, update_rows
from jitm.report.summary import summary

# Kind -> its table, and the curves of its figure.
FIGURES = {
    'training': (training.training, training.curves),
    'validation': (validation.validation, validation.curves),
}

# Kind -> the flags that it reads.
READ = {
    'summary': ('select', 'split', 'format', 'data_root'),
    **dict.fromkeys(FIGURES, ('output',)),
    'panels': ('output', 'queries', 'images', 'texts', 'data_root'),
}
READ_BY_PAGE = ('output', 'rows', 'split', 'queries', 'photos', 'data_root', 'unfinished')


def _check(kind: str | None, values: flags.FlagValues) -> None:
    """Raises a UserError for a flag that the kind, or the page if None, does not read."""
    for name in values:
        if values[name].present and name not in (READ_BY_PAGE if kind is None else READ[kind]):
            command = 'the page of jitm report' if kind is None else f'jitm report {kind}'
            raise UserError(f'{command} does not read --{name}; leave it out')


def _check_runs(words: Sequence[str]) -> None:
    """Raises a UserError unless all words are directories; a missing one may be a kind of report, mistyped."""
    for word in words:
        if word in READ:
            raise UserError(f"'{word}' is a kind of report; write it before the files")
        if not Path(word).is_dir():
            near = did_you_mean(word, READ)
            raise UserError(f"there is no run directory {word}, and '{word}' is not a kind of report{near}")


def _indices(flag: flags.Flag) -> list[int] | None:
    try:
        return None if flag.value is None else [int(word) for word in flag.value]
    except ValueError:
        raise UserError(f'--{flag.name} is {",".join(flag.value)}; give indices such as 3,17') from None


def _write_panels(files: Sequence[Path], output: Path, values: flags.FlagValues) -> None:
    matrices = read_matrices(files)
    split = panels.read_split(matrices, values.data_root)
    images = _indices(values['images'])
    texts = _indices(values['texts'])
    images = evenly_spaced(values.queries, split.num_images) if images is None else images
    texts = evenly_spaced(values.queries, split.num_texts) if texts is None else texts
    panels.write(matrices, split, images, texts, output)


def _write_page(workdirs: Sequence[Path], output: Path, values: flags.FlagValues) -> None:
    """Writes the page and the rows; nothing before all of it is known."""
    for module in ('jinja2', 'matplotlib'):
        require(module, extra='report')
    check_own(output)
    if values.rows and Path(values.rows).exists():
        read_rows(Path(values.rows))
    groups = read_groups(workdirs)
    for run in [] if values.unfinished else runs_of(groups):
        run.require_finished()
    evaluated = read_evaluated(groups, values.split, values.data_root)
    evaluated, incomparable = comparable(evaluated)
    photos = shared.photos_folder(values)
    seeds = {n: hits_by_seed(groups[n], matrices) for n, matrices in evaluated.items()}
    hits_of = {n: mean_hits(by_seed.values()) for n, by_seed in seeds.items()}
    examples = read_examples(
        groups, evaluated, hits_of, values.split, values.queries, data_root=values.data_root, photos=photos
    )
    text = page(
        groups,
        hits_of,
        seeds,
        examples,
        incomparable=incomparable,
        split_name=values.split,
        data_root=values.data_root,
        command=shared.repeated('report', values, [str(workdir) for workdir in workdirs]),
    )
    if values.rows:
        update_rows(groups, Path(values.rows))
        print(f'rows written to {values.rows}')
    with replacing_own(output) as file:
        file.write(text.encode())
    print('\n'.join([*headline(groups, hits_of, values.split), f'written to {output}']), end='')
    print(f' ({examples.hint})' if examples and examples.hint else '')


def _summary(files: Sequence[Path], values: flags.FlagValues) -> str:
    """Returns the summary of the validations, or with --split of the saved evaluations."""
    runs = read_runs(files, values.select)
    rows = next((path for path in files if path.is_file()), None)
    split = values.split if values['split'].present else ''
    if split and rows:
        raise UserError(f'{rows} has no evaluations on {split}; give the run directories instead')
    if split:
        runs = [evaluated_on(run, split, values.data_root) for run in runs]
    groups = group_runs(runs)
    evaluated = {} if rows else comparable(read_evaluated(groups, split, values.data_root))[0]
    seeds = {n: hits_by_seed(groups[n], matrices) for n, matrices in evaluated.items()}
    return summary(groups, seeds, values.format)


def main(values: flags.FlagValues, words: Sequence[str]) -> None:
    """Prints a report, or writes it to its file and draws its figure."""
    if not words:
        raise UserError(
            f'the kind of report is missing; give one of {", ".join(READ)}, or run directories alone for the page'
        )
    kind = words[0] if words[0] in READ else None
    files = [Path(word) for word in (words if kind is None else words[1:])]
    if kind is None:
        _check_runs(words)
    _check(kind, values)
    if not files:
        raise UserError(f'jitm report {kind} needs at least one file; jitm report --help says which')
    if kind == 'summary':
        print(_summary(files, values))
        return
    output = Path(values.output or {None: 'report.html', 'panels': 'panels.md'}.get(kind, f'{kind}.png'))
    if kind is None:
        _write_page(files, output, values)
        return
    if kind == 'panels':
        check_own(output)
        _write_panels(files, output, values)
    else:
        check_output(output)
        describe, read_curves = FIGURES[kind]
        groups = read_groups(files)
        print(describe(groups), end='\n\n')
        save(curves.draw(groups, [read_curves(group.runs) for group in groups]), output)
    print(f'written to {output}')
