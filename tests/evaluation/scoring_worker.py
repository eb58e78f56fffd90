"""Scores small splits on some virtual devices and saves the matrices: run by test_scoring.py."""

import sys

import jax

out, devices, *processes = sys.argv[1:]
jax.config.update('jax_num_cpu_devices', int(devices))

import numpy as np  # noqa: E402

from jitm import parallel

if processes:
    coordinator, count, index = processes
    parallel.start_processes(coordinator, int(count), int(index))

import warnings  # noqa: E402

from jitm.evaluation import scoring
from tests.evaluation.test_scoring import CASES, count_compilations, make_problem, make_scorer, some_pairs  # noqa: E402


def main() -> None:
    warnings.simplefilter('error')
    results = {'devices': parallel.num_local_devices()}
    for number, (arguments, shape) in enumerate(CASES):
        problem = make_problem(*arguments)
        results[str(number)] = make_scorer(problem, *shape).score()
        pairs = some_pairs(*results[str(number)].shape)
        results[f'{number}_pairs'] = make_scorer(problem, 8, shape[1], pairs=pairs).score()
    problem = make_problem(*CASES[0][0])
    scoring._compiled.cache_clear()
    assert count_compilations(lambda: scoring.similarity_matrix(*problem, memory_mb=64, dtype='float32')) == 3
    assert count_compilations(lambda: scoring.similarity_matrix(*problem, memory_mb=64, dtype='float32')) == 0
    np.savez(out, **results)
    parallel.barrier('done')


main()
