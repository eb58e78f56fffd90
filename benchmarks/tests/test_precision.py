"""The emulated products of a TPU, and the share of rankings that they change."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import precision


@pytest.mark.slow
@pytest.mark.parametrize(('chosen', 'square', 'slope'), [('default', 0, 0), ('high', 2, 1), ('highest', 2 + 2**-9, 1)])
def test_products_are_emulated(chosen, square, slope):
    x = np.full((1, 1), 1 + 2**-9, np.float32)  # 1 in bfloat16

    def product(x):
        return jnp.dot(x, x, precision=chosen)[0, 0], jax.lax.conv(x[None, None], x[None, None], (1, 1), 'SAME', chosen)

    with precision.emulated():
        for function in (lambda x: product(x)[0], lambda x: product(x)[1][0, 0, 0, 0]):
            value, gradient = jax.jit(jax.value_and_grad(function))(x)
            assert (value - 1) * 2**9 == square
            assert (gradient[0, 0] / 2 - 1) * 2**9 == slope


def test_share_of_changed_rankings(monkeypatch):
    monkeypatch.setattr(precision, 'MINED', 1)
    split = types.SimpleNamespace(image_of_text=np.array([0, 0, 1, 1]), num_images=2)
    sims = np.array([[0.9, 0.8, 0.3, 0.2], [0.1, 0.2, 0.9, 0.4]])
    other = np.array([[0.9, 0.8, 0.2, 0.3], [0.1, 0.2, 0.9, 0.4]])  # another order of the negatives of image 0
    one, two = precision.rankings(sims, split), precision.rankings(other, split)
    assert [round(precision.changed(one[name], two[name])) for name in one] == [0, 17, 0, 17]
