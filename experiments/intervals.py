"""Compares the runs of docs/results with their controls: intervals over images, differences over seeds.

    python -m experiments intervals           # from the rows in docs/flickr8k.jsonl
    python -m experiments intervals --small   # from docs/flickr8k_small.jsonl

Every difference of a table of the pages (`experiments.comments`) for which `python -m experiments flickr8k` has saved
scores gets rows in docs/flickr8k_intervals.jsonl, one for each seed: the difference in rsum, its interval of 95 % over
the images and their number. With three seeds or more there is one for all seeds, whose interval resamples seeds and
images. The table has a line for each pair: the differences of rsum over all seeds that both have.
"""

import argparse
import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import ROOT, Row
from experiments import catalog, comments
from experiments.catalog import read_runs
from jitm.files import replacing
from jitm.report.bootstrap import difference, hits, over_seeds_and_images
from jitm.report.groups import read_run_log
from jitm.report.matrices import Matrix, read_matrices, saved_sims
from jitm.report.significance import MIN_SEEDS, detectable, p_value

PATH = ROOT / 'docs' / 'flickr8k_intervals.jsonl'
LEVEL = 0.05  # two-sided test
ALL = 'all'  # the seed of rows over all seeds
KEYS = ('size', 'pair', 'seed', 'metric')  # a row replaces the one with the same values


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


def rows_of(treatment: str, control: str, seeds: Iterable[int], size: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Yields the rows of a pair for the seeds whose scores are saved, and one for all of them if these are enough.

    Args:
      treatment: An experiment.
      control: The one that it is compared with.
      seeds: The seeds.
      size: The stem of the file of the runs' rows.
      folder: The folder of the run directories.

    Raises:
      UserError: If saved scores are damaged, or of different images.
    """
    row, by_seed = {'size': size, 'pair': f'{treatment} - {control}', 'metric': 'rsum'}, []
    for seed in seeds:
        if saved := matrices((treatment, control), seed, folder):
            by_seed.append(tuple(map(hits, saved)))
            compared = difference(*by_seed[-1])
            ends = {'difference': compared.rsum, 'low': compared.low, 'high': compared.high}
            yield row | {'seed': seed} | ends | {'n': len(saved[0].sims)}
    if len(by_seed) >= MIN_SEEDS:
        mean = statistics.mean(first.rsum() - second.rsum() for first, second in by_seed)
        low, high = over_seeds_and_images(*zip(*by_seed, strict=True))
        images = len(by_seed[0][0].texts)
        yield row | {'seed': ALL, 'difference': mean, 'low': low, 'high': high, 'n': images}


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
    catalog.add_run_flags(parser)


def run(args: argparse.Namespace) -> Iterator[Row]:
    """Writes the intervals of all pairs with saved scores, and yields a line for each pair with rows.

    Raises:
      UserError: If saved scores are damaged, or of different images.
    """
    size = catalog.size(args.small)
    folder, pairs = catalog.folder_of(args), [*comments.differences(size)]
    if rows := [row for pair in pairs for row in rows_of(*pair, args.seeds, size, folder)]:
        update(rows, PATH)
    runs = {run: row['metrics']['rsum'] for run, row in read_runs(size).items()}
    for pair in pairs:
        by_seed = differences(runs, *pair)
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
