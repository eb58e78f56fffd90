"""Processes of one job."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence

from tests.conftest import ROOT, environment, free_port


@contextlib.contextmanager
def started(*commands: Sequence[object], **variables: str) -> Iterator[list[subprocess.Popen]]:
    """Starts Python commands as the processes of one job, which are killed at the end of the block.

    Args:
      commands: those of process 0, 1, ...
      variables: of their environment.
    """
    flags = f'--coordinator=localhost:{free_port()}', f'--num_processes={len(commands)}'
    pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE, 'text': True, 'cwd': ROOT}
    with contextlib.ExitStack() as stack:
        processes = []
        for number, command in enumerate(commands):
            words = [sys.executable, *map(str, command), *flags, f'--process_id={number}']
            processes.append(subprocess.Popen(words, env=environment(**variables), **pipes))
            stack.callback(processes[-1].kill)
        yield processes


def ends(processes: list[subprocess.Popen]) -> tuple[list[int], list[str], list[str]]:
    """The exit codes, outputs and errors of processes, when they end."""
    outputs = [process.communicate() for process in processes]
    return [process.returncode for process in processes], *map(list, zip(*outputs, strict=True))


def run_processes(count: int, *command: object, **variables: str) -> list[str]:
    """The outputs of a Python command run as several processes of one job, which must all succeed."""
    with started(*[command] * count, **variables) as processes:
        codes, outputs, errors = ends(processes)
    assert codes == [0] * count, errors
    return outputs
