"""Compiles training, encoding, scoring and mining for TPUs and GPUs, by their own compilers, without a device.

    python -m benchmarks accelerators                                               # all systems, all targets
    python -m benchmarks accelerators --target v5e:2x2 --settings scan:t2i,lse,f30k --programs step
    python -m benchmarks accelerators --rows docs/accelerators.jsonl --label after  # keeps the rows, for the page

Nothing is run. The data are random, in Flickr30K's sizes (36 x 2048 features, the lengths of its captions). Each row is
written when it is known, and a row that the file has is not compiled again. The extra `aot` has the compilers.
"""

import argparse
import collections
import itertools
import json
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jax.interpreters import partial_eval

from benchmarks import memory, results, topologies
from benchmarks.hlo import COLLECTIVES, Program
from benchmarks.results import Row
from jitm.devices import parallel
from jitm.inference.engine import IMAGES_PER_CALL, TEXTS_PER_CALL, encode, score
from jitm.inference.top_k import MAX_GROUP
from jitm.mining.top_h import MAX_QUERIES, TILES, rank, rank_block
from jitm.models.matcher import DualEncoder
from jitm.training.setup import Setup, set_up
from jitm.training.stages import split_stages

SETTINGS = (
    *memory.SETTINGS,
    *('vsepp:resnet152,scratch,f30k', 'clip:b32,softmax,f30k', 'oscar:alone,base,coco', 'aoq:vsrn,adapoffquin,f30k'),
)
PROGRAMS = ('step', 'images', 'texts', 'scores', 'mining')
PAIRS_PER_CHIP = 8  # batch size per chip on more than 16 chips
IMAGES, TEXTS, DUAL_TEXTS = 1000, 128, 4096  # sizes of a block of scores
CANDIDATES, TOP_H = 145_000, 300  # mining: captions of Flickr30K, and the number kept for each image
HOT = 6  # operations of a row
OPTIONS = {'gpu': {'xla_gpu_enable_triton_gemm': False}}  # sizes of its products are chosen by timing them
TRACED = {'psum': 'all-reduce', 'psum_invariant': 'all-reduce', 'pmax': 'all-reduce', 'pmin': 'all-reduce'}
TRACED |= {name: name.replace('_', '-') for name in ('all_gather', 'reduce_scatter', 'all_to_all')}
GIGA, MEGA = 1e9, 1e6
UNKNOWN = '-'


class Compiled(NamedTuple):
    """A compiled program, FLOP by precision and collectives of its trace, and how long the compiler took."""

    compiled: Any
    flops: collections.Counter
    collectives: collections.Counter
    seconds: float
    cpu_seconds: float


def _count(jaxpr: Jaxpr, cost: Callable[[JaxprEqn], dict]) -> collections.Counter:
    """Adds the costs of all equations: loops count as often as they run, conditionals as their most expensive case."""
    total = collections.Counter()
    for equation in jaxpr.eqns:
        total.update(cost(equation))
        values = [x for value in equation.params.values() for x in (value if isinstance(value, tuple) else [value])]
        jaxprs = [value.jaxpr if isinstance(value, ClosedJaxpr) else value for value in values]
        inner = [_count(value, cost) for value in jaxprs if isinstance(value, Jaxpr)]
        if equation.primitive.name == 'cond':
            inner = [max(inner, key=lambda counts: sum(counts.values()))]
        times = equation.params['length'] if equation.primitive.name == 'scan' else 1
        for counts in inner:
            total.update({kind: times * value for kind, value in counts.items()})
    return total


def count_flops(jaxpr: Jaxpr) -> collections.Counter:
    """Counts the FLOP of matrix products and convolutions by precision."""

    def cost(equation: JaxprEqn) -> dict[str, float]:
        if equation.primitive.name not in ('dot_general', 'conv_general_dilated'):
            return {}
        precision = equation.params['precision'] or (jax.lax.Precision.DEFAULT,)
        bfloat16 = equation.invars[0].aval.dtype == jnp.bfloat16
        return {'bfloat16' if bfloat16 else precision[0].name.lower(): _flops(equation)}

    return _count(jaxpr, cost)


def count_collectives(jaxpr: Jaxpr) -> collections.Counter:
    """Counts collectives by kind, and the bytes that a device holds after them, as `hlo` does."""

    def cost(equation: JaxprEqn) -> dict[tuple[str, str], float]:
        kind = TRACED.get(equation.primitive.name)
        arrays = equation.outvars if kind == 'all-gather' else equation.invars
        size = sum(array.aval.size * array.aval.dtype.itemsize for array in arrays)
        return {(kind, 'number'): 1, (kind, 'bytes'): size * (1 + (kind == 'all-reduce'))} if kind else {}

    return _count(jaxpr, cost)


