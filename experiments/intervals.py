"""Compares the runs of docs/results with their controls: intervals over images, differences over seeds.

    python -m experiments intervals           # from the rows in docs/flickr8k.jsonl
    python -m experiments intervals --small   # from docs/flickr8k_small.jsonl

Every difference of a table of the pages (`experiments.comments`) for which `python -m experiments flickr8k` has saved
scores gets rows in docs/flickr8k_intervals.jsonl, one for each seed: the difference in rsum, its interval of 95 % over
the images and their number. With three seeds or more there is one for all seeds, whose interval resamples seeds and
images. The table has a line for each pair: the differences of rsum over all seeds that both have.
"""

import argparse
import functools
import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import ROOT, Row
from experiments import catalog, comments
from experiments.catalog import read_runs
from jitm.files import replacing
from jitm.report.bootstrap import RESAMPLES, Hits, difference, hits, rsum
from jitm.report.groups import read_run_log
from jitm.report.matrices import Matrix, read_matrices, saved_sims

PATH = ROOT / 'docs' / 'flickr8k_intervals.jsonl'
WAYS = 'i2t', 't2i'
LEVEL, POWER = 0.05, 0.8  # two-sided test
MIN_SEEDS = 3  # two may be nearly equal by chance
ALL = 'all'  # the seed of rows over all seeds
KEYS = ('size', 'pair', 'seed', 'metric')  # a row replaces the one with the same values


def over_seeds_and_images(treatments: Sequence[Hits], controls: Sequence[Hits]) -> tuple[float, float]:
    """Returns the interval of the mean difference in rsum over seeds and images, both of which are resampled.

    Each resample draws seeds and images independently, with replacement (the pigeonhole bootstrap: Owen, 2007). With
    three seeds it can be too narrow; the t-test over the seeds is reported beside it.

    Args:
      treatments: The hits of the treatment by seed.
      controls: The hits of the control for the same seeds and images.
    """
    rng, texts = np.random.default_rng(0), controls[0].texts
    pairs = [*zip(treatments, controls, strict=True)]
    i2t, t2i = (np.stack([getattr(a, way) - getattr(b, way) for a, b in pairs]) for way in WAYS)  # [seeds, images]
    seeds = rng.integers(len(pairs), size=(RESAMPLES, len(pairs)))
    images = rng.integers(len(texts), size=(RESAMPLES, len(texts)))
    means = [rsum(i2t[s][:, n].mean(0), t2i[s][:, n].mean(0), texts[n]) for s, n in zip(seeds, images, strict=True)]
    low, high = np.quantile(means, [LEVEL / 2, 1 - LEVEL / 2])
    return float(low), float(high)


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
        if found := matrices((treatment, control), seed, folder):
            by_seed.append(tuple(hits([matrix]) for matrix in found))
            one = difference(*by_seed[-1])
            ends = {'difference': one.rsum, 'low': one.low, 'high': one.high}
            yield row | {'seed': seed} | ends | {'n': len(found[0].sims)}
    if len(by_seed) >= MIN_SEEDS:
        mean = statistics.mean(one.rsum() - other.rsum() for one, other in by_seed)
        low, high = over_seeds_and_images(*zip(*by_seed, strict=True))
        images = len(by_seed[0][0].texts)
        yield row | {'seed': ALL, 'difference': mean, 'low': low, 'high': high, 'n': images}


def read(path: Path) -> dict[tuple, dict[str, Any]]:
    """Returns the rows of a file by their `KEYS`; none if it does not exist."""
    lines = path.read_text(encoding='utf-8').splitlines() if path.exists() else ()
    return {tuple(row[key] for key in KEYS): row for row in map(json.loads, lines)}


def update(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Writes rows to a file, where they replace rows with the same `KEYS`; others are kept."""
    kept = read(path) | {tuple(row[key] for key in KEYS): row for row in rows}
    with replacing(path) as file:
        file.write(''.join(json.dumps(kept[key]) + '\n' for key in sorted(kept, key=str)).encode())


def differences(runs: Mapping[tuple[str, int], float], treatment: str, control: str) -> dict[int, float]:
    """Returns the differences of a metric by seed, for the seeds of both experiments."""
    first, second = (
        {seed: value for (name, seed), value in runs.items() if name == one} for one in (treatment, control)
    )
    return {seed: first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())}


@functools.cache
def _detectable_effect(n: int) -> float:
    """Returns the difference, in standard deviations, that the paired t-test of n differences shows with `POWER`.

    With a deviation that is s times the true one, the test statistic exceeds the critical value with a normal
    probability; s is chi with n - 1 degrees of freedom over the root of their number (Student, 1908).
    """
    from scipy import integrate, optimize, stats

    root, critical = math.sqrt(n - 1), stats.t.ppf(1 - LEVEL / 2, n - 1)

    def power(shift: float) -> float:
        def at(s: float) -> float:
            shown = stats.norm.cdf(shift - critical * s) + stats.norm.cdf(-shift - critical * s)
            return shown * root * stats.chi.pdf(root * s, n - 1)

        return integrate.quad(at, 0, math.inf)[0]

    return optimize.brentq(lambda shift: power(shift) - POWER, 0, 100) / math.sqrt(n)


def detectable(values: Sequence[float]) -> float:
    """Returns the smallest mean that as many differences of the same spread would detect; infinite for one."""
    return _detectable_effect(len(values)) * statistics.stdev(values) if len(values) > 1 else math.inf


def p_value(values: Sequence[float]) -> float:
    """Returns that of the paired t-test on the differences of two seeds or more."""
    from scipy import stats

    return float(stats.ttest_1samp(values, 0).pvalue) if statistics.stdev(values) else float(not any(values))


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
        if values := differences(runs, *pair):
            found, enough = [*values.values()], len(values) > 1
            yield {
                'pair': ' - '.join(pair),
                'seeds': ' '.join(map(str, values)),
                'mean': f'{statistics.mean(found):.1f}',
                'sd': f'{statistics.stdev(found):.1f}' if enough else '',
                'p': f'{p_value(found):.2g}' if enough else '',
            }
