"""What a loop keeps for its gradient within a number of bytes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm.devices import recompute

ITEMS = 5
SIZE = 8
PRODUCTS = 2 * ITEMS * 4 * 3 * SIZE  # bytes: of 3 rows, the two products
KEPT = 3 * ITEMS * 4 * 3 * SIZE  # the cosine of each, and the sine of the first, which is multiplied again


def double(weights, rows):
    return jnp.sin(jnp.sin(rows @ weights) @ weights)


def gradient(num_bytes, function):
    """Traces the gradient of a loop over items to weights that all items share."""

    def loss(weights, items):
        one = recompute.recompute(lambda rows: function(weights, rows), ITEMS, items[0])
        return jnp.sum(jax.lax.map(one, items))

    return jax.grad(recompute.keep_within(num_bytes, loss))


INPUTS = np.full((SIZE, SIZE), 0.1, np.float32), np.random.default_rng(0).normal(size=(ITEMS, 3, SIZE))
INPUTS = tuple(x.astype(np.float32) for x in INPUTS)


@pytest.fixture(autouse=True)
def accelerator(monkeypatch):
    """Keeps as an accelerator does; the products have the shortest sums whose results are kept."""
    monkeypatch.setattr(recompute.policy, 'keeps_everything', lambda: True)
    monkeypatch.setattr(recompute, 'LONG_SUM', SIZE)


def test_a_cpu_keeps_products_alone(monkeypatch):
    monkeypatch.setattr(recompute.policy, 'keeps_everything', lambda: False)
    assert str(jax.make_jaxpr(gradient(KEPT, double))(*INPUTS)).count('remat') > 0


def test_results_of_short_sums_are_not_kept(monkeypatch):
    monkeypatch.setattr(recompute, 'LONG_SUM', SIZE + 1)
    assert str(jax.make_jaxpr(gradient(PRODUCTS, double))(*INPUTS)).count('= dot_general') == 7


@pytest.mark.parametrize(
    ('num_bytes', 'recomputes', 'products'),
    [(0, True, 7), (PRODUCTS - 1, True, 7), (PRODUCTS, True, 5), (KEPT - 1, True, 5), (KEPT, False, 5)],
)
def test_what_fits_is_kept(num_bytes, recomputes, products):
    function = gradient(num_bytes, double)
    jaxpr = str(jax.make_jaxpr(function)(*INPUTS))
    assert ('remat' in jaxpr) == recomputes
    assert jaxpr.count('= dot_general') == products
    np.testing.assert_allclose(function(*INPUTS), gradient(0, double)(*INPUTS), rtol=1e-5)


def test_an_inner_loop_keeps_what_fits_for_one_item():
    def inner(weights, rows):
        one = recompute.recompute(lambda row: double(weights, row), len(rows), rows[0])
        return jax.lax.map(one, rows)

    functions = [gradient(num_bytes, inner) for num_bytes in (0, KEPT // ITEMS, 2 * KEPT)]
    neither, one, both = (str(jax.make_jaxpr(function)(*INPUTS)).count('prevent_cse') for function in functions)
    assert neither > one > both == 0
    for function in functions:
        np.testing.assert_allclose(function(*INPUTS), gradient(0, double)(*INPUTS), rtol=1e-5)


def test_a_share_of_the_bytes():
    def halved(weights, rows):
        with recompute.keeping_share(0.5):
            return gradient_of_rows(weights, rows)

    def gradient_of_rows(weights, rows):
        return jax.lax.map(recompute.recompute(lambda row: double(weights, row), 3, rows[0]), rows)

    for num_bytes, recomputes in ((KEPT // ITEMS, True), (2 * KEPT // ITEMS, False)):
        loss = recompute.keep_within(num_bytes, lambda weights, rows: jnp.sum(halved(weights, rows)))
        assert ('remat' in str(jax.make_jaxpr(jax.grad(loss))(INPUTS[0], INPUTS[1][0]))) == recomputes


def test_the_budget_is_the_given_one_or_a_part_of_the_device(monkeypatch):
    assert recompute.device_budget(3) == 3 * 2**20
    assert recompute.device_budget(None) == recompute.DEFAULT
    monkeypatch.setattr(recompute.parallel, 'memory_bytes', lambda: 80)
    assert recompute.device_budget(None) == 20
