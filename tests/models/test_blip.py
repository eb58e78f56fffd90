"""The two models of BLIP; tests/importers has parity, test_matchers.py conformance."""

import jax
import numpy as np
import pytest

from jitm.errors import ArgumentError
from tests.support.matchers import compiled, make_inputs


@pytest.mark.slow
def test_first_piece_is_replaced_in_matching_only():
    model, variables, _ = compiled('blip')
    _, texts = make_inputs()
    changed = texts.replace(ids=texts.ids.copy())
    changed.ids[:, 0] = 1 + texts.ids[:, 0] % 10

    def encode(model, texts):
        return jax.jit(lambda v: model.apply(v, texts, method='encode_text'))(variables)

    assert not np.allclose(encode(model, texts), encode(model, changed))
    read = encode(model.reranker, changed).ids
    np.testing.assert_array_equal(encode(model.reranker, texts).ids, read)
    np.testing.assert_array_equal(read[:, 0], 11)
    np.testing.assert_array_equal(read[:, 1:], texts.ids[:, 1:])


def test_the_second_model_has_the_towers_of_the_first():
    model, _, _ = compiled('blip')
    inputs = jax.random.key(0), *make_inputs()
    first, second = (jax.eval_shape(m.init, *inputs)['params'] for m in (model, model.reranker))
    for tower in ('image', 'text'):
        del first[tower]['projection']
    assert second == {name: first[name] for name in ('image', 'text', 'itm_head')}


def test_other_heads_are_refused():
    with pytest.raises(ArgumentError, match=r"heads is \('itm',\), but 'mlm' is needed"):
        compiled('blip_matching')[0].read_pairs(None, None, ('mlm',))
