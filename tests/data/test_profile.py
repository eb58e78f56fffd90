from math import comb

import numpy as np
import pytest

from jitm.data.profile import fits, make_profile, resize
from jitm.types import Profile, Segment

# As many captions of 5 to 40 tokens as a bell curve with a long tail has.
LENGTHS = np.round(np.random.default_rng(0).gamma(8, 1.7, 5000)).clip(5, 40).astype(int)

PROFILE = Profile((Segment(0, 4, 4), Segment(4, 8, 3), Segment(8, 12, 1)), tokens=31)


def quantile(rows, share):
    """The smallest number of captions that a binomial number does not exceed in 99.9 % of the batches."""
    below = 0
    n = -1
    while below < 0.999:
        n += 1
        below += comb(rows, n) * share**n * (1 - share) ** (rows - n)
    return n


@pytest.mark.parametrize(('rows', 'step'), [(128, 8), (64, 4), (24, 2)])
def test_bounds_are_quantiles_of_binomial_numbers_rounded_up(rows, step):
    bounds = []
    for start, stop, count in make_profile(LENGTHS, rows).segments:
        bounds += [count] * ((stop - start) // 4)
    want = [quantile(rows, np.mean(start < LENGTHS)) for start in range(0, 40, 4)]
    want = [min(rows, -(-n // step) * step) for n in want if n]
    assert bounds == want
    assert len(set(bounds)) > 3


def test_nearly_all_batches_fit_and_have_fewer_tokens():
    profile = make_profile(LENGTHS, 64)
    rng = np.random.default_rng(1)
    batches = [rng.choice(LENGTHS, (2, 64), replace=False) for _ in range(500)]
    assert np.mean([fits(profile, lengths) for lengths in batches]) > 0.98
    padded = np.mean(64 * 4 * np.ceil(np.max(batches, axis=-1) / 4))
    assert sum(count * (stop - start) for start, stop, count in profile.segments) < 0.8 * padded


def test_the_number_of_tokens_is_a_quantile_of_a_sum_rounded_up():
    tokens = make_profile(LENGTHS, 64).tokens
    sums = np.random.default_rng(1).choice(LENGTHS, (20000, 64)).sum(axis=1)
    assert tokens % 16 == 0
    assert np.mean(sums <= tokens) > 0.998
    assert np.mean(sums <= tokens - 16 * 3) < 0.998


def test_captions_of_one_length_or_few_captions_have_no_profile():
    assert make_profile(np.full(50, 7), 64) is None
    assert make_profile(LENGTHS, 2) is None


@pytest.mark.parametrize(
    ('lengths', 'fit'),
    [
        ([[4, 9, 5, 1], [1, 12, 8, 8]], True),
        ([[4, 9, 5, 1], [1, 12, 9, 8]], False),  # two of the second device are longer than 8
        ([[4, 9, 5, 1], [5, 12, 8, 8]], False),  # four of it are longer than 4
        ([[4, 13, 5, 1], [1, 12, 8, 8]], False),  # one is longer than the profile
        ([[4, 9, 5, 1], [4, 12, 8, 8]], False),  # those of the second device have 32 tokens
    ],
)
def test_each_device_stays_within_the_profile(lengths, fit):
    assert fits(PROFILE, np.array(lengths)) is fit


@pytest.mark.parametrize('length', [12, 15, 11])
def test_a_profile_ends_at_the_padded_length(length):
    assert resize(PROFILE, length) == Profile((Segment(0, 4, 4), Segment(4, 8, 3), Segment(8, length, 1)), 31)
