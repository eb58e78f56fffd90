import functools
import math

import jax
import numpy as np
import pytest
from flax import linen as nn
from flax import traverse_util

from jitm.errors import UserError
from jitm.layers.blocks import BlockOptions, TransformerBlock
from jitm.layers.lora import LoRA, merge, select_frozen
from tests.support.sizes import shapes_of

ALL = ('query', 'key', 'value', 'out', 'mlp_in', 'mlp_out')
QKV = ALL[:3]


@pytest.fixture(scope='module')
def tower():
    """The parameters of a tower of two blocks, its embeddings and projection, and of what follows it."""
    block = TransformerBlock(BlockOptions(heads=2, mlp_dim=12, dropout=0.0))
    blocks = [block.init(jax.random.key(n), np.zeros((1, 3, 8)), None)['params'] for n in range(2)]
    dense = {'kernel': np.ones((8, 8), np.float32)}
    encoder = {f'block_{n}': params for n, params in enumerate(blocks)}
    text = {'words': {'embedding': np.ones((5, 8))}, 'encoder': encoder, 'norm_out': dense, 'projection': dense}
    return {'text': text, 'linear': dense, 'logit_scale': np.ones(())}


def randomized(params):
    """The parameters with random numbers, so that B is not 0."""
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: rng.normal(size=np.shape(leaf)).astype(np.float32), params)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('size', 'rank', 'modules', 'count'),
    [
        ('clip:b32', 2, QKV, 184_320),
        ('clip:b32', 8, ALL[:4], 983_040),
        ('clip:b32', 16, ALL, 4_423_680),
        pytest.param('siglip:b16_224', 8, ALL[:4], 1_179_648, marks=pytest.mark.slow),
    ],
)
def test_adapters_have_the_number_of_parameters_of_clip_lora(size, rank, modules, count):
    add = functools.partial(LoRA(rank=rank, modules=modules).add, jax.random.key(0))
    flat = traverse_util.flatten_dict(jax.eval_shape(add, shapes_of(size)))
    assert sum(math.prod(leaf.shape) for path, leaf in flat.items() if path[-1] in ('lora_a', 'lora_b')) == count


@pytest.mark.slow
def test_the_first_state_is_the_base_to_the_last_bit(tower):
    adapted = LoRA(rank=3, modules=ALL).add(jax.random.key(0), tower)
    jax.tree.map(np.testing.assert_array_equal, merge(adapted), tower)
    query = adapted['text']['encoder']['block_0']['attention']['query']
    assert [query[name].shape for name in ('lora_a', 'lora_b')] == [(8, 3), (3, 8)]
    assert 0.5 / math.sqrt(8) < np.abs(query['lora_a']).max() <= 1 / math.sqrt(8)
    assert not query['lora_b'].any()
    assert len({str(leaf) for path, leaf in traverse_util.flatten_dict(adapted).items() if path[-1] == 'lora_a'}) == 12


def test_merged_projections_equal_separate_ones(tower):
    """kernel x + s B (A x) in float64 for each linear layer, of which the attention's have an axis of heads."""
    adapted = randomized(LoRA(rank=3, modules=ALL).add(jax.random.key(0), tower))
    block, merged = (tree['text']['encoder']['block_1'] for tree in (adapted, merge(adapted)))
    rng = np.random.default_rng(1)
    for name in ALL:
        one, other = (tree['attention'][name] if name in ALL[:4] else tree[name] for tree in (block, merged))
        assert {*other} == {'kernel', 'bias'}
        layer = nn.DenseGeneral(other['bias'].shape, axis=(-2, -1) if name == 'out' else -1)
        inputs = rng.normal(size=(5, *other['kernel'].shape[: 2 if name == 'out' else 1]))
        got = layer.apply({'params': other}, inputs.astype(np.float32))
        rows = inputs.reshape(5, -1)
        (a, b, s) = (np.float64(one[f'lora_{part}']) for part in ('a', 'b', 'scale'))
        want = rows @ np.reshape(one['kernel'], (rows.shape[1], -1)) + s * (rows @ a) @ b + np.ravel(one['bias'])
        np.testing.assert_allclose(np.reshape(got, (5, -1)), want, rtol=0, atol=1e-6 * np.abs(want).max())


def test_only_adapters_and_what_is_outside_of_towers_train(tower):
    adapted = LoRA(rank=3, modules=('query',)).add(jax.random.key(0), tower)
    flat = traverse_util.flatten_dict(select_frozen(adapted), sep='/')
    query = 'text/encoder/block_{}/attention/query/lora_{}'
    trained = {query.format(n, part) for n in (0, 1) for part in ('a', 'b')} | {'linear/kernel', 'logit_scale'}
    assert {path for path, frozen in flat.items() if not frozen} == trained


def test_a_model_without_blocks_has_no_adapters():
    with pytest.raises(UserError, match='the model has no transformer'):
        LoRA().add(jax.random.key(0), {'gru': {'kernel': np.ones((2, 2))}})
