"""Cross-attention models: what bounds their memory, their attention, special cases, and arguments that are refused.

Scores and gradients are compared with PyTorch in tests/parity.
"""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm.types import Elements
from tests.support.matchers import DIM, MATCHERS, compiled, outputs


def apply(model, variables, images, texts, method='similarity'):
    return jax.jit(lambda *sides: model.apply(variables, *sides, method=method))(images, texts)


def imram(direction, steps=3):
    """An IMRAM, and variables with both memories."""
    _, variables, _ = compiled('imram_both')
    return MATCHERS['imram_both'].clone(direction=direction, steps=steps), variables


@pytest.mark.slow
def test_attention_of_imram_is_a_mean_over_its_steps():
    images, texts = outputs('imram_both')['encoded']
    got, one = (apply(*imram('both', steps), images, texts, 'attention_block') for steps in (3, 1))
    for (direction, axis), mask in {('t2i', 3): texts.mask, ('i2t', 2): images.mask}.items():
        total = np.broadcast_to(mask[None] if axis == 3 else mask[:, None], got[direction].sum(axis).shape)
        np.testing.assert_allclose(got[direction].sum(axis), total, atol=1e-5)
        assert np.abs(got[direction] - one[direction]).max() > 1e-3


@pytest.mark.parametrize(('name', 'directions'), [('chan', ('t2i',)), ('maxsim_both', ('t2i', 'i2t'))])
def test_elements_are_scored_by_the_most_similar_one(name, directions):
    images, texts = jax.device_get(outputs(name)['encoded'])
    attention = apply(*compiled(name)[:2], images, texts, 'attention_block')
    for i, t in np.ndindex(outputs(name)['scores'].shape):
        products = texts.vectors[t][texts.mask[t]].astype(float) @ images.vectors[i][images.mask[i]].T
        want = np.mean([products.max(axis=1 if direction == 't2i' else 0).mean() for direction in directions])
        np.testing.assert_allclose(outputs(name)['scores'][i, t], want, atol=1e-6)
        chosen = np.flatnonzero(images.mask[i])[products.argmax(axis=1)]
        np.testing.assert_array_equal(attention['t2i'][i, t].argmax(axis=1)[texts.mask[t]], chosen)


@pytest.mark.parametrize('name', ['scan_t2i', 'imram_t2i', 'imram_both', 'imram_one_step', 'gsmn'])
def test_floats_per_pair_is_the_size_of_the_largest_array(name):
    model, variables = imram('i2t', steps=1) if name == 'imram_one_step' else compiled(name)[:2]
    images, texts = (Elements(np.ones((7, n, DIM), np.float32), np.ones((7, n), bool)) for n in (4, 6))
    traced = jax.make_jaxpr(lambda *sides: model.apply(variables, *sides, method='score_block'))(images, texts)
    sizes = [math.prod(map(int, shape.split(','))) for shape in re.findall(r'f32\[([\d,]+)\]', str(traced))]
    assert max(sizes) == 7 * 7 * model.floats_per_pair(images, texts)


@pytest.mark.slow
@pytest.mark.parametrize(
    'name', ['scan_t2i', 'scan_i2t', 'bfan_equal', 'bfan_prob', 'dbl', 'imram_both', 'gsmn', 'maxsim_both']
)
def test_zero_rows_have_no_nan(name):
    model, variables, _ = compiled(name)

    def total(*sides):
        return jnp.sum(model.apply(variables, *sides, method='similarity'))

    value = jax.jit(jax.value_and_grad(total, (0, 1), allow_int=True))
    for empty in (0, 1):
        sides = [*outputs(name)['encoded']]
        sides[empty] = sides[empty].replace(vectors=0 * sides[empty].vectors)
        result, gradients = value(*sides)
        assert np.isfinite(result)
        assert all(np.isfinite(gradient.vectors).all() for gradient in gradients)