def _flops(equation: JaxprEqn) -> float:
    (left, right), out = equation.invars, equation.outvars[0].aval
    if equation.primitive.name == 'dot_general':
        contracted = equation.params['dimension_numbers'][0][0]
        return 2 * out.size * np.prod([left.aval.shape[axis] for axis in contracted])
    numbers = equation.params['dimension_numbers'].rhs_spec
    return 2 * out.size * right.aval.size / right.aval.shape[numbers[0]]


def compile_program(function: Callable, *arguments: chex.ArrayTree) -> Compiled:
    """Traces and compiles a function that `jit` or `pmap` returned, in `compiling_for`, and measures the compiler."""
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    jaxpr, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    lowered = function.lower(*arguments)
    start, cpu = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_utime
    compiled = lowered.compile(compiler_options=OPTIONS.get(parallel.platform()))
    seconds = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_utime - cpu
    return Compiled(compiled, count_flops(jaxpr), count_collectives(jaxpr), *seconds)


def measure(program: Compiled, target: str) -> Row:
    """Returns the statistics of a compiled program, for one device."""
    chip, read = topologies.chip_of(target), Program(program.compiled.as_text())
    sizes, cost = program.compiled.memory_analysis(), read.cost
    passes = {**chip.passes, 'bfloat16': 1}
    products = sum(passes[kind] * value for kind, value in program.flops.items()) / chip.tflops / 1e9
    moved = cost.num_bytes / chip.memory_gbps / 1e6
    estimate = cost.cycles / chip.gigahertz / 1e6 + cost.uncounted / chip.memory_gbps / 1e6 if chip.gigahertz else None
    received = sum(cost.collectives[kind, 'bytes'] for kind in COLLECTIVES)
    padded = read.padded_arrays()[:3]
    return {
        'compile s': round(program.seconds, 1),
        'CPU s': round(program.cpu_seconds, 1),
        'arguments GB': sizes.argument_size_in_bytes / GIGA,
        'temporary GB': sizes.temp_size_in_bytes / GIGA,
        'peak GB': memory.peak_bytes(program.compiled) / GIGA,
        'of GB': chip.memory_gb,
        'GFLOP': sum(program.flops.values()) / GIGA,
        'GB moved': cost.num_bytes / GIGA,
        'traced collectives': _list_collectives(program.collectives),
        'collectives': _list_collectives(cost.collectives),
        'links ms': received / topologies.link_gbps(target) / 1e6,
        'products ms': products,
        'memory ms': moved,
        'bound ms': max(products, moved),
        'estimated ms': estimate,
        'estimated / bound': estimate and estimate / max(products, moved, 1e-9),
        'without estimate ms': cost.uncounted / chip.memory_gbps / 1e6,
        'dynamic loops': cost.dynamic_loops,
        'padded': ', '.join(f'{array} {factor:.1f}x' for factor, array in padded if factor > 1.5),
        'hot': [[round(cycles / max(cost.cycles, 1), 3), *label] for label, cycles in cost.hot.most_common(HOT)],
    }


def _list_collectives(counts: collections.Counter) -> str:
    return ', '.join(
        f'{counts[kind, "number"]} {kind} {results.format_cell(counts[kind, "bytes"] / MEGA)} MB'
        for kind in COLLECTIVES
        if counts[kind, 'number']
    )


