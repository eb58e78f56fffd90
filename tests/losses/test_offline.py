from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from jitm.errors import ArgumentError
from jitm.losses import offline, ranking
from tests.losses.test_ranking import CANDIDATES, QUERIES, central_differences, hinge
from tests.losses.test_ranking import random_case as random_masks

# The formulas for query q of NumPy arrays as loops over Python floats, which are float64.


def split(scores, positives, negatives, q):
    """The score of the hardest positive, and those of the negatives by candidate."""
    row = dict(enumerate(scores[q].tolist()))
    own = [score for c, score in row.items() if positives[q, c]]
    return min(own) if own else None, {c: score for c, score in row.items() if negatives[q, c]}


def offline_triplet(scores, positives, negatives, q, off, *, online_margin=0.2, offline_margin=0.0):
    p, others = split(scores, positives, negatives, q)
    if p is None:
        return 0.0
    online = hinge(p, max(others.values()), online_margin) if others else 0.0
    return online + hinge(p, off[q], offline_margin)


def offline_quintuplet(
    scores, positives, negatives, q, off, pair, *, online_margin=0.2, offline_margin=0.0, online_weight=1.0
):
    p, others = split(scores, positives, negatives, q)
    if p is None:
        return 0.0
    online = hinge(p, max(others.values()), online_margin) if others else 0.0
    return online_weight * online + hinge(p, off[q], offline_margin) + hinge(p, pair[q], offline_margin)


def adaptive_offline_quintuplet(
    scores, positives, negatives, q, off, pair, *, alpha=0.3, beta=1.5, by_positive=False, **margins
):
    p, others = split(scores, positives, negatives, q)
    weight = 0.0
    if p is not None and others:
        weight = beta - ((p if by_positive else off[q]) - max(others.values())) / alpha
    return offline_quintuplet(scores, positives, negatives, q, off, pair, online_weight=weight, **margins)


def online_quintuplet(scores, positives, negatives, q, off, *, online_margin=0.2, offline_margin=0.0):
    margins = {'online_margin': online_margin, 'offline_margin': offline_margin}
    value = offline_triplet(scores, positives, negatives, q, off, **margins)
    p, across = split(scores, positives, negatives, q)
    _, down = split(scores.T, positives.T, negatives.T, q)
    if p is not None and across and down:
        j, i = max(across, key=across.get), max(down, key=down.get)
        value += sum(hinge(p, scores[x], offline_margin) / 2 for x in ((i, j), (j, i)) if negatives[x])
    return value


class Case(NamedTuple):
    loss: Callable
    oracle: Callable
    inputs: tuple[str, ...]
    keywords: dict[str, Any]
    oracle_keywords: dict[str, Any] | None = None


ONE, TWO = ('offline_scores',), ('offline_scores', 'offline_pair_scores')
MARGINS = {'online_margin': 0.5, 'offline_margin': 0.3}
ADAPTIVE = offline.adaptive_offline_quintuplet, adaptive_offline_quintuplet, TWO
CASES = {
    'offline_triplet': Case(offline.offline_triplet, offline_triplet, ONE, {}),
    'offline_triplet, other margins': Case(offline.offline_triplet, offline_triplet, ONE, MARGINS),
    'offline_quintuplet': Case(offline.offline_quintuplet, offline_quintuplet, TWO, {}),
    'offline_quintuplet, other margins': Case(offline.offline_quintuplet, offline_quintuplet, TWO, MARGINS),
    'offline_quintuplet, only offline': Case(
        offline.offline_quintuplet, offline_quintuplet, TWO, {'online_weight': 0.0}
    ),
    'adaptive_offline_quintuplet': Case(*ADAPTIVE, {}),
    'adaptive_offline_quintuplet, other constants': Case(*ADAPTIVE, {'alpha': 0.7, 'beta': 0.8, **MARGINS}),
    'adaptive_offline_quintuplet, by positive': Case(*ADAPTIVE, {'weigh_by_positive': True}, {'by_positive': True}),
    'online_quintuplet': Case(offline.online_quintuplet, online_quintuplet, ONE, {}),
    'online_quintuplet, other margins': Case(offline.online_quintuplet, online_quintuplet, ONE, MARGINS),
}


