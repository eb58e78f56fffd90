"""Two processes that take turns: each does what the lines of its standard input say and answers a line."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.results import ROOT
from jitm.errors import UserError

Work = Callable[[object], tuple[float, list[float]]]  # a command -> the seconds that it took, and numbers


class Answer(NamedTuple):
    """The seconds of some work, the numbers that it computed, and the largest memory of the process so far."""

    seconds: float
    numbers: list[float]
    mebibytes: float


class Worker:
    """A process with a module of benchmarks that calls `main`; a context manager, which ends it."""

    def __init__(self, module: str, folder: Path, cores: int):
        """Starts the process on some cores, with a folder of its inputs."""
        command = [sys.executable, '-m', f'benchmarks.{module}', str(folder), str(cores)]
        pipes = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE}
        self._module, self._process = module, subprocess.Popen(command, cwd=ROOT, text=True, **pipes)

    def __call__(self, work: object) -> Answer:
        """Waits for an answer.

        Raises:
          UserError: If the process has failed.
        """
        self._process.stdin.write(json.dumps(work) + '\n')
        self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            raise UserError(f'benchmarks.{self._module} failed; its error is above')
        return Answer(*json.loads(line))

    def __enter__(self) -> 'Worker':
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def main(make: Callable[[Path, int], Work]) -> None:
    """Does what each line of the standard input says, on some cores.

    Args:
      make: A function of the folder and of the number of cores on the command line, which returns what does the work.
    """
    folder, cores = Path(sys.argv[1]), int(sys.argv[2])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    do = make(folder, cores)
    for line in sys.stdin:
        result = Answer(*do(json.loads(line)), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        print(json.dumps(result), flush=True)
