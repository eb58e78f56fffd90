"""The statistics of differences over seeds against SciPy, loops and simulations."""

import numpy as np
import pytest
from scipy import stats

from jitm.report.bootstrap import Hits, over_seeds_and_images
from jitm.report.significance import (
    COLUMNS,
    Compared,
    adjust,
    describe,
    detectable,
    interval,
    p_value,
    probability,
    two_way,
)

FIRST = np.array([283.1, 290.4, 279.9, 288.0])
SECOND = np.array([280.2, 286.5, 281.0, 284.7])


@pytest.mark.parametrize('n', [2, 3, 4])
def test_test_and_interval_are_those_of_scipy(n):
    expected = stats.ttest_rel(FIRST[:n], SECOND[:n])
    differences = [*(FIRST - SECOND)[:n]]
    assert p_value(differences) == pytest.approx(expected.pvalue)
    assert interval(differences) == pytest.approx(tuple(expected.confidence_interval(0.95)))


def test_differences_of_equal_runs_are_no_difference():
    assert p_value([0.0, 0.0, 0.0]) == 1
    assert p_value([2.0, 2.0, 2.0]) == 0
    assert p_value([1e-12, 0.0, -2e-12]) == 1  # of the last bit
    assert interval([2.0, 2.0]) == (2.0, 2.0)


def test_q_is_that_of_a_loop_over_ranks():
    """The smallest of p times tests by rank, over this rank and all larger ones."""
    p_values = {'a': 0.04, 'b': 0.001, 'c': 0.03, 'd': 0.8, 'e': 0.011}
    ordered = sorted(p_values.values())
    expected = {}
    for key, p in p_values.items():
        larger = range(ordered.index(p), len(ordered))
        expected[key] = min(ordered[rank] * len(ordered) / (rank + 1) for rank in larger)
    assert adjust(p_values) == pytest.approx(expected)
    assert adjust({}) == {}


@pytest.mark.parametrize('n', [2, 3, 8])
def test_detectable_differences_are_shown_in_80_percent_of_cases(n):
    rng = np.random.default_rng(0)
    spread = [*np.linspace(-1, 1, n)]
    mean = detectable(spread) / np.std(spread, ddof=1)
    values = mean + rng.normal(size=(20000, n))
    assert np.mean(stats.ttest_1samp(values, 0, axis=1).pvalue < 0.05) == pytest.approx(0.8, abs=0.01)


def test_one_difference_detects_nothing():
    assert detectable([3.0]) == np.inf


@pytest.mark.parametrize(('of_seeds', 'of_images'), [(20.0, 0.0), (0.0, 20.0), (15.0, 15.0)])
def test_both_seeds_and_images_widen_the_interval(of_seeds, of_images):
    """With many seeds and images the interval is that of the normal approximation."""
    count, rng = 40, np.random.default_rng(0)
    seeds, images = (spread * rng.normal(size=count) for spread in (of_seeds, of_images))
    zero = np.zeros(count)
    treatments = [Hits(seed + images, zero, np.ones(count)) for seed in seeds]
    low, high = over_seeds_and_images(treatments, [Hits(zero, zero, np.ones(count))] * count)
    expected = 2 * 1.96 * np.sqrt((np.var(seeds) + np.var(images)) / count)
    assert high - low == pytest.approx(expected, rel=0.15)
    assert (low + high) / 2 == pytest.approx(seeds.mean() + images.mean(), abs=0.1 * expected)


def test_cells_of_pairs_with_two_seeds_or_more():
    three = [1.0, 2.0, 4.5]
    cells = describe({'a': Compared(three, (0.5, 4.25)), 'b': Compared([2.0, -1.0], None), 'c': Compared([5.0], None)})
    assert cells.keys() == {'a', 'b'}
    p_values = {'a': stats.ttest_1samp(three, 0).pvalue, 'b': stats.ttest_1samp([2.0, -1.0], 0).pvalue}
    q_values = stats.false_discovery_control([*p_values.values()])
    low, high = stats.ttest_1samp(three, 0).confidence_interval()
    shown = dict(zip(COLUMNS, cells['a'], strict=True))
    assert shown == {
        '95% over seeds': f'{low:+.1f} to {high:+.1f}',
        'p': f'{p_values["a"]:.2g}',
        'q': f'{q_values[0]:.2g}',
        'detectable': f'{detectable(three):.1f}',
        '95% over seeds and images': '+0.5 to +4.2',
    }
    assert cells['b'][2:] == [f'{q_values[1]:.2g}', '-', '-']
    assert describe({'c': Compared([5.0], None)}) == {}
    assert [probability(value) for value in (None, 0.0002, 0.0251, 1.0)] == ['', '<0.001', '0.025', '1']


def test_fewer_than_three_common_seeds_have_no_interval_over_both():
    rng = np.random.default_rng(0)
    first, second = (
        {seed: Hits(*rng.normal(size=(2, 5)), np.ones(5)) for seed in seeds} for seeds in ((0, 1, 2, 3), (4, 2, 1, 0))
    )
    expected = over_seeds_and_images([first[n] for n in range(3)], [second[n] for n in range(3)])
    assert two_way(first, second) == expected
    del second[0]
    assert two_way(first, second) is None
