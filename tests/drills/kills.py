"""SIGKILL at random moments: the restarted command ends with the same bytes as an uninterrupted one.

No command takes for whole what a killed one has left. Of the processes of one job, one or more are killed, and the
others must end by themselves.
"""

import json
import multiprocessing.connection
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.numpy import save_file

from jitm.config import schema
from jitm.importers.systems import SYSTEMS
from jitm.importers.tensors import export
from jitm.runs.run import load_run
from tests.drills import jobs, runs
from tests.same import assert_same_run
from tests.support.configs import write_config
from tests.support.steps import make_clip, tiny_tags_dc

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
    first = {key: value for key, value in runs.make_config().items() if key not in schema.SHARED}
    second['offline'] |= {'top_h_texts': 6, 'top_h_images': 3}
    return second | {'stages': {'first': first, 'top_h_texts': 10, 'top_h_images': 5, 'fine_tune': False}}


def tags_dc() -> dict[str, Any]:
    return tiny_tags_dc({'source': 'scenes.load', 'seed': 0, 'dev_images': 10, 'test_images': 10})


def write_photos(folder: Path) -> None:
    """Writes photos with captions and `run`, a CLIP that is trained on them."""
    from tests.drills import photos  # which imports `inputs`, which imports this module

    photos.write_base(folder, {'train': 700, 'dev': 100})  # an index has parts of 512 images
    config = make_clip('photos') | {'epochs': 1, 'batch_size': 350}
    write_config(folder / 'config.py', config)
    _prepare(folder, runs.TRAIN)


def write_published(folder: Path) -> None:
    """Writes `run`, and its weights as the authors of VSE++ publish theirs."""
    runs.write_base(folder)
    run = load_run(folder / 'run')
    (folder / 'authors').mkdir()
    options = {'measure': 'cosine', 'no_imgnorm': False, 'use_abs': False}
    tensors = export(run.variables, SYSTEMS['vsepp'].names)
    save_file(tensors, folder / 'authors' / 'model.safetensors', {'opt': json.dumps(options)})
    (folder / 'authors' / 'vocabulary.json').write_text(run.vocabulary.to_json())


def _prepare(folder: Path, argv: tuple[str, ...]) -> None:
    with runs.inside(folder):
        result = runs.call(argv)
    assert result.code == 0, result.error


class Scenario(NamedTuple):
    """A command that is killed.

    Attributes:
      argv: the command.
      make: its config; None for that of the trained run.
      folders: what it writes, run directories or folders of files.
      write: writes the folder in which it starts; None for that of `runs.write_base`.
      reader: a command that must refuse what a killed one has left; None if nothing is to be tried.
      ended: the refusal of a command that has ended before; '' if it is repeated.
      processes: the processes of the job.
    """

    argv: tuple[str, ...]
    make: Callable[[], dict[str, Any]] | None = None
    folders: tuple[str, ...] = ('killed',)
    write: Callable[[Path], None] | None = None
    reader: tuple[str, ...] | None = None
    ended: str = ''
    processes: int = 1


INDEX = ('search', '--workdir', 'run', '--images', 'photos/train', '--index', 'index', 'a dog')
ENCODE = ('encode', '--workdir', 'run', '--out', 'encoded')
PUBLISH = ('convert', '--to', 'safetensors', 'run', '--out', 'published')
IMPORT = ('convert', '--from', 'vsepp', 'authors', '--out', 'imported')
READ = '--output', 'read'
TRAIN = ('train', '--config', 'config.py', '--workdir', 'killed')
SCENARIOS = {
    'mining': Scenario((*runs.MINE, '--memory_mb', '1'), None, ('mined',)),
    'scoring': Scenario((*runs.EVALUATE, '--save_sims', '--memory_mb', '1'), None, ('evaluated',)),
    'plain': Scenario(TRAIN, plain),
    'oss': Scenario(TRAIN, lambda: boosted({'rule': 'gradient', 'learn_from': [], 'init_from': ''})),
    'mss': Scenario(TRAIN, lambda: boosted({'rule': 'ema', 'of': 'target', 'momentum': 0.9})),
    'aoq': Scenario(TRAIN, two_stages, ('killed/stage1', 'killed/candidates', 'killed/stage2')),
    'tags_dc': Scenario(TRAIN, tags_dc),
    'evaluating': Scenario((*runs.EVALUATE, '--save_sims', '--save_vectors'), None, ('evaluated',)),
    'indexing': Scenario(INDEX, None, ('index',), write_photos),
    'encoding': Scenario(ENCODE, None, ('encoded',), write_photos),
    'publishing': Scenario(PUBLISH, None, ('published',), reader=('eval', '--workdir', 'published', *READ)),
    'importing': Scenario(
        IMPORT,
        None,
        ('imported',),
        write_published,
        ('eval', '--workdir', 'imported', '--data_root', 'data', *READ),
        'is a converted run already',
    ),
    'four processes': Scenario(TRAIN, plain, processes=4),
}


