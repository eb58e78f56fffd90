"""Recall of the mean of the scores of two runs that differ in their seed, a control of models that train together.

    python -m experiments flickr8k mean_sum_max --small --seeds 0 1 2 --again
    python -m experiments means mean_sum_max --small --json docs/evaluations.jsonl

The scores are those that `jitm eval --save_sims` wrote.
"""

import argparse
import itertools
from collections.abc import Iterator

import numpy as np

from benchmarks.results import Row
from experiments import catalog, intervals
from jitm.errors import UserError
from jitm.metrics import retrieval_metrics
from jitm.pages.tables import mean_and_deviation

COLUMNS = {'R@1 i2t': 'i2t/recall@1', 'R@1 t2i': 't2i/recall@1', 'rsum': 'rsum'}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.add_argument('names', nargs='+', metavar='NAME', help='experiments')
    catalog.add_run_flags(parser)


def run(args: argparse.Namespace) -> Iterator[Row]:
    """Yields for each experiment the means over its runs alone, and over all pairs of them.

    Raises:
      UserError: If less than two runs of an experiment have scores, or scores are damaged.
    """
    folder = catalog.folder_of(args)
    for name in args.names:
        saved = [matrix for seed in args.seeds for matrix in intervals.matrices([name], seed, folder)]
        if len(saved) < 2:
            raise UserError(f'{folder} has scores of {len(saved)} seeds of {name}: train it with --again')
        for count, label in (1, 'one model'), (2, 'mean of two models'):
            found = [
                retrieval_metrics(np.mean([matrix.sims for matrix in parts], axis=0), saved[0].image_of_text)
                for parts in itertools.combinations(saved, count)
            ]
            yield {'experiment': f'`{name}`', 'scores': label} | {
                column: mean_and_deviation([one[metric] for one in found]) for column, metric in COLUMNS.items()
            }
