"""Rewrites the tables of the pages of docs/ that have measurements, from stored rows.

    python -m benchmarks members --json docs/timings.jsonl
    python -m benchmarks tables

A table of the page follows a comment that names its command: `<!-- benchmarks members -->`. Those of results.md,
recipes.md and losses.md follow comments that name runs, see `benchmarks.claims`.
"""

import argparse
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks import accelerators, claims, intervals, results
from benchmarks.settings import ROOT
from jitm.errors import UserError
from jitm.files import replacing

DOCS = ROOT / 'docs'
PAGES = 'timings', 'precision', 'accelerators', 'data'
RESULTS = DOCS / 'timings.jsonl'
MARK = re.compile(r'(<!-- benchmarks (.*?) -->\n)((?:\|.*\n)*)')


def rewritten(page: str, tables: dict[str, list[results.Row]]) -> str:
    """Returns a page with each table made from the rows of the command in the comment above it.

    Raises:
      UserError: if a command has no rows.
    """

    def table(match: re.Match) -> str:
        if match[2] not in tables:
            raise UserError(f"{RESULTS.name} has no result of '{match[2]}'; run this benchmark with --json {RESULTS}")
        return match[1] + ''.join(f'{line}\n' for line in results.markdown(tables[match[2]]))

    return MARK.sub(table, page)


def tables() -> dict[str, list[results.Row]]:
    """Returns the rows of every table by the command, or the name, in the comment above it."""
    return (
        results.read(RESULTS)
        | results.read(DOCS / 'precision.jsonl')
        | results.read(DOCS / 'cca.jsonl')
        | accelerators.tables(DOCS / 'accelerators.jsonl')
    )


def pages() -> Iterator[tuple[Path, str]]:
    """Yields each page and its text with new tables."""
    for page in (DOCS / f'{name}.md' for name in PAGES):
        yield page, rewritten(page.read_text(encoding='utf-8'), tables())
    read, stored = functools.cache(claims.read_runs), [*intervals.read(intervals.PATH).values()]
    for page in (DOCS / f'{name}.md' for name in claims.PAGES):
        yield page, claims.rewritten(page.read_text(encoding='utf-8'), read, stored)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds no flags."""


def run(args: argparse.Namespace) -> list[results.Row]:
    """Rewrites the pages."""
    del args
    for page, text in pages():
        with replacing(page) as file:
            file.write(text.encode())
    return []
