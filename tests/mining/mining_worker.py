"""Mines on several virtual devices and saves the lists; started by test_mining.py."""

import sys
from pathlib import Path

import jax

out, devices = sys.argv[1:]
jax.config.update('jax_num_cpu_devices', int(devices))

from jitm.mining.resumable_job import search_all  # noqa: E402
from jitm.mining.top_h import PairSearch  # noqa: E402
from tests.support.mining import make_job, make_split, products  # noqa: E402
from tests.support.scoring import make_problem, make_scorer  # noqa: E402


def main() -> None:
    folder = Path(out)
    search, _ = products()
    rows = max(4, int(devices))  # a block is split over the devices
    search._queries = rows
    search_all(search, make_split(7, 33), make_job(folder / 'products'), 5, 2)
    problem = make_problem('scan_t2i')
    search = PairSearch([make_scorer(problem, rows, rows)], problem[2])
    search_all(search, problem[2], make_job(folder / 'pairs'), 5, 3)


main()
