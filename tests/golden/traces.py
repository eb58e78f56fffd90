"""The training step of tiny settings as digests of what it computes, without a run of it.

Each output of the traced step is hashed as an expression over the names of the inputs and over all constants. The order
of independent equations, unused inputs, functions within `jit` and names of variables do not count. Steps of equal
digests compute the same numbers; a step of another digest may compute them too, in another order.

`python -m tests.golden.traces` writes `traces.json` anew, and with `--compare` prints which outputs of which settings
are not those of the file. Both take names of settings: `python -m tests.golden.traces --compare vsrn:f30k`.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.extend import core

from jitm.devices import parallel
from tests.golden.presets import PRESETS, compute, digest, main, make_setup, named

ON_TWO_DEVICES = (
    *('vsrn:f30k', 'aoq:bfan_equal,adapoffquin,f30k', 'dbl:baseline,dml,mutual,f30k', 'vse:mean,softmax_queue,f8k'),
    *('recipe:perturbed_offline,oss,f8k', 'oscar:rm,base,coco', 'tags:tags_dc_single,base,f30k'),
    *(name for name in PRESETS if name.startswith(('noisy:mean,ncr', 'siglip:sigmoid,scenes candidates'))),
)
# Batches that are large enough for a profile of the lengths of their captions.
PROFILED = tuple(
    f'{name} batch_size=40 length_multiple=2'
    for name in ('vse:mean,sum,f8k', 'scan:i2t,lse,f30k', 'clip:softmax,scenes', 'recipe:perturbed,f8k')
)
VERSIONS = {'jax': jax.__version__}
TWO = ' on 2 devices'
NAMES = (*PRESETS, *PROFILED, *(name + TWO for name in ON_TWO_DEVICES))
GROUPS = {'memory': r'state\.(labels|queue)', 'members': r'state\.', 'metrics': r'metrics', 'hinges': r'hinges'}
# Calls of a function, whose equations are as if they were outside.
CALLS = ('jit', 'pjit', 'closed_call', 'core_call', 'shard_map', 'xla_pmap', 'custom_jvp_call', 'custom_vjp_call')
CALLS += ('checkpoint', 'remat2')
# Operations of several arrays of which each output depends on one.
SEPARATE = ('psum', 'psum_invariant', 'pmax', 'pmin', 'optimization_barrier')
IGNORED = {'name', 'sharding', 'out_sharding', 'linear'}  # parameters that do not change what an operation computes


def constant(value: Any) -> str:
    """Returns the digest of an array or a number."""
    value = np.asarray(value)
    return digest('constant', value.dtype, value.shape, value.tobytes())


def describe(value: Any) -> str:
    """Returns the text of a parameter of an operation, the same in each process."""
    if isinstance(value, core.Jaxpr | core.ClosedJaxpr):
        return digest(*evaluate_closed(value, [f'argument {n}' for n in range(len(value.in_avals))]))
    if isinstance(value, tuple | list):
        return f'({", ".join(map(describe, value))})'
    if callable(value):
        return getattr(value, '__name__', type(value).__name__)
    return re.sub(r' at 0x[0-9a-f]+|np\.int\d+', '', repr(value))


def evaluate_closed(function: core.Jaxpr | core.ClosedJaxpr, inputs: Sequence[str]) -> list[str]:
    """Returns the digests of the outputs of a function with constants, given those of its inputs."""
    if isinstance(function, core.ClosedJaxpr):
        return evaluate(function.jaxpr, [*map(constant, function.consts), *inputs])
    return evaluate(function, inputs)


def evaluate(function: core.Jaxpr, inputs: Sequence[str]) -> list[str]:
    """Returns the digests of the outputs of a function, given those of its constants and inputs."""
    known = dict(zip([*function.constvars, *function.invars], inputs, strict=True))

    def read(atom: Any) -> str:
        return constant(np.asarray(atom.val, atom.aval.dtype)) if isinstance(atom, core.Literal) else known[atom]

    for equation in function.eqns:
        known |= zip(equation.outvars, apply(equation, list(map(read, equation.invars))), strict=True)
    return list(map(read, function.outvars))


def apply(equation: core.JaxprEqn, inputs: Sequence[str]) -> list[str]:
    """Returns the digests of the outputs of an equation."""
    operation = equation.primitive.name
    parameters = dict(equation.params)
    if operation in CALLS:
        return evaluate_closed(parameters.get('jaxpr') or parameters['call_jaxpr'], inputs)
    if operation == 'cond':
        index, *inputs = inputs
        branches = [evaluate_closed(branch, inputs) for branch in parameters['branches']]
        return [digest(operation, index, *outputs) for outputs in zip(*branches, strict=True)]
    bodies = []
    if operation == 'scan':
        split = parameters.pop('num_consts', 0)  # jax 0.12 does not state it
        constants = inputs[:split]
        inputs = inputs[split:]
        bodies = loop(parameters.pop('jaxpr'), constants, inputs)
    elif operation == 'while':
        first = parameters.pop('cond_nconsts')
        second = parameters.pop('body_nconsts')
        constants = inputs[: first + second]
        inputs = inputs[first + second :]
        bodies = loop(parameters.pop('cond_jaxpr'), constants[:first], inputs)
        bodies += loop(parameters.pop('body_jaxpr'), constants[first:], inputs)
    own = [f'{key}={describe(value)}' for key, value in sorted(parameters.items()) if key not in IGNORED]
    if operation in SEPARATE:
        return [digest(operation, *own, value) for value in inputs]
    return [digest(operation, n, *own, *bodies, *inputs) for n in range(len(equation.outvars))]


def loop(body: core.ClosedJaxpr, constants: Sequence[str], changing: Sequence[str]) -> list[str]:
    """Returns the digests of the outputs of the body of a loop, whose changing inputs are named by their place."""
    return evaluate_closed(body, [*constants, *(f'changing {n}' for n in range(len(changing)))])


def expressions(function: Any, *arguments: tuple[str, Any], outputs: Sequence[str]) -> dict[str, str]:
    """Hashes the outputs of a function as expressions over its inputs.

    Args:
      function: The function to trace.
      *arguments: The arguments, each with the name that those of its leaves begin with.
      outputs: The names of the outputs.

    Returns:
      Name of each leaf of the outputs -> digest.
    """
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*(tree for _, tree in arguments))
    inputs = [
        digest('input', name, leaf.dtype, leaf.shape)
        for prefix, tree in arguments
        for name, leaf in named(prefix, tree)
    ]
    names = [name for prefix, tree in zip(outputs, shapes, strict=True) for name, _ in named(prefix, tree)]
    return dict(zip(names, evaluate_closed(closed, inputs), strict=True))


def trace_outputs(name: str, folder: Path) -> dict[str, str]:
    """Traces the step of a setting on the devices of this process.

    Args:
      name: The name of the tiny setting, see `steps.make_config`.
      folder: The folder with the files of `steps.write_files`.

    Returns:
      Name of each output -> digest of its expression.
    """
    setup = make_setup(name, folder)
    arguments = ('state', jax.eval_shape(setup.random_state)), ('batch', parallel.split_rows(setup.make_batch(0)))
    found = expressions(setup.train_step, *arguments, outputs=('state', 'metrics'))
    if setup.measure:
        found |= expressions(setup.measure, *arguments, outputs=('unchanged', 'hinges'))
    return found


def trace(name: str, folder: Path) -> dict[str, str]:
    """Returns the digest of each group of the outputs of `trace_outputs`, of their names and expressions."""
    groups: dict[str, list[str]] = {}
    for output, value in sorted(trace_outputs(name, folder).items()):
        group = next((group for group, pattern in GROUPS.items() if re.match(pattern, output)), None)
        if group:
            groups.setdefault(group, []).append(f'{output} {value}')
    return {group: digest(*lines) for group, lines in groups.items()}


def trace_all(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Traces settings on one device, and those whose name ends with `on 2 devices` in a process that has two."""
    on_two = [name for name in names if name.endswith(TWO)]
    rows = compute([name for name in names if name not in on_two], trace)
    if on_two:
        command = [sys.executable, '-m', 'tests.golden.traces', '--devices', *on_two]
        done = subprocess.run(
            command, env=os.environ | {'JAX_NUM_CPU_DEVICES': '2'}, stdout=subprocess.PIPE, text=True, check=True
        )
        rows |= json.loads(done.stdout)
    return rows


if __name__ == '__main__':
    if sys.argv[1:2] == ['--devices']:
        rows = compute(sys.argv[2:], lambda name, folder: trace(name.removesuffix(TWO), folder))
        print(json.dumps(rows))
    else:
        main('traces.json', trace_all, NAMES, VERSIONS)
