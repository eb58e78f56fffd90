"""Runs the drills for some minutes and prints a line of counts for each.

python -m tests.drills --minutes 30
python -m tests.drills --minutes 30 --seed 7 --only kills
"""

import argparse
import collections
import itertools
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.drills import disks, features, flips, inputs, kills, photos, processes, runs

SHARES = {'inputs': 0.2, 'disks': 0.1, 'flips': 0.2, 'kills': 0.35, 'processes': 0.15}  # of the time
Outcomes = Iterator[tuple[str, str | None]]  # what was tried and how it ends, and what is wrong


def _until(seconds: float, at_least: int = 0) -> Iterator[int]:
    """Counts from 0 until the time is over, but to a number at least."""
    end = time.monotonic() + seconds
    number = 0
    while number < at_least or time.monotonic() < end:
        yield number
        number += 1


def _last_lines() -> str:
    """Returns the end of the traceback of a failed assertion."""
    return traceback.format_exc()[-600:]


def try_inputs(base: Path, folder: Path, rng: random.Random, seconds: float) -> Outcomes:
    """Tries the whole table once, in random order, and then random damage until the time is over."""
    bases = {'photos': folder / 'photos', 'features of photos': folder / 'features'}
    photos.write_base(bases['photos'])
    features.write_base(bases['features of photos'])
    sections = inputs.sections(base) | {'photos': [*photos.rows()], 'features of photos': [*features.rows()]}
    table = []
    for section, rows in sections.items():
        table += [(section, row) for row in rows]
    rng.shuffle(table)
    for number in _until(seconds, len(table)):
        section, row = table[number] if number < len(table) else ('cuts of features', inputs.random_row(rng, base))
        start = bases.get(section, base)
        problem = inputs.check(row, start, folder / f'copy of {start.name}')
        yield f'one sentence: {section}', problem and f'{row.name}: {problem}'


def try_disks(base: Path, folder: Path, rng: random.Random, seconds: float) -> Outcomes:
    """Fills a small disk at random."""
    with disks.small_disk(folder, 8192) as reason:
        if reason:
            print(f'full disk: skipped, {reason}')
            return
        for _ in _until(seconds):
            argv = rng.choice(disks.COMMANDS)
            room = rng.randrange(1500 if argv == runs.TRAIN else 4)
            problem = disks.check(base, folder, room, argv)
            yield 'one sentence, then resumed', problem and f'{argv[0]}, {room} KiB: {problem}'
            shutil.rmtree(folder / 'work')
            (folder / 'filler').unlink(missing_ok=True)


def try_flips(base: Path, folder: Path, rng: random.Random, seconds: float) -> Outcomes:
    """Damages each file of a run directory in turn, for each command at least once."""
    drill = flips.Drill(base, folder)
    cases = [*itertools.product(flips.files(base), sorted(flips.COMMANDS))]
    for number in _until(seconds, len(cases)):
        name, command = cases[number % len(cases)]
        flip = flips.random_flip(name, base, rng)
        outcome = drill.outcome(command, flip)
        yield f'{command}: {outcome}', f'{flip}: {outcome}' if outcome.startswith(flips.WRONG) else None


def try_kills(base: Path, folder: Path, rng: random.Random, seconds: float) -> Outcomes:
    """Kills each command in turn, at least once."""
    drill = kills.Drill(base, folder)
    names = [*kills.SCENARIOS]
    for number in _until(seconds, len(names)):
        name = names[number % len(names)]
        try:
            count = drill.survives(name, rng)
        except AssertionError:
            yield name, _last_lines()
        else:
            yield f'{name} to the same end after {count} kills', None


def try_processes(base: Path, folder: Path, rng: random.Random, seconds: float) -> Outcomes:
    """Trains each system by several processes, by each number of them and of devices at least once."""
    drill = processes.Drill(folder)
    for number in _until(seconds, len(processes.CASES)):
        case = processes.CASES[number % len(processes.CASES)]
        try:
            drill.check(*case)
        except AssertionError:
            yield str(case), _last_lines()
        else:
            yield f'the same bytes of {case[0]}', None


DRILLS: dict[str, Callable[[Path, Path, random.Random, float], Outcomes]] = {
    'inputs': try_inputs,
    'disks': try_disks,
    'flips': try_flips,
    'kills': try_kills,
    'processes': try_processes,
}


def main() -> int:
    """Runs the drills; returns 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog='python -m tests.drills')
    parser.add_argument('--minutes', type=float, default=30)
    parser.add_argument('--seed', type=int, default=random.randrange(10**6))
    parser.add_argument('--only', nargs='+', choices=DRILLS, default=list(DRILLS), help='the drills to run')
    flags = parser.parse_args()
    print(f'seed {flags.seed}, {flags.minutes:g} minutes', flush=True)
    failed = 0
    shares = sum(SHARES[name] for name in flags.only)
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / 'base'
        runs.write_base(base)
        for name in flags.only:
            rng = random.Random(f'{flags.seed} {name}')
            seconds = SHARES[name] / shares * 60 * flags.minutes
            counts = collections.Counter()
            for outcome, problem in DRILLS[name](base, Path(folder) / name, rng, seconds):
                counts['tried'] += 1
                counts['failed' if problem else outcome] += 1
                if problem:
                    print(f'FAILED {outcome}, {problem}', flush=True)
            failed += counts['failed']
            print(f'{name}: {", ".join(f"{count} {outcome}" for outcome, count in counts.items())}', flush=True)
    return int(bool(failed))


if __name__ == '__main__':
    sys.exit(main())