def loss_of(name):
    """The loss `(scores, positives, negatives, *inputs) -> [Q]`."""
    loss, _, inputs, keywords, _ = CASES[name]
    return lambda scores, positives, negatives, *values: loss(
        scores, positives, negatives, **dict(zip(inputs, values, strict=True)), **keywords
    )


def expected(name, *case):
    _, oracle, _, keywords, oracle_keywords = CASES[name]
    scores, positives, negatives, *inputs = case
    keywords = keywords if oracle_keywords is None else oracle_keywords
    return np.array([oracle(scores, positives, negatives, q, *inputs, **keywords) for q in range(len(scores))])


def random_case(name, seed, several=1):
    """Scores, positives, negatives and the inputs [Q] of a loss."""
    scores, positives, negatives = random_masks(seed, positives_per_query=several)
    inputs = np.random.default_rng(1000 + seed).normal(scale=0.7, size=(len(CASES[name].inputs), QUERIES))
    return scores, positives, negatives, *inputs


class LossesTest(chex.TestCase):
    @parameterized.product(name=list(CASES), several=[1, 3])
    def test_equals_the_formula_in_float64(self, name, several):
        with jax.enable_x64(True):
            for seed in range(10):
                case = random_case(name, seed, several)
                got = loss_of(name)(*map(jnp.asarray, case))
                assert got.dtype == jnp.float64
                np.testing.assert_allclose(got, expected(name, *case), rtol=1e-11, atol=1e-13)

    @parameterized.product(name=list(CASES), dtype=[jnp.float32, jnp.bfloat16])
    def test_keeps_the_dtype_of_the_scores(self, name, dtype):
        scores, positives, negatives, *inputs = random_case(name, 0)
        with jax.enable_x64(True):
            scores, *inputs = (jnp.asarray(x, dtype) for x in (scores, *inputs))
            assert loss_of(name)(scores, jnp.asarray(positives), jnp.asarray(negatives), *inputs).dtype == dtype

    @chex.variants(with_jit=True, without_jit=True, with_device=True)
    @parameterized.product(name=list(CASES))
    def test_variants_agree(self, name):
        case = random_case(name, 0)
        single = [x.astype(np.float32) if x.dtype == np.float64 else x for x in case]
        got = self.variant(loss_of(name))(*single)
        np.testing.assert_allclose(got, expected(name, *case), rtol=1e-5, atol=2e-6)

    @parameterized.product(name=list(CASES))
    def test_vmap_is_a_loop(self, name):
        cases = [[jnp.asarray(x) for x in random_case(name, seed)] for seed in range(4)]
        got = jax.vmap(loss_of(name))(*(jnp.stack(arrays) for arrays in zip(*cases, strict=True)))
        np.testing.assert_allclose(got, jnp.stack([loss_of(name)(*case) for case in cases]), rtol=1e-6)

    @parameterized.product(name=list(CASES))
    def test_gradient_is_the_numerical_one(self, name):
        with jax.enable_x64(True):
            for seed in range(3):
                case = [jnp.asarray(x) for x in random_case(name, seed, several=1 + seed % 2)]
                for place in (0, *range(3, len(case))):
                    loss = lambda x: loss_of(name)(*case[:place], x, *case[place + 1 :]).sum()  # noqa: B023, E731
                    want = central_differences(loss, case[place])
                    np.testing.assert_allclose(jax.grad(loss)(case[place]), want, atol=1e-6)

    @parameterized.product(name=list(CASES))
    def test_queries_without_positives_or_negatives(self, name):
        scores, positives, negatives, *inputs = random_case(name, 1)
        positives[0], negatives[1], positives[2], negatives[2] = False, False, False, False
        inputs = [np.abs(x) + scores.max() for x in inputs]
        margin = CASES[name].keywords.get('offline_margin', 0)
        offline_hinges = sum(margin + x[1] - scores[1][positives[1]].item() for x in inputs)
        case = [jnp.asarray(x) for x in (scores, positives, negatives, *inputs)]
        got = loss_of(name)(*case)
        np.testing.assert_array_equal(got[np.array([0, 2])], 0)
        np.testing.assert_allclose(got[1], offline_hinges, rtol=1e-5)
        np.testing.assert_allclose(got, expected(name, scores, positives, negatives, *inputs), rtol=1e-5, atol=2e-6)
        places = (0, *range(3, len(case)))
        for gradient in jax.grad(lambda *x: loss_of(name)(*x).sum(), argnums=places)(*case):
            assert np.isfinite(gradient).all()
            np.testing.assert_array_equal(gradient[np.array([0, 2])], 0)

    @parameterized.product(name=list(CASES))
    def test_the_negatives_are_by_default_all_that_are_not_positive(self, name):
        scores, positives, _, *inputs = map(jnp.asarray, random_case(name, 2))
        want = loss_of(name)(scores, positives, ~positives, *inputs)
        np.testing.assert_array_equal(loss_of(name)(scores, positives, None, *inputs), want)


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
BY_HAND = {
    # online .2+.4-.5, .2+.65-.7, .2+.9-.3; offline .6-.5, .65-.7<0, .35-.3
    'offline_triplet': [0.2, 0.15, 0.85],
    # the pairs add .2-.5<0, .8-.7, .4-.3
    'offline_quintuplet': [0.2, 0.25, 0.95],
    'offline_quintuplet, only offline': [0.1, 0.1, 0.15],
    # the weights are 1.5 less (.6-.4)/.3, (.65-.65)/.3 and (.35-.9)/.3
    'adaptive_offline_quintuplet': [0.1 * 5 / 6 + 0.1, 0.15 * 1.5 + 0.1, 0.8 * 10 / 3 + 0.15],
    # the weights are 1.5 less (.5-.4)/.3, (.7-.65)/.3 and (.3-.9)/.3
    'adaptive_offline_quintuplet, by positive': [0.1 * 7 / 6 + 0.1, 0.15 * 4 / 3 + 0.1, 0.8 * 3.5 + 0.15],
    # of 0 candidate 1 and query 2: scores .2 and .65 against .5; of 1 candidate 2 and query 0: .1 and .9 against .7;
    # of 2 candidate 0 and query 1: .6 and .4 against .3
    'online_quintuplet': [0.2 + 0.15 / 2, 0.15 + 0.2 / 2, 0.85 + (0.3 + 0.1) / 2],
}


@pytest.mark.parametrize('name', BY_HAND)
def test_by_hand(name):
    inputs = (OFF, PAIR)[: len(CASES[name].inputs)]
    np.testing.assert_allclose(loss_of(name)(SCORES, EYE, None, *inputs), BY_HAND[name], atol=1e-6)


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
    _, off, pair = random_case('offline_quintuplet', 3)[2:]
    scores, positives, negatives = map(jnp.asarray, random_masks(3))
    case = scores, positives, negatives
    far = jnp.full(QUERIES, -9.0)
    hinges = ranking.max_of_hinges(*case, margin=0.2)
    triplet = offline.offline_triplet(*case, offline_scores=off)
    np.testing.assert_array_equal(offline.offline_triplet(*case, offline_scores=far), hinges)
    quintuplet = offline.offline_quintuplet(*case, offline_scores=off, offline_pair_scores=far)
    np.testing.assert_array_equal(quintuplet, triplet)
    both = {'offline_scores': off, 'offline_pair_scores': pair}
    adaptive = offline.adaptive_offline_quintuplet(*case, **both, alpha=1e30, beta=1)
    np.testing.assert_array_equal(adaptive, offline.offline_quintuplet(*case, **both))
