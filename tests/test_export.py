"""Training, encoding, scoring and mining lower for GPUs and TPUs.

They have no host callbacks, no dynamic shapes, and no product of float32 arrays below the precision that was chosen.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm.data.splits import pad_texts, take_images
from jitm.devices import parallel
from jitm.inference import engine
from jitm.mining import top_h
from jitm.training.setup import set_up
from jitm.types import PRECISIONS
from tests.golden import steps
from tests.support.scoring import make_problem

PLATFORMS = ('cuda', 'tpu')
FAST = 'configs/scan.py:i2t,lse,f30k'
SLOW = (  # each kind of encoder, of scores and of source
    *('configs/vse.py:fc,selhn,f30k', 'configs/vse_infinity.py:vse_infinity,bert,f30k', 'configs/sgraf.py:sgr,f30k'),
    *('configs/naaf.py:f30k', 'configs/vsrn.py:f30k', 'configs/imram.py:both,f30k', 'configs/clip.py:softmax,scenes'),
    *('configs/dbl.py:baseline,am,mss,f30k', 'configs/recipe.py:perturbed_offline,oss,f8k'),
    *('configs/noisy.py:mean,ncr,f8k', 'configs/tags.py:tags_dc_single,base,f30k'),
)
SETTINGS = [FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


def precisions(module):
    """The precisions of all products and convolutions of float32 arrays in a module."""
    products = re.findall(r'stablehlo\.(?:dot_general|convolution).*', module)
    products = [line for line in products if re.search(r': \(tensor<[^>]*f32>, tensor<[^>]*f32>', line)]
    return {
        name.lower() for line in products for name in re.findall(r'\b(?:DEFAULT|HIGH|HIGHEST)\b', line) or ['DEFAULT']
    }


def export(function, *arguments, precision='highest'):
    """Exports a compiled function for all platforms, which raises an error for a callback to the host.

    Returns:
      The effects, the types of dynamic shape and the precisions below the given one in the exported module.
    """
    exported = jax.export.export(function, platforms=PLATFORMS)(*arguments)
    module = exported.mlir_module()
    assert 'func.func public @main' in module
    effects = [*exported.ordered_effects, *exported.unordered_effects]
    below = precisions(module) & {*PRECISIONS[: PRECISIONS.index(precision)]}
    return [*effects, *re.findall(r'tensor<[^>]*\?[^>]*>', module), *sorted(below)]


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp('export')
    steps.write_files(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize('name', SETTINGS)
def test_training_step_and_scoring_block_lower_for_accelerators(name, folder):
    setup = set_up(steps.make_config(name, folder), resuming=True)
    state, batch = jax.eval_shape(setup.random_state), setup.make_batch(0)
    step, arguments = jax.jit(setup.train_step), (state, parallel.split_rows(batch))
    assert export(step, *arguments, precision=setup.plan.precision) == []
    member = setup.plan.evaluation['member']
    variables, model = state.members[member].variables, setup.members[member].model
    encoded = []
    for method, rows in (('encode_image', batch.images), ('encode_text', batch.texts)):
        encode = parallel.map_rows(engine.encode, model, method, 'bfloat16', precision='highest')
        assert export(encode, rows, variables) == []
        encoded.append(jax.eval_shape(encode, rows, variables))
    images, texts = encoded
    assert export(parallel.map_rows(engine.score, model, precision='highest'), images, variables, texts) == []
    if name != FAST:
        jax.clear_caches()  # the traces of all settings take much memory


def test_mining_blocks_lower_for_accelerators():
    shape = jax.ShapeDtypeStruct
    lists = shape((4, 3), np.float32), shape((4, 3), np.int32)
    vectors, excluded = shape((8, 16), np.float32), shape((8, 2), np.int32)
    rank = parallel.map_rows(top_h.rank, 3, 2, 4, precision='highest')
    assert export(rank, (vectors, excluded), shape((32, 16), np.float32)) == []
    index = shape((4,), np.int32)
    assert export(top_h.rank_block, lists, lists, shape((4, 4), np.float32), index, index, index) == []


@pytest.mark.parametrize('precision', PRECISIONS)
@pytest.mark.parametrize('name', ['vsepp', 'scan_t2i'])
def test_scores_have_the_precision_that_was_chosen(name, precision):
    model, variables, split, tokens = make_problem(name)
    chosen = engine.Engine(model, variables, 'float32', precision)
    items = take_images(split, np.arange(4), model.reads), pad_texts(tokens, np.arange(4), 8)
    encoders = [chosen.compiled(engine.encode, method, 'float32') for method in ('encode_image', 'encode_text')]
    encoded = [jax.eval_shape(encoder, side, variables) for encoder, side in zip(encoders, items, strict=True)]
    vectors, excluded = jax.ShapeDtypeStruct((8, 16), np.float32), jax.ShapeDtypeStruct((8, 2), np.int32)
    rank = parallel.map_rows(top_h.rank, 3, 2, 4, precision=precision)
    lowered = [
        *(encoder.lower(side, variables) for encoder, side in zip(encoders, items, strict=True)),
        chosen.compiled(engine.score).lower(encoded[0], variables, encoded[1]),
        rank.lower((vectors, excluded), jax.ShapeDtypeStruct((32, 16), np.float32)),
    ]
    always = {'highest'} if name == 'scan_t2i' else set()  # norms of attended vectors
    for function, more in zip(lowered, (set(), set(), always, set()), strict=True):
        assert precisions(function.as_text()) == {precision} | more


def test_callbacks_dynamic_shapes_and_imprecise_products_are_found():
    vector = jax.ShapeDtypeStruct((3,), np.float32)
    double = functools.partial(jax.pure_callback, lambda x: 2 * x, vector)
    with pytest.raises(NotImplementedError, match='callback'):
        export(jax.jit(double), vector)
    [size] = jax.export.symbolic_shape('n')
    assert 'tensor<?xf32>' in export(jax.jit(jnp.sum), jax.ShapeDtypeStruct((size,), np.float32))
    assert export(jax.jit(jnp.dot), vector, vector) == ['default']
