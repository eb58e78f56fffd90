"""Measures the start of `jitm train` up to its first step, without and with the compiled programs of an earlier start.

    python -m benchmarks start_up
    python -m benchmarks start_up --settings vsepp:vsepp,f30k --batch_size 128

The models have their published sizes; batches and data are small, because their sizes hardly change what is compiled.
A start includes imports, the first validation and its checkpoint. CPU seconds are summed over all threads: on a
busy machine they can be compared, but seconds cannot.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.memory import with_files, write_files
from benchmarks.results import ROOT, Row
from jitm.config.build import flatten
from jitm.config.overrides import unread

SETTINGS = ('vsepp:vsepp,f30k', 'sgraf:sgr,f30k', 'tags:tags_dc_single,base,f30k')
SMALL = {  # sizes that decide how long something runs, not what is compiled
    'candidates.num_extra': 8,
    'candidates.num_hard': 3,
    'masking.num_views': 2,
    'synthesis.num_samples': 4,
    'synthesis.num_hard': 3,
}


def arguments(setting: str, folder: Path, batch_size: int) -> list[str]:
    """Returns the arguments of `jitm train` for a setting with the files of a folder."""
    sections = with_files(setting, folder, batch_size)
    config = flatten(sections)
    keys = {key: config[key] for key in ('data.root', 'vocabulary.path', 'batch_size')}
    keys |= {key: value for key, value in SMALL.items() if config.get(key) and not unread(sections, key)}
    return ['--config', setting, *(f'--config.{key}={value}' for key, value in keys.items())]


def start(flags: list[str], workdir: Path, cache: Path) -> Row:
    """Trains until the first step is done, which prints a line, and kills the process."""
    environment = os.environ | {'JAX_COMPILATION_CACHE_DIR': str(cache), 'JAX_LOG_COMPILES': '1'}
    environment |= {'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0', 'PYTHONUNBUFFERED': '1'}
    command = [sys.executable, '-m', 'jitm', 'train', *flags, '--workdir', str(workdir)]
    started, compilations = time.perf_counter(), 0
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    for line in process.stdout:
        compilations += 'Finished XLA compilation' in line
        if line.startswith('compiled in '):
            break
    else:
        process.communicate()
        raise RuntimeError(f'{" ".join(command)} ended before its first step')
    seconds = time.perf_counter() - started
    process.send_signal(signal.SIGKILL)
    _, _, usage = os.wait4(process.pid, 0)
    process.stdout.close()
    process.returncode = -signal.SIGKILL
    return {'s': seconds, 'CPU s': usage.ru_utime + usage.ru_stime, 'compilations': compilations}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.add_argument('--settings', nargs='+', default=SETTINGS, help='NAME:OPTIONS of settings')
    parser.add_argument('--batch_size', type=int, default=8)


def run(args: argparse.Namespace) -> Iterator[Row]:
    """Starts each setting without and with compiled programs; the ratio compares CPU seconds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder)
        for number, setting in enumerate(args.settings):
            flags, first = arguments(setting, folder, args.batch_size), None
            for programs in ('none', 'cached'):
                row = start(flags, folder / f'{number}_{programs}', folder / f'{number}_cache')
                first = first or row['CPU s']
                yield {'setting': setting, 'programs': programs, **row, 'ratio': row['CPU s'] / first}
