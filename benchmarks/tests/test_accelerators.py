"""Programs for accelerators: what their text tells, and what must not be in them; the extra `aot` has the compilers."""

import re
import textwrap

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache

from benchmarks import accelerators, hlo, topologies
from jitm.training.setup import set_up

# A loop that runs 5 times and updates a row of an array in memory, and a product of arrays on the chip and in memory.
PROGRAM = textwrap.dedent("""\
    HloModule jit_f, is_scheduled=true

    %fused (p.0: f32[64,36], p.1: f32[8,128], p.2: s32[]) -> f32[64,36] {
      %p.0 = f32[64,36]{1,0:T(8,128)} parameter(0)
      %p.1 = f32[8,128]{1,0:T(8,128)S(1)} parameter(1)
      %p.2 = s32[]{:T(128)} parameter(2)
      %row = f32[1,36]{1,0:T(8,128)} slice(%p.1), slice={[0:1], [0:36]}
      ROOT %update = f32[64,36]{1,0:T(8,128)} dynamic-update-slice(%p.0, %row, %p.2, %p.2)
    }

    %body (b: (s32[], f32[64,36], f32[8,128])) -> (s32[], f32[64,36], f32[8,128]) {
      %b = (s32[], f32[64,36]{1,0:T(8,128)}, f32[8,128]{1,0:T(8,128)S(1)}) parameter(0)
      %n = s32[]{:T(128)} get-tuple-element(%b), index=0
      %x = f32[64,36]{1,0:T(8,128)} get-tuple-element(%b), index=1
      %y = f32[8,128]{1,0:T(8,128)S(1)} get-tuple-element(%b), index=2
      %z = f32[64,36]{1,0:T(8,128)} fusion(%x, %y, %n), calls=%fused, {op_name="f/add"}, {"estimated_cycles":"100"}
      ROOT %next = (s32[], f32[64,36]{1,0:T(8,128)}, f32[8,128]{1,0:T(8,128)S(1)}) tuple(%n, %z, %y)
    }

    %condition (c: (s32[], f32[64,36], f32[8,128])) -> pred[] {
      %c = (s32[], f32[64,36]{1,0:T(8,128)}, f32[8,128]{1,0:T(8,128)S(1)}) parameter(0)
      %i = s32[]{:T(128)} get-tuple-element(%c), index=0
      %limit = s32[]{:T(128)} constant(5)
      ROOT %less = pred[]{:T(512)} compare(%i, %limit), direction=LT
    }

    ENTRY %main (a: (s32[], f32[64,36], f32[8,128])) -> f32[64,128] {
      %a = (s32[], f32[64,36]{1,0:T(8,128)}, f32[8,128]{1,0:T(8,128)S(1)}) parameter(0)
      %w = (s32[], f32[64,36]{1,0:T(8,128)}, f32[8,128]{1,0:T(8,128)S(1)}) while(%a), condition=%condition, body=%body
      %u = f32[64,36]{1,0:T(8,128)} get-tuple-element(%w), index=1
      %v = f32[36,128]{1,0:T(8,128)S(1)} constant({...})
      %c.1 = bf16[64,36]{1,0:T(8,128)(2,1)} convert(%u), {"estimated_cycles":"7"}
      %d = f32[64,128]{1,0:T(8,128)S(1)} convolution(%c.1, %v), dim_labels=bf_io->bf
      ROOT %g = f32[256,128]{1,0:T(8,128)} all-gather(%d), channel_id=1, dimensions={0}
    }
    """)
REFUSED = ('callback', 'infeed', 'outfeed', 'send', 'recv', 'dynamic', 'set-dimension-size', 'padtostatic')
STATIC = {'dynamic-slice', 'dynamic-update-slice'}  # of static shapes
BOUNDED = re.compile(r'\w+\[[\d,]*<=')  # the shape of an array whose size is known at run time

tpu, gpu = pytest.mark.needs('libtpu'), pytest.mark.needs('jax_cuda12_plugin')


@pytest.fixture
def without_cache(monkeypatch):
    """The compilers for accelerators end the process at a flag of the CPU's, and their programs cannot be cached."""
    monkeypatch.delenv('XLA_FLAGS')
    jax.config.update('jax_enable_compilation_cache', False)
    compilation_cache.reset_cache()
    yield
    jax.config.update('jax_enable_compilation_cache', True)
    compilation_cache.reset_cache()


