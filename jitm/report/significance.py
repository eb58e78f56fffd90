"""The difference in rsum of two groups over their common seeds: interval, p, q, and the smallest that is detected."""

import functools
import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from jitm.report.bootstrap import DECIMALS, LEVEL, Hits, over_seeds_and_images

POWER = 0.8
MIN_SEEDS = 3  # two may be nearly equal by chance
COLUMNS = (f'{LEVEL:.0%} over seeds', 'p', 'q', 'detectable', f'{LEVEL:.0%} over seeds and images')


class Compared(NamedTuple):
    """Two groups that are compared.

    Attributes:
      differences: The first group's rsum minus the second's, for each seed that both have.
      interval: The ends of their mean's interval over seeds and images, see `two_way`; None if it is not known.
    """

    differences: Sequence[float]
    interval: tuple[float, float] | None


def p_value(differences: Sequence[float]) -> float:
    """Returns p of the two-sided paired t-test on the differences of two seeds or more (Student, 1908)."""
    from scipy import stats

    rounded = [round(difference, DECIMALS) for difference in differences]
    if not statistics.stdev(rounded):
        return 0.0 if any(rounded) else 1.0  # the limit as the spread vanishes
    return float(stats.ttest_1samp(rounded, 0).pvalue)


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Returns the ends of the interval of the mean difference of two seeds or more, by Student's t."""
    from scipy import stats

    mean = statistics.mean(differences)
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    half = float(stats.t.ppf((1 + LEVEL) / 2, len(differences) - 1)) * error
    return mean - half, mean + half


def adjust(p_values: Mapping[Hashable, float]) -> dict[Hashable, float]:
    """Returns q of each test: p adjusted for all of them (Benjamini and Hochberg, 1995)."""
    from scipy import stats

    if not p_values:
        return {}
    return dict(zip(p_values, map(float, stats.false_discovery_control([*p_values.values()])), strict=True))


@functools.cache
def _detectable_effect(n: int) -> float:
    """Returns the difference, in standard deviations, that the paired t-test of n differences shows with `POWER`.

    With a deviation that is s times the true one, the test statistic exceeds the critical value with a normal
    probability; s is chi with n - 1 degrees of freedom over the root of their number (Student, 1908).
    """
    from scipy import integrate, optimize, stats

    root = math.sqrt(n - 1)
    critical = stats.t.ppf((1 + LEVEL) / 2, n - 1)

    def power(shift: float) -> float:
        def at(s: float) -> float:
            shown = stats.norm.cdf(shift - critical * s) + stats.norm.cdf(-shift - critical * s)
            return shown * root * stats.chi.pdf(root * s, n - 1)

        return integrate.quad(at, 0, math.inf)[0]

    return optimize.brentq(lambda shift: power(shift) - POWER, 0, 100) / math.sqrt(n)


def detectable(differences: Sequence[float]) -> float:
    """Returns the smallest true mean that a test of as many differences of this spread shows with `POWER`."""
    if len(differences) < 2:
        return math.inf
    return _detectable_effect(len(differences)) * statistics.stdev(differences)


def two_way(first: Mapping[int, Hits], second: Mapping[int, Hits]) -> tuple[float, float] | None:
    """Returns the interval of `over_seeds_and_images`; None if two groups, by seed, share fewer than three seeds."""
    seeds = [seed for seed in first if seed in second]
    if len(seeds) < MIN_SEEDS:
        return None
    return over_seeds_and_images([first[seed] for seed in seeds], [second[seed] for seed in seeds])


def describe(pairs: Mapping[Hashable, Compared]) -> dict[Hashable, list[str]]:
    """Returns the cells of `COLUMNS` for the pairs of groups with two common seeds or more."""
    p_values = {key: p_value(pair.differences) for key, pair in pairs.items() if len(pair.differences) > 1}
    q_values = adjust(p_values)
    cells = {}
    for key, p in p_values.items():
        differences = pairs[key].differences
        cells[key] = [
            ends_cell(interval(differences)),
            probability(p),
            probability(q_values[key]),
            f'{detectable(differences):.1f}' if len(differences) >= MIN_SEEDS else '-',
            ends_cell(pairs[key].interval),
        ]
    return cells


def probability(value: float | None) -> str:
    """Returns a cell with a p or q, empty without one."""
    if value is None:
        return ''
    return '<0.001' if value < 0.001 else f'{value:.2g}'


def ends_cell(ends: tuple[float, float] | None) -> str:
    """Returns a cell with the ends of an interval, a dash without one."""
    return '{:+.1f} to {:+.1f}'.format(*ends) if ends else '-'
