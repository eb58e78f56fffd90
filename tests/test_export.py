"""Training, encoding, scoring and mining lower for GPUs and TPUs, without host callbacks or dynamic shapes."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm import parallel
from jitm.inference import engine
from jitm.mining import products, search
from jitm.training.setup import set_up
from tests.golden import steps

PLATFORMS = ('cuda', 'tpu')
FAST = 'configs/vse.py:fc,selhn,f30k'
SLOW = (*(name for name in steps.GOLDEN if name != FAST), 'configs/clip.py:softmax,scenes')
SETTINGS = [FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


def export(function, *arguments):
    """Exports a compiled function for all platforms, which raises an error for a callback to the host.

    Returns:
      The effects and the types of dynamic shape in the exported module.
    """
    exported = jax.export.export(function, platforms=PLATFORMS)(*arguments)
    module = exported.mlir_module()
    assert 'func.func public @main' in module
    return [*exported.ordered_effects, *exported.unordered_effects, *re.findall(r'tensor<[^>]*\?[^>]*>', module)]


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp('export')
    steps.write_files(folder)
    return folder


@pytest.mark.parametrize('name', SETTINGS)
def test_training_step_and_scoring_block_lower_for_accelerators(name, folder):
    setup = set_up(steps.tiny(steps.load(name), folder), resuming=True)
    state, batch = jax.eval_shape(setup.random_state), setup.make_batch(0)
    assert export(jax.jit(setup.train_step), state, parallel.split_rows(batch)) == []
    member = setup.config['evaluation']['member']
    variables, model = state.members[member].variables, setup.members[member].model
    encoded = []
    for method, rows in (('encode_image', batch.images), ('encode_text', batch.texts)):
        encode = parallel.map_rows(engine.encode, model, method, 'bfloat16')
        assert export(encode, rows, variables) == []
        encoded.append(jax.eval_shape(encode, rows, variables))
    images, texts = encoded
    assert export(parallel.map_rows(engine.score, model), images, variables, texts) == []
    jax.clear_caches()


def test_mining_blocks_lower_for_accelerators():
    shape, lists = jax.ShapeDtypeStruct, search.empty_lists(4, 3)
    vectors, excluded = shape((8, 16), np.float32), shape((8, 2), np.int32)
    assert export(parallel.map_rows(products._rank, 3, 2, 4), (vectors, excluded), shape((32, 16), np.float32)) == []
    index = shape((4,), np.int32)
    assert export(search.rank_block, lists, lists, shape((4, 4), np.float32), index, index, index) == []


def test_callbacks_and_dynamic_shapes_are_found():
    vector = jax.ShapeDtypeStruct((3,), np.float32)
    double = functools.partial(jax.pure_callback, lambda x: 2 * x, vector)
    with pytest.raises(NotImplementedError, match='callback'):
        export(jax.jit(double), vector)
    [size] = jax.export.symbolic_shape('n')
    assert 'tensor<?xf32>' in export(jax.jit(jnp.sum), jax.ShapeDtypeStruct((size,), np.float32))