def run_for(scenario: Scenario, folder: Path, rng: random.Random | None = None, seconds: float = jobs.TO_END) -> bool:
    """Runs a command in processes of its own, some of which are killed after some seconds.

    Args:
      scenario: the command.
      folder: where it runs.
      rng: chooses which of several processes are killed; None to kill none.
      seconds: the time until then.

    Returns:
      Whether one was killed.

    Raises:
      AssertionError: if a command fails that was not killed, or does not end.
    """
    argv, count = scenario.argv, scenario.processes
    processes = jobs.start([argv] if count == 1 else [jobs.process(argv, n, count) for n in range(count)], folder)
    multiprocessing.connection.wait([process.sentinel for process in processes], seconds)
    running = [process for process in processes if process.is_alive()]
    killed = rng is not None and len(running) == len(processes)
    if killed:
        for process in rng.sample(running, rng.randint(1, len(running))):
            process.kill()
    jobs.wait(processes)
    if not killed:
        for result in jobs.results(folder, len(processes)):
            assert result.code == 0 or (scenario.ended and scenario.ended in result.error), result.error
    return killed


def assert_not_taken_for_whole(scenario: Scenario, folder: Path, whole: Path) -> None:
    """The reader of what a killed command has left refuses it in a sentence, unless it is whole."""
    (result,) = jobs.call([scenario.reader], folder)
    if result.code:
        assert result.error.startswith('error: '), result.error
        assert not (folder / 'read').exists()
        return
    shutil.rmtree(folder / 'read')
    for part in scenario.folders:
        assert_same(folder / part, whole / part)


def assert_same(one: Path, other: Path) -> None:
    """The results of a command in two folders agree to the last bit."""
    if (one / 'metrics.jsonl').exists():
        assert_same_run(one, other)
        assert not (one / 'damaged').exists(), 'a checkpoint was taken for damaged'
    elif not (one / 'checkpoints').exists():  # those of a converted run hold times; its reader evaluates it
        first, second = runs.contents(one), runs.contents(other)
        for name in ('timing.jsonl', 'encoded.json'):  # the latter has the path of the run
            first.pop(name, None)
            second.pop(name, None)
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
        scenario = SCENARIOS[name]
        shutil.rmtree(folder, ignore_errors=True)  # of one that failed
        shutil.copytree(self._base_of(scenario), folder)
        if scenario.make:
            write_config(folder / 'config.py', scenario.make())
        return folder

    def _base_of(self, scenario: Scenario) -> Path:
        if scenario.write is None:
            return self._base
        base = self._folder / scenario.write.__name__
        if not base.exists():
            scenario.write(base)
        return base

    def _whole(self, name: str) -> Path:
        """Returns the folder of an uninterrupted command, and notes how long it took."""
        folder = self._folder / name
        if name not in self._seconds:
            start = time.monotonic()
            run_for(SCENARIOS[name], self._start(name, folder))
            self._seconds[name] = time.monotonic() - start
        return folder

    def survives(self, name: str, rng: random.Random, max_kills: int = MAX_KILLS) -> int:
        """Kills a command at random moments and restarts it until its end.

        Returns:
          The number of kills, at least 1.

        Raises:
          AssertionError: if it fails, or ends with other bytes than an uninterrupted one.
        """
        scenario = SCENARIOS[name]
        whole = self._whole(name)
        folder = self._start(name, self._folder / f'{name}_killed')
        kills = 0
        while kills < max_kills:
            start = time.monotonic()
            if run_for(scenario, folder, rng, rng.uniform(0.1, 1) * self._seconds[name]):
                kills += 1
                if scenario.reader:
                    assert_not_taken_for_whole(scenario, folder, whole)
            elif kills:
                break
            else:  # it ended before it was killed, since it compiles less than the first one
                self._seconds[name] = time.monotonic() - start
                self._start(name, folder)
        run_for(scenario, folder)
        for part in scenario.folders:
            assert_same(folder / part, whole / part)
        shutil.rmtree(folder)
        return kills
