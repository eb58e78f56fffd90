"""Exact search agrees with a full sort in numpy, on one device and on several."""

import subprocess
import sys

import numpy as np
import pytest

from jitm.errors import UserError
from jitm.serving import search
from jitm.serving.search import VectorSearch, rank
from tests.conftest import ROOT, several_devices


def small_integers(count, size=3, seed=0):
    """Vectors whose products are exact and often equal."""
    return np.random.default_rng(seed).integers(-2, 3, (count, size)).astype(np.float32)


def check(count, queries, top_k):
    candidates = small_integers(count)
    asked = small_integers(queries, seed=1)
    found = VectorSearch(candidates).top(asked, top_k)
    assert len(found) == queries
    for hits, query in zip(found, asked, strict=True):
        scores = candidates @ query
        assert hits == rank(scores, top_k)
        assert [hit.index for hit in hits] == np.argsort(-scores, kind='stable')[:top_k].tolist()
        assert [hit.score for hit in hits] == scores[[hit.index for hit in hits]].tolist()


@pytest.mark.parametrize(
    ('count', 'queries', 'top_k'), [(1, 1, 1), (50, 3, 7), (50, 3, 99), (7, 20, 7), (900, 3, 7), (900, 3, 200)]
)
def test_search_finds_the_largest_products(count, queries, top_k):
    check(count, queries, top_k)


def test_blocks_of_queries_do_not_change_the_result(monkeypatch):
    monkeypatch.setattr(search, 'MAX_SCORES', 2000)
    check(900, 7, 5)


def check_equal_vectors(count):
    """A third of the vectors is the same one: more equal scores than a shortlist has places."""
    candidates = np.random.default_rng(0).random((count, 3), np.float32)
    candidates[2::3] = 1
    (hits,) = VectorSearch(candidates).top(np.ones((1, 3), np.float32), 5)
    assert [hit.index for hit in hits] == [2, 5, 8, 11, 14]


@pytest.mark.slow
def test_several_devices_find_the_same():
    cases = (50, 3, 7), (50, 3, 99), (2, 3, 1), (902, 3, 7)
    devices, env = several_devices(4)
    code = (
        f'import jax; assert jax.device_count() == {devices}; from tests.serving.test_search import *; '
        f'[check(*case) for case in {cases}]; check_equal_vectors(3001)'
    )
    result = subprocess.run([sys.executable, '-c', code], cwd=ROOT, env=env, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, '')


def test_numbers_of_results_are_positive_integers():
    for top_k in (0, -1, 2.5, None):
        with pytest.raises(UserError, match='it must be a positive integer'):
            VectorSearch(small_integers(3)).top(small_integers(1), top_k)
