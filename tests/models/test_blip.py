"""The published sizes of BLIP, and its two models; tests/importers has parity, test_matchers.py conformance."""

import jax
import numpy as np
import pytest

from jitm.errors import ArgumentError
from jitm.models.make import make_model
from jitm.types import Images, Texts
from tests.configs.settings import load
from tests.support.matchers import compiled, make_inputs

VOCABULARY = 30524


@pytest.mark.slow
@pytest.mark.parametrize(('size', 'count'), [('base', 223_744_258), ('large', 446_128_642)])
def test_published_sizes_have_the_published_number_of_parameters(size, count):
    """With the temperature, which the published folders lack."""
    model = make_model(load(f'blip:{size},f30k')['model'], VOCABULARY)
    inputs = Images(pixels=np.zeros((1, 384, 384, 3), np.uint8)), Texts(np.ones((1, 3), np.int32), np.full(1, 3))
    shapes = jax.eval_shape(model.init, jax.random.key(0), *inputs)
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == count + 1
    own = jax.eval_shape(model.reranker.init, jax.random.key(0), *inputs)
    shared = {tower: dict(shapes['params'][tower]) for tower in ('image', 'text')}
    for tower in shared.values():
        tower.pop('projection')
    assert own['params'] == shared | {'itm_head': shapes['params']['itm_head']}


@pytest.mark.slow
def test_first_piece_is_replaced_in_matching_only():
    (model, variables, _), (_, texts) = compiled('blip'), make_inputs()
    other = texts.replace(ids=texts.ids.copy())
    other.ids[:, 0] = 1 + texts.ids[:, 0] % 10

    def encode(model, texts):
        return jax.jit(lambda v: model.apply(v, texts, method='encode_text'))(variables)

    assert not np.allclose(encode(model, texts), encode(model, other))
    read = [encode(model.reranker, one) for one in (texts, other)]
    np.testing.assert_array_equal(read[0].ids, read[1].ids)
    np.testing.assert_array_equal(read[0].ids[:, 0], 11)
    np.testing.assert_array_equal(read[0].ids[:, 1:], texts.ids[:, 1:])


def test_other_heads_are_refused():
    with pytest.raises(ArgumentError, match=r"heads is \('itm',\), but 'mlm' is needed"):
        compiled('blip_matching')[0].read_pairs(None, None, ('mlm',))
