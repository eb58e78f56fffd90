import chex
import numpy as np
from jax.test_util import check_grads

from experiments.controls import relative_to_relevance, selected_by_anchor
from jitm.losses.anchored import relative_max
from jitm.losses.ranking import max_of_hinges

RNG = np.random.default_rng(0)
SCORES, ANCHOR = (RNG.uniform(-1, 1, (5, 5)).astype(np.float32) for _ in range(2))
POSITIVES = np.eye(5, dtype=bool)


def test_the_anchor_selects_and_the_scores_alone_are_the_hinge():
    found = selected_by_anchor(SCORES, POSITIVES, anchor_scores=ANCHOR, margin=0.2)
    for query, value in enumerate(found):
        others = [n for n in range(5) if n != query]
        n = max(others, key=lambda other: SCORES[query, other] - ANCHOR[query, other])
        assert np.isclose(value, max(0.2 + SCORES[query, n] - SCORES[query, query], 0))
    check_grads(
        lambda scores: selected_by_anchor(scores, POSITIVES, anchor_scores=ANCHOR, margin=2.0), (SCORES,), 1, ['rev']
    )


def test_an_anchor_without_differences_selects_as_max_of_hinges():
    constant = np.zeros_like(SCORES)
    found = selected_by_anchor(SCORES, POSITIVES, anchor_scores=constant, margin=0.2)
    chex.assert_trees_all_close(found, max_of_hinges(SCORES, POSITIVES, margin=0.2))


def test_a_relevance_is_an_anchor():
    found = relative_to_relevance(SCORES, POSITIVES, relevance=10 * ANCHOR, margin=0.3)
    chex.assert_trees_all_close(found, relative_max(SCORES, POSITIVES, anchor_scores=ANCHOR, margin=0.3), rtol=1e-5)
