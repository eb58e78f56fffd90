"""Compares the runs of docs/results with their controls: intervals over images, differences over seeds.

    python -m experiments intervals           # from the rows in docs/flickr8k.jsonl
    python -m experiments intervals --small   # from docs/flickr8k_small.jsonl

Every difference of a table of the pages (`experiments.comments`) whose runs keep their hits (`experiments.row_hits`)
gets rows in docs/flickr8k_intervals.jsonl, one for each seed: the difference in rsum, its interval of 95 % over the
images and their number. With three seeds or more there is one for all seeds, whose interval resamples seeds and images.
The table has a line for each pair: the differences of rsum over all seeds that both have.
"""

import argparse
import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import ROOT, Row
from experiments import catalog, comments, row_hits
from experiments.catalog import read_runs
from experiments.comments import Runs
from jitm.files import replacing
from jitm.report.bootstrap import Hits, difference
from jitm.report.significance import detectable, p_value, two_way

PATH = ROOT / 'docs' / 'flickr8k_intervals.jsonl'
LEVEL = 0.05  # two-sided test
ALL = 'all'  # the seed of rows over all seeds
KEYS = ('size', 'pair', 'seed', 'metric')  # a row replaces the one with the same values


def rows_of(treatment: str, control: str, runs: Runs, size: str) -> Iterator[dict[str, Any]]:
    """Yields the rows of a pair for the seeds whose hits are kept, and one for all of them if these are enough.

    Args:
      treatment: An experiment.
      control: The one that it is compared with.
      runs: The rows of the runs.
      size: The stem of their file.
    """
    row = {'size': size, 'pair': f'{treatment} - {control}', 'metric': 'rsum'}
    first, second = (hits_by_seed(name, runs) for name in (treatment, control))
    seeds = sorted(first.keys() & second.keys())
    for seed in seeds:
        compared = difference(first[seed], second[seed])
        ends = {'difference': compared.rsum, 'low': compared.low, 'high': compared.high}
        yield row | {'seed': seed} | ends | {'n': len(first[seed].texts)}
    ends = two_way(first, second)
    if ends:
        mean = statistics.mean(first[seed].rsum() - second[seed].rsum() for seed in seeds)
        low, high = ends
        yield row | {'seed': ALL, 'difference': mean, 'low': low, 'high': high, 'n': len(first[seeds[0]].texts)}


def hits_by_seed(name: str, runs: Runs) -> dict[int, Hits]:
    """Returns the hits of an experiment by seed, for the runs whose rows keep them."""
    rows = {seed: row for (experiment, seed), row in runs.items() if experiment == name and 'hits' in row}
    return {seed: row_hits.decode(row['hits']) for seed, row in rows.items()}


def read(path: Path) -> dict[tuple, dict[str, Any]]:
    """Returns the rows of a file by their `KEYS`; none if it does not exist."""
    lines = path.read_text(encoding='utf-8').splitlines() if path.exists() else ()
    return {tuple(row[key] for key in KEYS): row for row in map(json.loads, lines)}


def update(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Writes rows to a file, where they replace rows with the same `KEYS`; others are kept."""
    updated = read(path) | {tuple(row[key] for key in KEYS): row for row in rows}
    with replacing(path) as file:
        file.write(''.join(json.dumps(updated[key]) + '\n' for key in sorted(updated, key=str)).encode())


def differences(runs: Mapping[tuple[str, int], float], treatment: str, control: str) -> dict[int, float]:
    """Returns the differences of a metric by seed, for the seeds of both experiments."""
    first, second = (
        {seed: value for (name, seed), value in runs.items() if name == experiment}
        for experiment in (treatment, control)
    )
    return {seed: first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())}


def verdict(compared: Sequence[tuple[Sequence[float], float | None, float | None]]) -> str:
    """Returns what some differences say of a claim that all of them are above 0.

    Args:
      compared: The differences by seed, the adjusted p, which is None if there are too few seeds, and the published
        difference; one that as many seeds would not detect leaves the claim open.
    """
    signs = set()
    for values, q, published in compared:
        if q is None or (q >= LEVEL and published is not None and published < detectable(values)):
            signs.add(None)
        else:
            signs.add(0 if q >= LEVEL else math.copysign(1, statistics.mean(values)))
    return {1: 'Confirmed', -1: 'Contradicted', 0: 'No difference'}.get(*signs, 'Open') if len(signs) == 1 else 'Open'


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    catalog.add_size_flag(parser)


def run(args: argparse.Namespace) -> Iterator[Row]:
    """Writes the intervals of all pairs whose hits are kept, and yields a line for each pair with rows."""
    size = catalog.size(args.small)
    pairs, runs = [*comments.differences(size)], read_runs(size)
    rows = [row for pair in pairs for row in rows_of(*pair, runs, size)]
    if rows:
        update(rows, PATH)
    rsums = {run: row['metrics']['rsum'] for run, row in runs.items()}
    for pair in pairs:
        by_seed = differences(rsums, *pair)
        if by_seed:
            values = [*by_seed.values()]
            enough = len(values) > 1
            yield {
                'pair': ' - '.join(pair),
                'seeds': ' '.join(map(str, by_seed)),
                'mean': f'{statistics.mean(values):.1f}',
                'sd': f'{statistics.stdev(values):.1f}' if enough else '',
                'p': f'{p_value(values):.2g}' if enough else '',
            }
