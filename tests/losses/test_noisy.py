"""Losses for noisy captions, by hand."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm.losses import noisy
from tests.losses import formulas


def test_a_certain_mistake_has_a_gradient():
    scores = jnp.array([[0.0, 2.0, 0.1]])
    positives = np.eye(1, 3, dtype=bool)
    loss = partial(noisy.complementary_contrastive, positives=positives, temperature=0.05)
    value, gradient = jax.value_and_grad(lambda s: loss(s)[0])(scores)
    # 1 - P of the second candidate is exp(-40) + exp(-38), which float32 cannot subtract from 1, and clips at 1e-10.
    assert value == pytest.approx(-math.log(1e-10), rel=1e-5)
    value, gradient = jax.value_and_grad(lambda s: loss(s)[0])(scores.at[0, 1].set(0.95))
    assert value == pytest.approx(-math.log(math.exp(-19) + math.exp(-17)), rel=1e-4)
    assert gradient[0, 1] == pytest.approx(1 / 0.05, rel=1e-3)


@pytest.mark.parametrize(
    ('top', 'temperature'), [(-1, 0.1), (0.5, 0.1), (1, 0.02), (2.5, 0.1), (6, 0.02), (50, 0.1), (50, 0.02)]
)
def test_evidence_of_any_score_in_float32(top, temperature, monkeypatch):
    """Values and finite differences by mpmath, and up to exp(2500) by float64."""
    scores = np.random.default_rng(0).uniform(min(top / 2, top), max(top / 2, top), (1, 5))
    function = jax.value_and_grad(lambda s: noisy.evidential(s, np.eye(1, 5, dtype=bool), temperature=temperature)[0])
    value, gradient = jax.jit(function)(jnp.asarray(scores, jnp.float32))
    with jax.enable_x64(True):
        want, slopes = jax.jit(function)(jnp.asarray(np.float32(scores), float))
    assert value >= 0
    np.testing.assert_allclose(value, want, rtol=1e-5)
    np.testing.assert_allclose(gradient, slopes, atol=1e-4 * np.abs(slopes).max())
    if top / temperature <= 500:
        import mpmath as mp

        for name, of_mpmath in (('exp', mp.exp), ('log_gamma', mp.loggamma), ('digamma', mp.digamma)):
            monkeypatch.setattr(formulas, name, of_mpmath)
        own, *others = map(mp.mpf, map(float, np.float32(scores[0])))
        with mp.workdps(50 + int(top / temperature)):
            by_mpmath = partial(formulas.evidential, temperature=temperature)
            np.testing.assert_allclose(float(want), float(by_mpmath(formulas.Row([own], others))), rtol=1e-9)
            slope = mp.diff(lambda s: by_mpmath(formulas.Row([own], [s, *others[1:]])), others[0])
            np.testing.assert_allclose(float(slopes[0, 1]), float(slope), rtol=1e-7)
