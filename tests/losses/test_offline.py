import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm.errors import ArgumentError
from jitm.losses import offline, ranking
from tests.losses.test_formulas import CANDIDATES, QUERIES, random_case


def hinge(positive, negative, margin):
    return max(0.0, margin + negative - positive)


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


def directions(seed):
    """The scores of a batch, and of its pairs' S(i, tbar), S(ibar, t), S(ibar, tbar) and S(itilde, ttilde)."""
    rng = np.random.default_rng(seed)
    return rng.normal(scale=0.4, size=(CANDIDATES, CANDIDATES)), rng.normal(scale=0.4, size=(4, CANDIDATES))


def test_the_sum_of_both_directions_is_equation_5():
    s, (a, b, c, d) = directions(0)
    want = 0.0
    for n in range(len(s)):
        p = s[n, n]
        text = max(s[n, j] for j in range(len(s)) if j != n)
        image = max(s[i, n] for i in range(len(s)) if i != n)
        want += (1.5 - (a[n] - text) / 0.3) * hinge(p, text, 0.2)
        want += (1.5 - (b[n] - image) / 0.3) * hinge(p, image, 0.2)
        want += sum(hinge(p, score[n], 0) for score in (a, b, c, d))
    with jax.enable_x64(True):
        s, eye = jnp.asarray(s), jnp.eye(len(s), dtype=bool)
        i2t = offline.adaptive_offline_quintuplet(s, eye, offline_scores=a, offline_pair_scores=c)
        t2i = offline.adaptive_offline_quintuplet(s.T, eye, offline_scores=b, offline_pair_scores=d)
        np.testing.assert_allclose(i2t.sum() + t2i.sum(), want, rtol=1e-11)


def test_both_directions_of_the_online_quintuplet_have_each_pair_once():
    counted = set()
    for seed in range(5):
        s, (a, b, *_) = directions(seed)
        want = 0.0
        for n in range(len(s)):
            others = [m for m in range(len(s)) if m != n]
            tbar, ibar = max(others, key=lambda j: s[n, j]), max(others, key=lambda i: s[i, n])
            itilde, ttilde = tbar, ibar
            want += hinge(s[n, n], s[n, tbar], 0.2) + hinge(s[n, n], a[n], 0)
            want += hinge(s[n, n], s[ibar, n], 0.2) + hinge(s[n, n], b[n], 0)
            counted.add(ibar != tbar)
            if ibar != tbar:
                want += hinge(s[n, n], s[ibar, tbar], 0) + hinge(s[n, n], s[itilde, ttilde], 0)
        with jax.enable_x64(True):
            s, eye = jnp.asarray(s), jnp.eye(len(s), dtype=bool)
            i2t = offline.online_quintuplet(s, eye, offline_scores=a)
            t2i = offline.online_quintuplet(s.T, eye, offline_scores=b)
            np.testing.assert_allclose(i2t.sum() + t2i.sum(), want, rtol=1e-11)
    assert counted == {True, False}


def one_query(positive, online, off, pair, **keywords):
    """The value of `adaptive_offline_quintuplet`, its derivatives by S(i, t), S(i, t_on), S(i, t_off), S(pair)."""

    def loss(scores):
        arguments = {'offline_scores': scores[2:3], 'offline_pair_scores': scores[3:], **keywords}
        return offline.adaptive_offline_quintuplet(scores[None, :2], jnp.asarray([[True, False]]), **arguments)[0]

    value, gradient = jax.value_and_grad(loss)(jnp.asarray([positive, online, off, pair]))
    return float(value), gradient


@pytest.mark.parametrize('positive', [0.5, 0.9])
@pytest.mark.parametrize('online', [0.1, 0.6, 0.8])
@pytest.mark.parametrize('off', [0.3, 0.7])
@pytest.mark.parametrize('pair', [0.2, 0.65])
def test_the_gradient_is_equation_6(positive, online, off, pair):
    first, second, third = 0.2 - positive + online > 0, off > positive, pair > positive
    want = [
        ((off - online) / 0.3 - 1.5) * first - second - third,
        ((2 * online - positive - off) / 0.3 + 1.5 + 0.2 / 0.3) * first,
        ((positive - online) / 0.3 - 0.2 / 0.3) * first + second,
        third,
    ]
    with jax.enable_x64(True):
        np.testing.assert_allclose(one_query(positive, online, off, pair)[1], want, rtol=1e-11, atol=1e-14)


def test_a_weight_below_zero_makes_the_loss_negative():
    # the weight is 1.5-(.9-.3)/.3=-.5, of the hinge .2+.3-.4; offline .9-.4 and .1-.4<0. Without beta it is -(.4-.3)/.3
    np.testing.assert_allclose(one_query(0.4, 0.3, 0.9, 0.1)[0], 0.45, rtol=1e-6)
    np.testing.assert_allclose(one_query(0.4, 0.3, 0.4, 0.1, beta=0.0)[0], -0.1 / 3, rtol=1e-5)


def test_each_loss_is_a_special_case_of_the_next():
    off, pair = np.random.default_rng(3).normal(size=(2, QUERIES))
    case = [jnp.asarray(x) for x in random_case(3)]
    far = jnp.full(QUERIES, -9.0)
    hinges = ranking.max_of_hinges(*case, margin=0.2)
    triplet = offline.offline_triplet(*case, offline_scores=off)
    np.testing.assert_array_equal(offline.offline_triplet(*case, offline_scores=far), hinges)
    quintuplet = offline.offline_quintuplet(*case, offline_scores=off, offline_pair_scores=far)
    np.testing.assert_array_equal(quintuplet, triplet)
    both = {'offline_scores': off, 'offline_pair_scores': pair}
    adaptive = offline.adaptive_offline_quintuplet(*case, **both, alpha=1e30, beta=1)
    np.testing.assert_array_equal(adaptive, offline.offline_quintuplet(*case, **both))
