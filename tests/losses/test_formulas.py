"""Every loss of docs/losses.md against its formula in float64, and what all losses have in common."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm import losses
from tests.losses.formulas import OF_QUERIES, OF_TEXTS, make_arrays, of_queries, of_texts
from tests.support.score_cases import CANDIDATES, QUERIES, ROWS, central_differences, random_masks

CASES = []
for name, (_, *variants) in (OF_QUERIES | OF_TEXTS).items():
    CASES += [(name, n) for n in range(len(variants))]


def stack(trees):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def queries(name):
    """Arrays and masks of ten batches, of which the last four are unusual."""
    masks = [random_masks(seed, positives_per_query=1 + seed % 3) for seed in range(10)]
    arrays = [make_arrays(name, (QUERIES, CANDIDATES), np.random.default_rng(seed)) for seed in range(10)]
    for positives, negatives in (batch.values() for batch in masks[6:8]):  # queries that lack some, or all
        positives[0] = False
        negatives[1] = False
        positives[2] = False
        negatives[2] = False
    for batch, mask in zip(arrays[6:8], masks[6:8], strict=True):
        ignored = ~(mask['positives'] | mask['negatives'])
        batch |= {key: np.where(ignored, 3 * x, x) if x.ndim == 2 else x for key, x in batch.items()}
    for batch, factor in zip(arrays[8:], (1, 0), strict=True):  # the target is the anchor, or all scores are 0
        batch |= {key: factor * batch['scores'] for key in batch if 'scores' in key and batch[key].ndim == 2}
    return stack(arrays), stack(masks)


def texts(name):
    """Logits, labels and masks of ten batches, each with a text without words; some probabilities are below 1e-10."""
    rng = np.random.default_rng(0)
    words = 2 if name == 'WoD' else 6
    mask = rng.random((10, 5, 4)) < 0.6
    mask[:, 0] = False
    mask[:, 1] = True
    return {'logits': rng.normal(0, 12, (10, 5, 4, words))}, {
        'labels': rng.integers(words, size=mask.shape),
        'mask': mask,
    }


@functools.cache
def parts(name, n):
    """The loss and the formula of one comparison, the values of a batch by loops, and the batches."""
    formula, *variants = (OF_QUERIES | OF_TEXTS)[name]
    loss, formula = (functools.partial(x, **variants[n]) for x in (getattr(losses, formula.__name__), formula))
    lift, inputs = (of_queries, queries) if name in OF_QUERIES else (of_texts, texts)
    return loss, functools.partial(lift, formula), inputs(name)


def values_and_gradients(loss, arrays, masks, numerical):
    """The values of a batch, and the gradients of their sum by all arrays, automatic and numerical."""

    def total(arrays):
        values = loss(**arrays, **masks)
        return values.sum(), values

    def difference(key):
        return central_differences(lambda x: total(arrays | {key: x})[0], arrays[key])

    (_, values), gradients = jax.value_and_grad(total, has_aux=True)(arrays)
    return values, gradients, {key: difference(key) for key in arrays} if numerical else None


def compute(loss, arrays, masks, numerical=False):
    batches = jax.vmap(functools.partial(values_and_gradients, loss, numerical=numerical))
    return jax.device_get(jax.jit(batches)(arrays, masks))


@pytest.fixture(params=CASES, ids=lambda case: f'{case[0]} {case[1]}')
def case(request):
    return request.param


def test_every_loss_is_compared():
    compared = {name: formula.__name__ for name, (formula, *_) in (OF_QUERIES | OF_TEXTS).items()}
    assert compared == {name: function.partition('.')[2] for name, function, *_ in ROWS}


def batch_of(n, *trees):
    return [jax.tree.map(lambda leaf: leaf[n], tree) for tree in trees]


def test_equals_the_formula_and_finite_differences(case):
    loss, formula, (arrays, masks) = parts(*case)
    usual = 8 if case[0] in OF_QUERIES else 10
    with jax.enable_x64(True):
        values, gradients, numerical = compute(loss, arrays, masks, numerical=True)
    assert values.dtype == np.float64
    for n in range(usual):
        batch, mask = batch_of(n, arrays, masks)
        np.testing.assert_allclose(values[n], formula(**batch, **mask), rtol=1e-9, atol=1e-12)
        for key, gradient in gradients.items():
            atol = 1e-6 * max(1, np.abs(numerical[key][n]).max())
            np.testing.assert_allclose(gradient[n], numerical[key][n], rtol=1e-5, atol=atol)


def test_float32_gradients_are_finite_and_masked(case):
    loss, formula, (arrays, masks) = parts(*case)
    arrays = jax.tree.map(np.float32, arrays)
    values, gradients, _ = compute(loss, arrays, masks)
    for n in range(6):
        batch, mask = batch_of(n, arrays, masks)
        np.testing.assert_allclose(values[n], formula(**batch, **mask), rtol=2e-3, atol=1e-4)
    assert all(np.isfinite(leaf).all() for leaf in (values, *gradients.values()))
    for n in (6, 7):
        batch, mask = batch_of(n, gradients, masks)
        if case[0] in OF_TEXTS:
            assert values[n, 0] == 0
            assert not batch['logits'][~mask['mask']].any()
        else:
            empty = [0] * (case[0] != 'DECL') + [1] * (not case[0].startswith(('Off', 'Onl', 'Adap', 'w/o'))) + [2]
            assert not values[n][empty].any()
            ignored = ~(mask['positives'] | mask['negatives'])
            ignored[empty] |= case[0] != 'OnlineQuin'  # whose pairs are of other queries
            assert not any(x[ignored if x.ndim == 2 else empty].any() for x in batch.values())


def test_dtypes_are_kept_and_inputs_checked(case):
    loss, _, stacked = parts(*case)
    arrays, masks = batch_of(0, *stacked)

    def shape_of(**changed):
        return jax.eval_shape(lambda inputs: loss(**inputs), arrays | masks | changed)

    with jax.enable_x64(True):
        for dtype in (jnp.float32, jnp.bfloat16):
            got = shape_of(**{key: x.astype(dtype) for key, x in arrays.items()})
            assert got == jax.ShapeDtypeStruct(next(iter(masks.values())).shape[:1], dtype)
    for key, x in (arrays | masks).items():
        if key != 'labels' or case[0] in OF_TEXTS:
            with pytest.raises(ValueError, match=r'^\w+ is .*; it must be '):
                shape_of(**{key: x[:, None] if x.ndim == 1 else x[:, 1:]})
        if x.dtype == bool and case[0] in OF_QUERIES:
            with pytest.raises(ValueError, match=f'^{key} is float32 .*; it must be bool'):
                shape_of(**{key: x.astype(np.float32)})


def test_negatives_are_by_default_all_that_are_not_positive():
    """All losses in one program, since each would be compiled for itself."""
    compared = {name: parts(name, 0) for name in OF_QUERIES}
    batches = {name: batch_of(0, *stacked) for name, (*_, stacked) in compared.items()}

    @jax.jit
    def values(batches):
        return {
            name: compared[name][0](**arrays, positives=masks['positives']) for name, (arrays, masks) in batches.items()
        }

    for name, got in values(batches).items():
        arrays, masks = batches[name]
        want = compared[name][1](**arrays, positives=masks['positives'])
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=1e-4, err_msg=name)
        one = {key: x[:1, :1] if x.ndim == 2 else x[:1] for key, x in arrays.items()}
        single = functools.partial(compared[name][0], positives=jnp.ones((1, 1), bool))
        assert jax.eval_shape(lambda arrays, single=single: single(**arrays), one).shape == (1,), name
