"""Scores small splits on several virtual devices and saves the matrices; started by test_scoring.py."""

import sys

import jax

out, devices, *processes = sys.argv[1:]
jax.config.update('jax_num_cpu_devices', int(devices))

import numpy as np  # noqa: E402

from jitm.devices import job, parallel  # noqa: E402

if processes:
    coordinator, count, index = processes
    job.join(coordinator, int(count), int(index))

import warnings  # noqa: E402
from unittest import mock  # noqa: E402

from jitm.inference.scoring import Scorer, ScoringOptions  # noqa: E402
from tests.support.scoring import CASES, count_compilations, make_problem, make_scorer, random_pairs  # noqa: E402


def main() -> None:
    warnings.simplefilter('error')
    results = {'devices': parallel.num_local_devices()}
    for number, (arguments, (images, texts)) in enumerate(CASES):
        shape = max(images, int(devices)), max(texts, int(devices))  # a block is split over the devices
        problem = make_problem(*arguments)
        results[str(number)] = make_scorer(problem, *shape).score()
        pairs = random_pairs(*results[str(number)].shape)
        scorer = make_scorer(problem, *shape)
        with mock.patch.object(scorer, '_encode_block', wraps=scorer._encode_block) as encode:
            results[f'{number}_together'] = scorer.score_together()
        results[f'{number}_blocks'] = encode.call_count
        results[f'{number}_pairs'] = make_scorer(problem, 8, shape[1], pairs=pairs).score()
    problem = make_problem(*CASES[0][0])
    options = ScoringOptions('float32', 64, 'highest')
    parallel.map_rows.cache_clear()
    lengths = len({scorer.engine.own_length(length) for length in problem[3].lengths})
    assert count_compilations(lambda: Scorer(*problem, options).score()) == 2 + lengths
    assert count_compilations(lambda: Scorer(*problem, options).score()) == 0
    np.savez(out, **results)
    parallel.barrier('done')


main()
