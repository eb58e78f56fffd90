"""Commands in processes of their own: one that is killed, or several processes of one job."""

import atexit
import functools
import json
import multiprocessing
import multiprocessing.connection
import os
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import jax

from jitm.devices import job
from tests.conftest import free_port
from tests.drills import runs

COMMANDS = 'train', 'eval', 'mine', 'search', 'encode', 'convert'
TO_END = 300  # seconds that a process may go on after another one of its job was killed
PORT = 'PORT'  # stands for one that is free when the processes start


def result_of(folder: Path, number: int = 0) -> Path:
    """Returns the file with the end of a process that was started in a folder."""
    return folder.with_name(f'{folder.name}_result{number}')


def _work(argv: Sequence[str], folder: Path, number: int, devices: int) -> None:
    """Runs a command and writes how it ended."""
    cache = folder.parent / 'cache'
    jax.config.update('jax_num_cpu_devices', devices)
    jax.config.update('jax_compilation_cache_dir', str(cache))
    os.environ['JAX_COMPILATION_CACHE_DIR'] = str(cache)  # a killed process may leave part of a file there
    with runs.inside(folder):
        result = runs.call(argv)
    result_of(folder, number).write_text(json.dumps(result))
    job.leave(result.code)
    atexit._run_exitfuncs()  # which `multiprocessing` leaves out: a process waits for the others of its job


@functools.cache
def _context() -> multiprocessing.context.ForkServerContext:
    """Returns a context whose processes have imported everything."""
    context = multiprocessing.get_context('forkserver')
    context.set_forkserver_preload(['tests.drills.kills', *(f'jitm.commands.{name}' for name in COMMANDS)])
    return context


def process(argv: Sequence[str], number: int, count: int) -> tuple[str, ...]:
    """Returns the command of a process of a job of so many."""
    return (*argv, f'--coordinator=localhost:{PORT}', f'--num_processes={count}', f'--process_id={number}')


def start(commands: Sequence[Sequence[str]], folder: Path, devices: int = 1) -> list[BaseProcess]:
    """Starts a process with so many devices for each command in a folder."""
    port = str(free_port())
    started = []
    for number, argv in enumerate(commands):
        result_of(folder, number).unlink(missing_ok=True)  # of one that had ended when another one was killed
        words = [word.replace(PORT, port) for word in argv]
        started.append(_context().Process(target=_work, args=(words, folder, number, devices)))
        started[-1].start()
    return started


def wait(started: Sequence[BaseProcess]) -> None:
    """Waits for the end of processes.

    Raises:
      AssertionError: if one does not end in time; all are killed.
    """
    deadline = time.monotonic() + TO_END
    for process in started:
        process.join(max(0, deadline - time.monotonic()))
    going_on = [process for process in started if process.is_alive()]
    for process in going_on:
        process.kill()
        process.join()
    assert not going_on, f'{len(going_on)} of {len(started)} processes do not end'


def results(folder: Path, count: int) -> list[runs.Result]:
    """Reads how the processes that were started in a folder have ended, and removes the files."""
    read = []
    for number in range(count):
        path = result_of(folder, number)
        code, output, error, warnings = json.loads(path.read_text())
        read.append(runs.Result(code, output, error, tuple(warnings)))
        path.unlink()
    return read


def call(commands: Sequence[Sequence[str]], folder: Path, devices: int = 1) -> list[runs.Result]:
    """Runs the processes of a job in a folder to their end."""
    wait(start(commands, folder, devices))
    return results(folder, len(commands))
