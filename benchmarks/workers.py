"""Processes that take turns: each does what the lines of its standard input say and answers a line."""

import contextlib
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


class Answer(NamedTuple):
    """The answer to a command.

    Attributes:
      seconds: The time that it took.
      number: Its result.
      compiled: Whether something was compiled.
      mebibytes: The largest memory of the process so far.
    """

    seconds: float
    number: float
    compiled: bool
    mebibytes: float = 0.0


Work = Callable[[object], Answer]  # command -> answer, without the memory


class WorkerError(UserError):
    """A process failed.

    Attributes:
      reason: The name of the exception, or 'exit'.
    """

    def __init__(self, module: str, reason: str):
        super().__init__(f'benchmarks.{module} failed: {reason}; its error is above')
        self.reason = reason


class Worker:
    """A process with a module of benchmarks that calls `main`; a context manager, which ends it."""

    def __init__(self, module: str, folder: Path, cores: int, *options: str):
        """Starts the process on some cores, with a folder of its inputs and the options of the module."""
        command = [sys.executable, '-m', f'benchmarks.{module}', str(folder), str(cores), *options]
        pipes = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE}
        self._module, self._process = module, subprocess.Popen(command, cwd=ROOT, text=True, **pipes)

    def __call__(self, work: object) -> Answer:
        """Waits for an answer.

        Raises:
          WorkerError: If the process has failed.
        """
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(work) + '\n')
            self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline() or '"exit"')
        if isinstance(answer, str):
            raise WorkerError(self._module, answer)
        return Answer(*answer)

    def __enter__(self) -> 'Worker':
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def main(make: Callable[..., Work]) -> None:
    """Does what each line of the standard input says, on some cores, until it fails.

    Args:
      make: A function of the folder, the number of cores and the options on the command line, which returns what does
        the work.
    """
    folder, cores, options = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    do = make(folder, cores, *options)
    for line in sys.stdin:
        try:
            answer = do(json.loads(line))
        except Exception as error:
            print(json.dumps(type(error).__name__), flush=True)
            raise
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(answer._replace(mebibytes=memory)), flush=True)
