"""Rewrites the tables of the pages of docs that have measurements of speed and memory, from stored rows.

    python -m benchmarks members --json docs/timings.jsonl
    python -m benchmarks tables

A table of the page follows a comment that names its command: `<!-- benchmarks members -->`.
"""

import argparse
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks import accelerators, device, results
from benchmarks.results import DOCS, Row

PAGES = DOCS / 'speed.md', *(DOCS / 'notes' / f'{name}.md' for name in ('timings', 'precision', 'accelerators'))
SHARES = 'system', 'jitm % of the rate', 'PyTorch % of the rate', 'ratio', 'jitm MiB', 'PyTorch MiB'


def tables() -> dict[str, list[Row]]:
    """Returns the rows of every table by the command, or the name, in the comment above it."""
    timings = results.read(DOCS / 'timings.jsonl')
    return (
        timings
        | {'peers shares': shares(timings)}
        | results.read(DOCS / 'precision.jsonl')
        | accelerators.tables(DOCS / 'accelerators.jsonl')
        | device.tables(DOCS / 'devices.jsonl')
    )


def shares(timings: Mapping[str, list[Row]]) -> list[Row]:
    """Returns the columns `SHARES` of the newest comparison of each system's training step with PyTorch."""
    compared = [
        rows for command, rows in timings.items() if command.split()[0] == 'peers' and '--evaluate' not in command
    ]
    newest = {row['system']: row for row in itertools.chain(*compared)}
    return [{column: row[column] for column in SHARES} for row in newest.values()]


def pages() -> Iterator[tuple[Path, str]]:
    """Yields each page and its text with new tables."""
    for page in PAGES:
        yield page, results.rewritten(page.read_text(encoding='utf-8'), tables())


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds no flags."""


def run(args: argparse.Namespace) -> list[Row]:
    """Rewrites the pages."""
    del args
    results.rewrite(pages())
    return []
