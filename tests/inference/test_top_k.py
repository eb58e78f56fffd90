"""The highest scores against a full stable sort."""

import jax
import numpy as np
import pytest

from jitm.inference.top_k import group_size, highest


@pytest.mark.parametrize('group', [1, 3, 16])
@pytest.mark.parametrize(('count', 'top_k'), [(1, 1), (5, 5), (64, 1), (70, 3), (131, 40)])
def test_the_highest_scores_are_those_of_a_stable_sort(count, top_k, group):
    scores = np.random.default_rng(0).integers(-9, 9, (6, count)).astype(np.float32)
    best, columns = jax.jit(highest, static_argnums=(1, 2))(scores, top_k, group)
    order = np.argsort(-scores, axis=1, kind='stable')[:, :top_k]
    np.testing.assert_array_equal(columns, order)
    np.testing.assert_array_equal(best, np.take_along_axis(scores, order, axis=1))


def test_group_size_by_hand():
    assert [group_size(1000, top_k) for top_k in (1, 10, 60, 300)] == [16, 16, 4, 1]
