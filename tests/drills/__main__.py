"""Runs the drills for some minutes and prints a line of counts for each.

python -m tests.drills --minutes 30
python -m tests.drills --minutes 30 --seed 7 --only kills
"""

import argparse
import collections
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
Counts = collections.Counter


def _until(seconds: float, at_least: int = 0) -> Iterator[int]:
    """Counts from 0 until the time is over, but to a number at least."""
    end, number = time.monotonic() + seconds, 0
    while number < at_least or time.monotonic() < end:
        yield number
        number += 1


def _fail(text: str) -> str:
    print(f'FAILED {text}', flush=True)
    return 'failed'


def try_inputs(base: Path, folder: Path, rng: random.Random, seconds: float) -> Counts:
    """Tries the whole table once, in random order, and then random damage until the time is over."""
    bases = {'photos': folder / 'photos', 'features of photos': folder / 'features'}
    photos.write_base(bases['photos'])
    features.write_base(bases['features of photos'])
    sections = inputs.sections(base) | {'photos': [*photos.rows()], 'features of photos': [*features.rows()]}
    table = [(section, row) for section, rows in sections.items() for row in rows]
    rng.shuffle(table)
    counts = Counts()
    for number in _until(seconds, len(table)):
        section, row = table[number] if number < len(table) else ('cuts of features', inputs.random_row(rng, base))
        start = bases.get(section, base)
        problem = inputs.check(row, start, folder / f'copy of {start.name}')
        counts['tried'] += 1
        counts[_fail(f'{section}, {row.name}: {problem}') if problem else f'one sentence: {section}'] += 1
    return counts


def try_disks(base: Path, folder: Path, rng: random.Random, seconds: float) -> Counts:
    """Fills a small disk at random."""
    counts = Counts()
    with disks.small_disk(folder, 8192) as reason:
        if reason:
            print(f'full disk: skipped, {reason}')
            return counts
        for _ in _until(seconds):
            argv = rng.choice(disks.COMMANDS)
            room = rng.randrange(1500 if argv == runs.TRAIN else 4)
            problem = disks.check(base, folder, room, argv)
            counts['tried'] += 1
            counts[_fail(f'{argv[0]}, {room} KiB: {problem}') if problem else 'one sentence, then resumed'] += 1
            shutil.rmtree(folder / 'work')
            (folder / 'filler').unlink(missing_ok=True)
    return counts


def try_flips(base: Path, folder: Path, rng: random.Random, seconds: float) -> Counts:
    """Damages each file of a run directory in turn, for each command at least once."""
    drill, names, counts = flips.Drill(base, folder), flips.files(base), Counts()
    commands = sorted(flips.COMMANDS)
    for number in _until(seconds, len(names) * len(commands)):
        turn, command = divmod(number, len(commands))
        flip = flips.random_flip(names[turn % len(names)], base, rng)
        outcome = drill.outcome(commands[command], flip)
        counts['tried'] += 1
        wrong = outcome.startswith(flips.WRONG)
        counts[_fail(f'{flip}: {outcome}') if wrong else f'{commands[command]}: {outcome}'] += 1
    return counts


def try_kills(base: Path, folder: Path, rng: random.Random, seconds: float) -> Counts:
    """Kills each command in turn, at least once."""
    drill, names, counts = kills.Drill(base, folder), list(kills.SCENARIOS), Counts()
    for number in _until(seconds, len(names)):
        name = names[number % len(names)]
        try:
            counts[f'kills of {name}'] += drill.survives(name, rng)
            counts[f'{name} to the same end'] += 1
        except AssertionError:
            counts[_fail(f'{name}: {traceback.format_exc()[-600:]}')] += 1
    return counts


def try_processes(base: Path, folder: Path, rng: random.Random, seconds: float) -> Counts:
    """Trains each system by several processes, by each number of them and of devices at least once."""
    drill, counts = processes.Drill(folder), Counts()
    for number in _until(seconds, len(processes.CASES)):
        system, *numbers = case = processes.CASES[number % len(processes.CASES)]
        counts['tried'] += 1
        try:
            drill.check(*case)
            counts[f'the same bytes of {system}'] += 1
        except AssertionError:
            counts[_fail(f'{system} by {numbers}: {traceback.format_exc()[-600:]}')] += 1
    return counts


DRILLS: dict[str, Callable[[Path, Path, random.Random, float], Counts]] = {
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
    failed, shares = 0, sum(SHARES[name] for name in flags.only)
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / 'base'
        runs.write_base(base)
        for name in flags.only:
            rng, seconds = random.Random(f'{flags.seed} {name}'), SHARES[name] / shares * 60 * flags.minutes
            counts = DRILLS[name](base, Path(folder) / name, rng, seconds)
            failed += counts['failed']
            print(f'{name}: {", ".join(f"{count} {what}" for what, count in counts.items())}', flush=True)
    return int(bool(failed))


if __name__ == '__main__':
    sys.exit(main())
