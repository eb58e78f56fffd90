"""Rewrites the tables of docs/timings.md from docs/timings.jsonl.

    python -m benchmarks members --json docs/timings.jsonl
    python -m benchmarks tables

A table of the page follows a comment that names its command: `<!-- benchmarks members -->`.
"""

import argparse
import re
from pathlib import Path

from benchmarks import results
from benchmarks.settings import ROOT
from jitm.errors import UserError
from jitm.files import replacing

PAGE = ROOT / 'docs' / 'timings.md'
RESULTS = ROOT / 'docs' / 'timings.jsonl'
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


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.add_argument('--page', type=Path, default=PAGE)


def run(args: argparse.Namespace) -> list[results.Row]:
    """Rewrites the page."""
    text = rewritten(args.page.read_text(encoding='utf-8'), results.read(RESULTS))
    with replacing(args.page) as file:
        file.write(text.encode())
    return []
