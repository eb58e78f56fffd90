"""SIGKILL at random moments: the restarted command ends with the same bytes as an uninterrupted one."""

import functools
import multiprocessing
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jitm import ranges
from tests.drills import runs
from tests.test_train import assert_same_run
from tests.training.models import tiny_tags_dc

MAX_KILLS = 3  # of one command
HINGE = {'weight': 1.0, 'start_epoch': 0, 'end_epoch': None, 'reduction': 'sum'}
BOOST = HINGE | {'loss': 'anchored.absolute_max', 'margin': 0.2, 'alpha': 0.5}
OFFLINE = HINGE | {'loss': 'offline.adaptive_offline_quintuplet', 'online_margin': 0.2, 'offline_margin': 0.0}


def plain() -> dict[str, Any]:
    return runs.make_config(epochs=2)


def boosted(anchor: dict[str, Any]) -> dict[str, Any]:
    """Returns a config whose target learns from an anchor."""
    config = plain()
    target = {'rule': 'gradient', 'learn_from': ['anchor'], 'init_from': ''}
    return config | {'members': {'anchor': anchor, 'target': target}, 'terms': config['terms'] | {'boost': BOOST}}


def two_stages() -> dict[str, Any]:
    second = runs.make_config() | {'terms': {'ranking': OFFLINE}}
    first = {key: value for key, value in runs.make_config().items() if key not in ranges.SHARED}
    second['offline'] |= {'top_h_texts': 6, 'top_h_images': 3}
    return second | {'stages': {'first': first, 'top_h_texts': 10, 'top_h_images': 5, 'fine_tune': False}}


def tags_dc() -> dict[str, Any]:
    return tiny_tags_dc({'source': 'scenes.load', 'seed': 0, 'dev_images': 10, 'test_images': 10})


class Scenario(NamedTuple):
    """A command that is killed.

    Attributes:
      argv: the command.
      make: its config; None for that of the trained run.
      folders: what it writes, run directories or folders of arrays.
    """

    argv: tuple[str, ...]
    make: Callable[[], dict[str, Any]] | None = None
    folders: tuple[str, ...] = ('killed',)


TRAIN = ('train', '--config', 'config.py', '--workdir', 'killed')
SCENARIOS = {
    'mining': Scenario((*runs.MINE, '--memory_mb', '1'), None, ('mined',)),
    'scoring': Scenario((*runs.EVALUATE, '--save_sims', '--memory_mb', '1'), None, ('evaluated',)),
    'plain': Scenario(TRAIN, plain),
    'oss': Scenario(TRAIN, lambda: boosted({'rule': 'gradient', 'learn_from': [], 'init_from': ''})),
    'mss': Scenario(TRAIN, lambda: boosted({'rule': 'ema', 'of': 'target', 'momentum': 0.9})),
    'aoq': Scenario(TRAIN, two_stages, ('killed/stage1', 'killed/candidates', 'killed/stage2')),
    'tags_dc': Scenario(TRAIN, tags_dc),
}


def _work(argv: tuple[str, ...], folder: Path, cache: Path) -> None:
    """Runs a command in a process of its own."""
    jax.config.update('jax_compilation_cache_dir', str(cache))
    os.environ['JAX_COMPILATION_CACHE_DIR'] = str(cache)  # a killed process may leave part of a file there
    with runs.inside(folder):
        result = runs.call(argv)
        Path('result').write_text(f'{result.code}\n{result.error}')


@functools.cache
def _processes() -> multiprocessing.context.ForkServerContext:
    """Returns a context whose processes have imported everything."""
    context = multiprocessing.get_context('forkserver')
    commands = [f'jitm.commands.{name}' for name in ('train', 'eval', 'mine')]
    context.set_forkserver_preload(['tests.drills.kills', *commands])
    return context


def run_for(argv: tuple[str, ...], folder: Path, seconds: float | None = None) -> bool:
    """Runs a command in a process of its own, which is killed after some seconds; returns whether it was killed."""
    process = _processes().Process(target=_work, args=(argv, folder, folder.parent / 'cache'))
    process.start()
    process.join(seconds)
    killed = process.is_alive()
    process.kill()
    process.join()
    if not killed:
        assert (folder / 'result').read_text().startswith('0\n'), (folder / 'result').read_text()
    return killed


def assert_same(one: Path, other: Path) -> None:
    """The results of a command in two folders agree to the last bit."""
    if (one / 'checkpoints').exists():
        assert_same_run(one, other)
        assert not (one / 'damaged').exists()
    else:
        names = {'timing.jsonl'}
        first, second = ({k: v for k, v in runs.contents(x).items() if k not in names} for x in (one, other))
        assert first == second, sorted(first.keys() ^ second.keys())


class Drill:
    """The uninterrupted commands, each made when it is needed, and what interrupted ones are compared with."""

    def __init__(self, base: Path, folder: Path):
        """Keeps the folders.

        Args:
          base: the folder of `runs.write_base`.
          folder: for the runs.
        """
        self._base, self._folder = base, folder
        self._seconds: dict[str, float] = {}
        folder.mkdir(parents=True)

    def _start(self, name: str, folder: Path) -> Path:
        shutil.copytree(self._base, folder)
        if make := SCENARIOS[name].make:
            runs.write_config(folder / 'config.py', make())
        return folder

    def _whole(self, name: str) -> Path:
        """Returns the folder of an uninterrupted command, and notes how long it takes when everything is compiled."""
        folder = self._folder / name
        if name not in self._seconds:
            run_for(SCENARIOS[name].argv, self._start(name, self._folder / f'{name}_compiling'))
            start = time.monotonic()
            run_for(SCENARIOS[name].argv, self._start(name, folder))
            self._seconds[name] = time.monotonic() - start
        return folder

    def survives(self, name: str, rng: random.Random, max_kills: int = MAX_KILLS) -> int:
        """Kills a command at random moments and restarts it until its end; returns the number of kills.

        Raises:
          AssertionError: if it fails, or ends with other bytes than an uninterrupted one.
        """
        argv, whole = SCENARIOS[name].argv, self._whole(name)
        folder = self._start(name, self._folder / f'{name}_killed')
        kills = 0
        while kills < max_kills and run_for(argv, folder, rng.uniform(0.1, 1) * self._seconds[name]):
            kills += 1
        run_for(argv, folder)
        for part in SCENARIOS[name].folders:
            assert_same(folder / part, whole / part)
        shutil.rmtree(folder)
        return kills
