"""Rewrites the tables of the pages of docs/notes that have measurements of speed and memory, from stored rows.

    python -m benchmarks members --json docs/timings.jsonl
    python -m benchmarks tables

A table of the page follows a comment that names its command: `<!-- benchmarks members -->`.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from benchmarks import accelerators, results
from benchmarks.results import DOCS, Row

PAGES = 'timings', 'precision', 'accelerators'


def tables() -> dict[str, list[Row]]:
    """Returns the rows of every table by the command, or the name, in the comment above it."""
    return (
        results.read(DOCS / 'timings.jsonl')
        | results.read(DOCS / 'precision.jsonl')
        | accelerators.tables(DOCS / 'accelerators.jsonl')
    )


def pages() -> Iterator[tuple[Path, str]]:
    """Yields each page and its text with new tables."""
    for page in (DOCS / 'notes' / f'{name}.md' for name in PAGES):
        yield page, results.rewritten(page.read_text(encoding='utf-8'), tables())


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds no flags."""


def run(args: argparse.Namespace) -> list[Row]:
    """Rewrites the pages."""
    del args
    results.rewrite(pages())
    return []
