"""Cross-attention models: what bounds their memory, their attention, special cases, and arguments that are refused.

Scores and gradients are compared with PyTorch in tests/parity.
"""

import math
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jitm.errors import UserError
from jitm.layers import alignment
from jitm.models import bfan, gsmn
from jitm.models.imram import IMRAM
from jitm.models.make import model_keys
from jitm.types import Elements
from tests.support.matchers import ATTENTION, DIM, MATCHERS, compiled, make_scan, make_sgraf, outputs

SIDES = {'embed_dim': DIM, 'image': nn.Dense(1), 'text': nn.Dense(1)}


def apply(model, variables, images, texts, method='similarity'):
    return jax.jit(lambda *sides: model.apply(variables, *sides, method=method))(images, texts)


def imram(direction, steps=3):
    """An IMRAM, and variables with both memories."""
    _, variables, _ = compiled('imram_both')
    return MATCHERS['imram_both'].clone(direction=direction, steps=steps), variables


@pytest.mark.slow
@pytest.mark.parametrize('direction', ['t2i', 'i2t'])
def test_imram_with_one_step_is_scan(direction):
    sides = outputs('imram_both')['encoded']
    for method in ('similarity', 'attention_block'):
        want = apply(make_scan(direction, 'Mean'), {}, *sides, method)
        chex.assert_trees_all_close(apply(*imram(direction, steps=1), *sides, method), want, rtol=1e-6)


@pytest.mark.slow
def test_attention_of_imram_is_a_mean_over_its_steps():
    images, texts = outputs('imram_both')['encoded']
    got, one = (apply(*imram('both', steps), images, texts, 'attention_block') for steps in (3, 1))
    for (direction, axis), mask in {('t2i', 3): texts.mask, ('i2t', 2): images.mask}.items():
        total = np.broadcast_to(mask[None] if axis == 3 else mask[:, None], got[direction].sum(axis).shape)
        np.testing.assert_allclose(got[direction].sum(axis), total, atol=1e-5)
        assert np.abs(got[direction] - one[direction]).max() > 1e-3


def most_similar(queries, context):
    """The mean over the valid rows of one item of their largest product with the valid rows of another, by a loop."""
    rows = queries.vectors[queries.mask].astype(float)
    return np.mean([max(context.vectors[context.mask].astype(float) @ row) for row in rows])


@pytest.mark.parametrize(('name', 'directions'), [('chan', ('t2i',)), ('maxsim_both', ('t2i', 'i2t'))])
def test_elements_are_scored_by_the_most_similar_one(name, directions):
    images, texts = jax.device_get(outputs(name)['encoded'])
    attention = apply(*compiled(name)[:2], images, texts, 'attention_block')
    for i, t in np.ndindex(outputs(name)['scores'].shape):
        image, text = jax.tree.map(lambda x: x[i], images), jax.tree.map(lambda x: x[t], texts)  # noqa: B023
        scores = {'t2i': most_similar(text, image), 'i2t': most_similar(image, text)}
        want = np.mean([scores[direction] for direction in directions])
        np.testing.assert_allclose(outputs(name)['scores'][i, t], want, atol=1e-6)
        chosen = np.argmax(np.where(image.mask, text.vectors @ image.vectors.T, -np.inf), axis=1)
        shown = np.argmax(attention['t2i'][i, t], axis=1)
        np.testing.assert_array_equal(shown[text.mask], chosen[text.mask])


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
    sides = outputs(name)['encoded']
    value = jax.jit(
        jax.value_and_grad(
            lambda *sides: jnp.sum(model.apply(variables, *sides, method='similarity')), (0, 1), allow_int=True
        )
    )
    for empty in (0, 1):
        given = [side.replace(vectors=(n != empty) * side.vectors) for n, side in enumerate(sides)]
        total, gradients = value(*given)
        assert np.isfinite(total)
        assert all(np.isfinite(gradient.vectors).all() for gradient in gradients)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('model', 'message'),
    [
        (make_scan('both', 'Mean'), r"'model.direction' is 'both'; use one of t2i, i2t"),
        (make_scan('t2i', 'Median'), r"'model.aggregation' is 'Median'; use one of LogSumExp"),
        (bfan.BFAN(**SIDES | ATTENTION, focal='hard'), r"'model.focal' is 'hard'; use one of equal, prob"),
        (IMRAM(**SIDES | ATTENTION, direction='text', steps=3), r"'model.direction' is 'text'; use one of both, t2i"),
        (gsmn.GSMN(**SIDES | ATTENTION, blocks=3), "'model.blocks' is 3, which does not divide embed_dim, 8"),
        (make_sgraf(alignment.Mean(), activation='relu'), r"'model.activation' is 'relu'; use one of sigmoid"),
        (
            make_sgraf(alignment.Mean()).clone(text_whole=None),
            "'model.image_whole' and text_whole must both be given, or neither",
        ),
    ],
)
def test_wrong_arguments_are_refused(model, message):
    with pytest.raises(UserError, match=message), model_keys():
        model.init(jax.random.key(0), *outputs('scan_t2i')['encoded'], method='similarity')
