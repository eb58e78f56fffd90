import jax.numpy as jnp
import numpy as np
import pytest

from jitm.errors import ArgumentError
from jitm.losses import offline


def test_a_weight_is_a_number_or_one_per_query():
    inputs = {'offline_scores': OFF, 'offline_pair_scores': PAIR}
    got = offline.offline_quintuplet(SCORES, EYE, **inputs, online_weight=jnp.asarray([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(got, [0.1 + 0.1, 0.3 + 0.1, 2.4 + 0.15], rtol=1e-6)
    with pytest.raises(ArgumentError):
        offline.offline_quintuplet(SCORES, EYE, **inputs, online_weight=jnp.ones((3, 1)))


def test_only_pairs_of_the_batch_need_a_square_ranking():
    scores = jnp.zeros((2, 3))
    positives = jnp.eye(2, 3, dtype=bool)
    off = jnp.zeros(2)
    assert offline.offline_triplet(scores, positives, offline_scores=off).shape == (2,)
    with pytest.raises(ArgumentError):
        offline.online_quintuplet(scores, positives, offline_scores=off)


SCORES = jnp.asarray([[0.5, 0.4, 0.1], [0.6, 0.7, 0.65], [0.9, 0.2, 0.3]])
EYE = jnp.eye(3, dtype=bool)
OFF = jnp.asarray([0.6, 0.65, 0.35])
PAIR = jnp.asarray([0.2, 0.8, 0.4])
