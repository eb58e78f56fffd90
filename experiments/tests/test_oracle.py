import numpy as np
import pytest

from experiments import oracle
from jitm.data import scenes
from jitm.errors import UserError


@pytest.fixture(scope='module')
def split():
    return scenes.load('dev', dev_images=40)


def test_pairs_are_true_where_the_statement_holds(split):
    found = oracle.true_pairs(split, np.arange(40)[:, None], np.arange(200))
    want = [[scenes.holds(statement, graph) for statement in split.statements] for graph in split.graphs]
    np.testing.assert_array_equal(found, want)
    assert found[split.image_of_text, np.arange(200)].all()
    assert found.sum() > 200


def test_lists_without_some_items_keep_the_order_and_repeat_the_rest():
    lists, left_out = np.array([[7, 3, 5, 9], [4, 8, 6, 2]]), np.array([[0, 1, 0, 0], [1, 0, 1, 1]], bool)
    np.testing.assert_array_equal(oracle.without(lists, left_out, 3), [[7, 5, 9], [8, 8, 8]])
    with pytest.raises(UserError, match='1 lists have true pairs only: mine longer ones'):
        oracle.without(lists, left_out | np.array([[False], [True]]), 3)


def test_true_pairs_are_no_candidates(split):
    true = oracle.true_pairs(split, np.arange(40)[:, None], np.arange(200)).astype(np.float32)
    assert oracle.rsum_among_false(true, split) == 600
    assert oracle.rsum_among_false(1 - true, split) == 0