def test_cost_of_a_program():
    program = hlo.Program(PROGRAM)
    cost = program.cost
    assert cost.cycles == 5 * 100 + 7
    index, row, converted, gathered = 4, 4 * 36, 2 * 64 * 36, 4 * 256 * 128
    # The loop reads an index and writes a row, `convert` reads four bytes and writes two, the product reads those.
    assert cost.num_bytes == 5 * (index + row) + (2 * converted + converted) + converted + gathered
    assert cost.uncounted == converted
    assert cost.collectives == {('all-gather', 'number'): 1, ('all-gather', 'bytes'): gathered}
    assert cost.hot.most_common(1) == [(('f/add', 'f32[64,36]'), 500)]
    assert cost.dynamic_loops == 0
    assert program.padded_arrays(4 * 64 * 128)[0] == (128 / 36, hlo.Array('f32', (64, 36), (1, 0), 'T(8,128)'))
    assert [i.name for i in program.products_of('bf16')] == ['d']


@pytest.mark.parametrize(('kind', 'times'), [('all-reduce', 2), ('reduce-scatter', 1), ('all-to-all', 1)])
def test_bytes_that_a_collective_receives(kind, times):
    cost = hlo.Program(PROGRAM.replace('all-gather(%d)', f'{kind}-start(%d)')).cost
    assert cost.collectives == {(kind, 'number'): 1, (kind, 'bytes'): times * 4 * 64 * 128}


def test_loop_of_unknown_length_is_counted():
    cost = hlo.Program(PROGRAM.replace('constant(5)', 'add(%i, %i)')).cost
    assert (cost.dynamic_loops, cost.cycles) == (1, 107)


def test_flops_count_loops_and_the_largest_case():
    def function(x):
        x, _ = jax.lax.scan(lambda x, _: (jnp.dot(x, x, precision='highest'), None), x, length=3)
        return jax.lax.cond(x[0, 0] > 0, lambda x: x @ x @ x, lambda x: x, x)

    flops = accelerators.count_flops(jax.make_jaxpr(function)(jnp.zeros((4, 4))).jaxpr)
    assert flops == {'highest': 3 * 2 * 4**3, 'default': 2 * 2 * 4**3}


def test_collectives_count_loops_and_the_bytes_that_move():
    def device(x):
        x, _ = jax.lax.scan(lambda x, _: (jax.lax.psum(x, 'batch'), None), x, length=3)
        return jax.lax.psum_scatter(jax.lax.all_gather(x, 'batch', tiled=True), 'batch', tiled=True)

    traced = jax.make_jaxpr(device, axis_env=[('batch', 2)])(jnp.zeros(4)).jaxpr
    assert accelerators.count_collectives(traced) == {
        ('all-reduce', 'number'): 3,
        ('all-reduce', 'bytes'): 3 * 2 * 16,
        ('all-gather', 'number'): 1,
        ('all-gather', 'bytes'): 32,
        ('reduce-scatter', 'number'): 1,
        ('reduce-scatter', 'bytes'): 32,
    }


@pytest.mark.parametrize('target', [pytest.param('v5e:2x2', marks=tpu), pytest.param('h100:1', marks=gpu)])
@pytest.mark.usefixtures('without_cache')
def test_small_step_compiles_without_the_host(tiny_config, target):
    program = accelerators.compile_step(set_up(tiny_config), topologies.devices(target)).compiled
    assert 0 < program.memory_analysis().temp_size_in_bytes < 2**24
    called = hlo.Program(program.as_text()).opcodes().keys() - STATIC
    assert not [name for name in called if any(part in name.lower() for part in REFUSED)], called
    assert not BOUNDED.search(program.as_text())


@tpu
@pytest.mark.usefixtures('without_cache')
def test_scores_of_an_evaluation_are_products_of_float32(tiny_config, monkeypatch):
    monkeypatch.setattr(accelerators, 'CANDIDATES', 640)
    monkeypatch.setattr(accelerators, 'TOP_H', 8)
    for program in ('scores', 'mining'):
        compiled = accelerators.compile_inference(set_up(tiny_config), program, topologies.devices('v5e:1x1')).compiled
        read = hlo.Program(compiled.as_text())
        assert any(read.products_of('f32'))
        assert not list(read.products_of('bf16'))
