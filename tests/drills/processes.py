"""Training by several processes of several CPU devices ends with the bytes of one process with as many devices."""

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jitm import configs
from tests.drills import jobs, kills, runs
from tests.same import assert_same_training
from tests.support.configs import write_config

PROCESSES = (2, 3, 4)
DEVICES = (1, 2)
BATCH = {'batch_size': 24, 'epochs': 4, 'drop_last': True}  # split evenly over 2, 3, 4, 6 and 8 devices


def scan() -> dict[str, Any]:
    model = configs.load('scan:t2i,lse,f30k').model.to_dict()
    model['text']['word_dim'] = 8
    return kills.plain() | {'model': model | {'embed_dim': 16}}


def two_stages() -> dict[str, Any]:
    config = kills.two_stages()
    config['stages']['first'] |= BATCH
    return config


def boosted() -> dict[str, Any]:
    """Returns a config whose target learns from a model that trains beside it, OSS, and from its own average, MSS."""
    config = kills.boosted({'rule': 'gradient', 'learn_from': [], 'init_from': ''})
    config['members']['average'] = {'rule': 'ema', 'of': 'target', 'momentum': 0.9}
    config['members']['target']['learn_from'].append('average')
    return config


SYSTEMS: dict[str, tuple[Callable[[], dict[str, Any]], tuple[str, ...]]] = {  # config, run directories
    'VSE++': (kills.plain, ('run',)),
    'SCAN': (scan, ('run',)),
    'AOQ': (two_stages, ('run/stage1', 'run/stage2')),
    'OSS': (boosted, ('run',)),
}
CASES = [*itertools.product(SYSTEMS, PROCESSES, DEVICES)]


class Drill:
    """Runs of one process, each made when it is needed, and what several processes are compared with."""

    def __init__(self, folder: Path):
        """Keeps the folder for the runs."""
        self._folder = folder
        runs.write_data(folder / 'data')

    def _train(self, system: str, processes: int, devices: int) -> Path:
        folder = self._folder / f'{system}_{processes}_{devices}'
        if not folder.exists():
            shutil.copytree(self._folder / 'data', folder / 'data')
            write_config(folder / 'config.py', SYSTEMS[system][0]() | BATCH)
            argv = [jobs.process(runs.TRAIN, n, processes) for n in range(processes)] if processes > 1 else [runs.TRAIN]
            results = jobs.call(argv, folder, devices)
            assert all(result.code == 0 for result in results), [result.error for result in results]
            assert ['rsum' in result.output for result in results] == [True] + [False] * (processes - 1)
        return folder

    def check(self, system: str, processes: int, devices: int) -> None:
        """Trains a system.

        Raises:
          AssertionError: if a process fails, or the bytes differ.
        """
        one, several = self._train(system, 1, processes * devices), self._train(system, processes, devices)
        for part in SYSTEMS[system][1]:
            assert_same_training(several / part, one / part)
        shutil.rmtree(several)
