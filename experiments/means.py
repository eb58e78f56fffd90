"""Recall of the mean of the scores of two models, which is the control of models that train together.

    python -m experiments flickr8k mean_sum_max --small --seeds 0 1 2 --again
    python -m experiments means mean_sum_max --small --json docs/evaluations.jsonl            # two seeds
    python -m experiments means nine_sgr nine_saf --small --json docs/evaluations.jsonl       # two models of a seed

The scores are those that `jitm eval --save_sims` wrote.
"""

import argparse
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.results import Row
from experiments import catalog
from jitm.errors import UserError
from jitm.metrics import retrieval_metrics
from jitm.pages.tables import mean_and_deviation
from jitm.report.groups import read_run_log
from jitm.report.matrices import Matrix, read_matrices, saved_sims

COLUMNS = {'R@1 i2t': 'i2t/recall@1', 'R@1 t2i': 't2i/recall@1', 'rsum': 'rsum'}


def row(label: str, parts: Sequence[Sequence[Matrix]]) -> Row:
    """Returns the recalls of means of scores [I, T], averaged over the parts.

    Args:
      label: The name of the row.
      parts: The matrices of each mean.
    """
    evaluated = [
        retrieval_metrics(np.mean([matrix.sims for matrix in part], axis=0), part[0].image_of_text) for part in parts
    ]
    return {'scores': label} | {
        column: mean_and_deviation([metrics[metric] for metrics in evaluated]) for column, metric in COLUMNS.items()
    }


def matrices(names: Sequence[str], seed: int, folder: Path) -> Sequence[Matrix]:
    """Returns the scores of experiments for a seed; none unless those of all of them are saved.

    Args:
      names: The experiments.
      seed: The seed.
      folder: The folder of the run directories.

    Raises:
      UserError: If the scores are damaged, or of different images.
    """
    runs = [catalog.scored(catalog.directory(folder, name, seed), name) for name in names]
    if not all((run / 'config.json').exists() for run in runs):
        return ()
    splits = [catalog.EXPERIMENTS[name].final or 'dev' for name in names]
    paths = [saved_sims(read_run_log(run), split) for run, split in zip(runs, splits, strict=True)]
    return read_matrices(paths) if all(path.exists() for path in paths) else ()


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.add_argument(
        'names',
        nargs='+',
        metavar='NAME',
        type=catalog.known,
        help='an experiment with two seeds, or several experiments',
    )
    catalog.add_run_flags(parser)


def run(args: argparse.Namespace) -> Iterator[Row]:
    """Yields the recalls of each experiment over its seeds, and those of the mean.

    Raises:
      UserError: If there are no scores to be averaged, or they are damaged.
    """
    folder = catalog.folder_of(args)
    saved = [*filter(None, (matrices(args.names, seed, folder) for seed in args.seeds))]
    by_name = list(zip(*saved, strict=True))
    means = saved if len(by_name) > 1 else [pair for seeds in by_name for pair in itertools.combinations(seeds, 2)]
    if not means:
        names = ', '.join(args.names)
        raise UserError(f'{folder} has scores of {len(saved)} seeds of {names}: train them with --again')
    for name, seeds in zip(args.names, by_name, strict=True):
        yield row(f'`{name}`', [[matrix] for matrix in seeds])
    yield row('mean of two seeds' if len(by_name) == 1 else 'mean of these', means)