def _rows_of(tree: chex.ArrayTree, count: int) -> chex.ArrayTree:
    """Returns the shapes of a tree with another number of rows."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((count, *x.shape[1:]), x.dtype), tree)


def compile_step(setup: Setup, devices: Sequence[Any]) -> Compiled:
    """Compiles the training step: by `pmap` for the devices of one process, else in `shard_map`."""
    step, batch = setup.train_step.__wrapped__, setup.make_batch(0)
    state = jax.eval_shape(setup.random_state)
    with parallel.compiling_for(devices):
        if len({device.process_index for device in devices}) == 1:
            compiled = jax.pmap(
                step, parallel.AXIS, in_axes=(None, 0), out_axes=None, donate_argnums=0, devices=devices
            )
            return compile_program(compiled, state, parallel.split_rows(batch))
        mesh = jax.sharding.Mesh(devices, (parallel.AXIS,))
        replicated, split = (jax.sharding.NamedSharding(mesh, spec) for spec in (jax.P(), jax.P(parallel.AXIS)))
        specs = jax.tree.map(lambda x: split if np.ndim(x) else replicated, batch)
        mapped = jax.shard_map(
            step,
            mesh=mesh,
            in_specs=(jax.P(), jax.tree.map(lambda x: x.spec, specs)),
            out_specs=jax.P(),
            check_vma=False,
        )
        shapes = [
            jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(np.shape(x), x.dtype, sharding=s), tree, shardings)
            for tree, shardings in ((state, jax.tree.map(lambda _: replicated, state)), (batch, specs))
        ]
        return compile_program(jax.jit(mapped, donate_argnums=0), *shapes)


def compile_inference(setup: Setup, program: str, devices: Sequence[Any]) -> Compiled | None:
    """Compiles an encoder, the scores of a block, or mining, for the devices of one process; None without mining."""
    devices = [device for device in devices if device.process_index == devices[0].process_index]
    batch, count = setup.make_batch(0), len(devices)
    member = jax.eval_shape(setup.random_state).members[setup.plan.evaluation['member']]
    model = setup.members[setup.plan.evaluation['member']].model
    items = {'images': batch.images, 'texts': batch.texts}
    encoded = {
        side: jax.eval_shape(
            lambda variables, x, side=side: encode(model, f'encode_{side[:-1]}', 'float32', x, variables),
            member.variables,
            items[side],
        )
        for side in items
    }
    dual, precision = isinstance(model, DualEncoder), setup.plan.evaluation['precision']
    with parallel.compiling_for(devices):
        rows, replicated = (
            jax.sharding.NamedSharding(jax.sharding.Mesh(devices, (parallel.AXIS,)), spec)
            for spec in (jax.P(parallel.AXIS), jax.P())
        )

        def sharded(tree: chex.ArrayTree, sharding: Any) -> chex.ArrayTree:
            return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)

        variables = sharded(member.variables, replicated)
        if program in items:
            per_call = {'images': IMAGES_PER_CALL, 'texts': TEXTS_PER_CALL}[program]
            shapes = sharded(_rows_of(items[program], per_call * count), rows)
            mapped = parallel.map_rows(encode, model, f'encode_{program[:-1]}', 'float32', precision=precision)
            return compile_program(mapped, shapes, variables)
        texts = sharded(_rows_of(encoded['texts'], DUAL_TEXTS if dual else TEXTS), replicated)
        images = sharded(_rows_of(encoded['images'], -(-IMAGES // count) * count), rows)
        if program == 'scores':
            return compile_program(parallel.map_rows(score, model, precision=precision), images, variables, texts)
        if dual:
            dim = model.vectors(encoded['images']).shape[-1]
            queries = TILES * MAX_QUERIES * count
            vectors = jax.ShapeDtypeStruct((queries, dim), np.float32, sharding=rows)
            excluded = jax.ShapeDtypeStruct((queries, 5), np.int32, sharding=rows)
            padded = -(-CANDIDATES // MAX_GROUP) * MAX_GROUP
            candidates = jax.ShapeDtypeStruct((padded, dim), np.float32, sharding=replicated)
            ranked = parallel.map_rows(rank, TOP_H, MAX_GROUP, MAX_QUERIES, precision=precision)
            return compile_program(ranked, (vectors, excluded), candidates)
        placed = jax.sharding.SingleDeviceSharding(devices[0])

        def shape(dtype: type, *sizes: int) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(sizes, dtype, sharding=placed)

        def lists(number: int, top_h: int) -> tuple:
            return shape(np.float32, number, top_h), shape(np.int32, number, top_h)

        block = shape(np.float32, IMAGES, TEXTS)
        sides = [shape(np.int32, number) for number in (IMAGES, TEXTS, TEXTS)]
        return compile_program(rank_block, lists(IMAGES, TOP_H), lists(TEXTS, 60), block, *sides)


def write_photos(folder: Path) -> None:
    """Writes small random photos with captions, as an imagefolder of Hugging Face."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for split, count in (('train', 390), ('dev', 10)):
        (folder / split).mkdir(parents=True)
        lines = []
        for n in range(count):
            Image.fromarray(rng.integers(0, 255, (32, 32, 3), np.uint8)).save(folder / split / f'{n}.png')
            captions = [' '.join(f'w{word}' for word in row) for row in rng.integers(0, 8000, (5, 12))]
            lines.append(json.dumps({'file_name': f'{n}.png', 'captions': captions}))
        (folder / split / 'metadata.jsonl').write_text('\n'.join(lines) + '\n')


def write_merges(path: Path, first: Sequence[str] = (), count: int = 48894) -> None:
    """Writes as many byte pairs as CLIP has, some of which come first."""
    letters = [chr(n) for n in (*range(33, 127), *range(161, 173), *range(174, 256))]
    pairs = (f'{a} {b}' for a in letters for b in letters)
    longer = (f'{a}{b} {c}' for a in letters for b in letters for c in letters)
    unique = dict.fromkeys(itertools.islice(itertools.chain(first, pairs, longer), count + len(first)))
    path.write_text('\n'.join(['#version', *itertools.islice(unique, count)]) + '\n')


