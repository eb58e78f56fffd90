import jax
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
    scores, positives, off = jnp.zeros((2, 3)), jnp.eye(2, 3, dtype=bool), jnp.zeros(2)
    assert offline.offline_triplet(scores, positives, offline_scores=off).shape == (2,)
    with pytest.raises(ArgumentError):
        offline.online_quintuplet(scores, positives, offline_scores=off)


SCORES = jnp.asarray([[0.5, 0.4, 0.1], [0.6, 0.7, 0.65], [0.9, 0.2, 0.3]])
EYE = jnp.eye(3, dtype=bool)
OFF, PAIR = jnp.asarray([0.6, 0.65, 0.35]), jnp.asarray([0.2, 0.8, 0.4])
BOTH = {'offline_scores': OFF, 'offline_pair_scores': PAIR}
BY_HAND = [
    # online .2+.4-.5, .2+.65-.7, .2+.9-.3; offline .6-.5, .65-.7<0, .35-.3
    (offline.offline_triplet, {'offline_scores': OFF}, [0.2, 0.15, 0.85]),
    # the pairs add .2-.5<0, .8-.7, .4-.3
    (offline.offline_quintuplet, BOTH, [0.2, 0.25, 0.95]),
    (offline.offline_quintuplet, {**BOTH, 'online_weight': 0.0}, [0.1, 0.1, 0.15]),
    # the weights are 1.5 less (.6-.4)/.3, (.65-.65)/.3 and (.35-.9)/.3
    (offline.adaptive_offline_quintuplet, BOTH, [0.1 * 5 / 6 + 0.1, 0.15 * 1.5 + 0.1, 0.8 * 10 / 3 + 0.15]),
    # the weights are 1.5 less (.5-.4)/.3, (.7-.65)/.3 and (.3-.9)/.3
    (
        offline.adaptive_offline_quintuplet,
        {**BOTH, 'weigh_by_positive': True},
        [0.1 * 7 / 6 + 0.1, 0.15 * 4 / 3 + 0.1, 0.8 * 3.5 + 0.15],
    ),
    # of 0 candidate 1 and query 2: scores .2 and .65 against .5; of 1 candidate 2 and query 0: .1 and .9 against .7;
    # of 2 candidate 0 and query 1: .6 and .4 against .3
    (offline.online_quintuplet, {'offline_scores': OFF}, [0.2 + 0.15 / 2, 0.15 + 0.2 / 2, 0.85 + (0.3 + 0.1) / 2]),
]


@pytest.mark.parametrize(('loss', 'keywords', 'want'), BY_HAND)
def test_by_hand(loss, keywords, want):
    np.testing.assert_allclose(loss(SCORES, EYE, **keywords), want, atol=1e-6)


def one_query(positive, online, off, pair, **keywords):
    """The value of `adaptive_offline_quintuplet`, its derivatives by S(i, t), S(i, t_on), S(i, t_off), S(pair)."""

    def loss(scores):
        arguments = {'offline_scores': scores[2:3], 'offline_pair_scores': scores[3:], **keywords}
        return offline.adaptive_offline_quintuplet(scores[None, :2], jnp.asarray([[True, False]]), **arguments)[0]

    value, gradient = jax.value_and_grad(loss)(jnp.asarray([positive, online, off, pair]))
    return float(value), gradient


def test_a_weight_below_zero_makes_the_loss_negative():
    # the weight is 1.5-(.9-.3)/.3=-.5, of the hinge .2+.3-.4; offline .9-.4 and .1-.4<0. Without beta it is -(.4-.3)/.3
    np.testing.assert_allclose(one_query(0.4, 0.3, 0.9, 0.1)[0], 0.45, rtol=1e-6)
    np.testing.assert_allclose(one_query(0.4, 0.3, 0.4, 0.1, beta=0.0)[0], -0.1 / 3, rtol=1e-5)
