"""Bit flips and deletions in a run directory: a command gives the same result or one sentence."""

import random
import re
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from jitm.runs.checkpoint import Checkpoints
from tests.drills import runs
from tests.same import assert_same_run

COMMANDS = {'train': runs.TRAIN, 'eval': (*runs.EVALUATE, '--save_sims'), 'mine': runs.MINE, 'report': runs.REPORT}
RESULTS = {'train': 'run', 'eval': 'evaluated', 'mine': 'mined', 'report': 'reported'}
UNCHECKED = ('run/timing.jsonl', 'run/config.json')  # lost times, and paths of files, which reports show
SAME, NOTICED, WARNED, WRONG = 'same', 'one sentence', 'a warning', 'silently wrong'
UNNOTICED = 'unnoticed in reported times or paths'


class Flip(NamedTuple):
    """Damage of a file: a bit that is flipped, or None for its deletion."""

    name: str
    bit: int | None

    def apply(self, folder: Path) -> None:
        """Damages the file."""
        path = folder / self.name
        if self.bit is None:
            path.unlink()
            return
        data = bytearray(path.read_bytes())
        data[self.bit // 8] ^= 1 << self.bit % 8
        path.write_bytes(data)


def files(base: Path) -> list[str]:
    """Returns the names of all files of the run."""
    return sorted(name for name in runs.contents(base) if name.startswith('run/'))


def random_flip(name: str, base: Path, rng: random.Random) -> Flip:
    """Returns a flipped bit, or in one of three cases a deletion."""
    bits = 8 * (base / name).stat().st_size
    return Flip(name, None if not bits or rng.random() < 1 / 3 else rng.randrange(bits))


def result(command: str, folder: Path) -> dict[str, bytes]:
    """Returns the files that a command has written."""
    return runs.contents(folder / RESULTS[command])


def _same_training(folder: Path, base: Path) -> bool:
    """Whether the models are the same, to the last bit."""
    try:
        assert_same_run(folder / 'run', base / 'run')
    except AssertionError:
        return False
    return True


def _same_models(folder: Path, base: Path) -> bool:
    """Whether the best checkpoints have the same parameters."""
    with Checkpoints(folder / 'run') as damaged, Checkpoints(base / 'run') as whole:
        step = whole.best_step()
        if damaged.best_step() != step:
            return False
        members = [jax.tree.leaves(checkpoints.read(step)[0]['members']) for checkpoints in (damaged, whole)]
    return all(np.array_equal(*leaves) for leaves in zip(*members, strict=True))


class Drill:
    """The results of the commands on a whole run, with which those on a damaged one are compared."""

    def __init__(self, base: Path, folder: Path):
        """Computes the results.

        Args:
          base: the folder of `runs.write_base`.
          folder: for copies.
        """
        self._base, self._folder = base, folder
        folder.mkdir(parents=True)
        self._expected = {}
        for command, argv in COMMANDS.items():
            with runs.copy_of(base, folder / command):
                assert runs.call(argv).code == 0
                self._expected[command] = result(command, folder / command)

    def outcome(self, command: str, flip: Flip) -> str:
        """Returns how a command ends on the damaged run: `SAME`, `NOTICED`, `WARNED`, `UNNOTICED`, or `WRONG`, why."""
        folder = self._folder / 'damaged'
        with runs.copy_of(self._base, folder):
            flip.apply(folder)
            code, _, error, warnings = runs.call(COMMANDS[command])
            if code == 2 and re.search(r'^error: .+\n\Z', error, re.MULTILINE) and 'Traceback' not in error:
                return NOTICED
            if code != 0:
                return f'{WRONG}: exit code {code}, {error[-300:]!r}'
            if command == 'train':
                same = _same_training(folder, self._base)
                same_models = _same_models(folder, self._base)
            else:
                same = result(command, folder) == self._expected[command]
                same_models = command == 'report'
            if same:
                return SAME
            if same_models and any('metrics.jsonl' in warning for warning in warnings):
                return WARNED
            unchecked = command == 'report' and flip.name in UNCHECKED
            return UNNOTICED if unchecked else f'{WRONG}: another result of {command}'


def sample(base: Path, rng: random.Random, count: int) -> list[tuple[str, Flip]]:
    """Returns some commands with damage, of different files."""
    names = rng.sample(files(base), count)
    return [(rng.choice(sorted(COMMANDS)), random_flip(name, base, rng)) for name in names]