def write_all(folder: Path) -> None:
    """Writes the random data of all settings."""
    memory.write_files(folder)
    write_photos(folder / 'photos')
    write_merges(folder / 'merges.txt')


def make_setup(setting: str, folder: Path, batch_size: int | None, **changes: Any) -> Setup:
    """Sets up a setting with random data and the changes of `memory.with_files`; with two stages, the second."""
    config = memory.with_files(setting, folder, batch_size, **changes)
    if batch_size and 'num_extra' in config['candidates']:
        config['candidates']['num_extra'] = 0  # such a batch has more candidates than are published
    if config['data']['source'] == 'photos.load':
        config['data']['root'] = str(folder / 'photos')
    if setting.startswith('clip'):
        config['vocabulary']['path'] = str(folder / 'merges.txt')
    mines = bool(config['stages'])
    if mines:
        config = split_stages(config, folder).second
    return set_up(config, resuming=True, pending=mines)


def read_rows(path: Path) -> dict[tuple[str, str, str, str], Row]:
    """Returns the rows of a file by label, setting, program and target."""
    rows = map(json.loads, path.read_text(encoding='utf-8').splitlines())
    return {(row['label'], row['setting'], row['program'], row['target']): row for row in rows}


def tables(path: Path) -> dict[str, list[Row]]:
    """Makes the table of docs/notes/accelerators.md from a file of rows: name in the comment above it -> rows."""
    rows = {
        (setting, target): row for (_, setting, program, target), row in read_rows(path).items() if program == 'step'
    }
    settings = dict.fromkeys((*SETTINGS, *(setting for setting, _ in rows)))
    steps = [
        {
            'setting': setting,
            'compile s': _cell(row, 'compile s'),
            'peak GB': _cell(row, 'peak GB'),
            'peak GB, h100:1': _cell(rows.get((setting, 'h100:1')), 'peak GB'),
            'estimated ms': _cell(row, 'estimated ms'),
            'ratio': _cell(row, 'estimated / bound'),
        }
        for setting in settings
        if (row := rows.get((setting, 'v5e:2x2')))
    ]
    return {'accelerators steps': steps}


def _cell(row: Row | None, column: str) -> str:
    """Returns a number of a row, or a dash if it was not compiled or not estimated."""
    return results.format_cell(row[column]) if row and row[column] is not None else UNKNOWN


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.add_argument('--target', nargs='+', default=topologies.TARGETS, choices=topologies.TARGETS)
    parser.add_argument('--settings', nargs='+', default=SETTINGS, help='NAME:OPTIONS of settings')
    parser.add_argument('--programs', nargs='+', default=PROGRAMS, choices=PROGRAMS)
    parser.add_argument('--rows', type=Path, help='a file to which each row is added when it is known')
    parser.add_argument('--label', default='', help='distinguishes the rows from others of the same programs')
    parser.add_argument('--texts', type=Path, help='a folder for the texts of the compiled programs')


def run(args: argparse.Namespace) -> Iterator[Row]:
    """Compiles each program of each setting for each target."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_all(folder)
        for setting in args.settings:
            for batch_size, targets in _by_batch_size(args.target):
                yield from _run_setting(args, setting, folder, batch_size, targets)
                jax.clear_caches()


def _by_batch_size(targets: Sequence[str]) -> Iterator[tuple[int | None, list[str]]]:
    groups = collections.defaultdict(list)
    for target in targets:
        count = len(topologies.devices(target))
        groups[PAIRS_PER_CHIP * count if count > 16 else None].append(target)
    yield from groups.items()


def _run_setting(
    args: argparse.Namespace, setting: str, folder: Path, batch_size: int | None, targets: Sequence[str]
) -> Iterator[Row]:
    names = {
        (target, program): {'label': args.label, 'setting': setting, 'program': program, 'target': target}
        for target in targets
        for program in args.programs
    }
    stored = read_rows(args.rows) if args.rows and args.rows.exists() else {}
    names = {key: name for key, name in names.items() if tuple(name.values()) not in stored}
    if not names:
        return
    setup = make_setup(setting, folder, batch_size)
    for (target, program), name in names.items():
        devices = topologies.devices(target)
        compiled = compile_step(setup, devices) if program == 'step' else compile_inference(setup, program, devices)
        row = {**name, 'batch': setup.plan.batch_size, **measure(compiled, target)}
        if args.texts:
            file = '_'.join([setting, program, target, args.label]).replace(':', '_').replace(',', '_')
            (args.texts / f'{file}.hlo').write_text(compiled.compiled.as_text())
        if args.rows:
            with args.rows.open('a') as file:
                file.write(json.dumps(row) + '\n')
        yield {key: value for key, value in row.items() if key not in ('label', 'hot')}
