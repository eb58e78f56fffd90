"""Results of benchmarks: Markdown tables, and a file of JSON lines, one for each command."""

import argparse
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jitm.errors import UserError
from jitm.files import replacing

ROOT = Path(__file__).resolve().parent.parent  # the repository
DOCS = ROOT / 'docs'
NOTHING = 'Nothing has been measured yet.\n'  # in the place of a table without rows
MARK = re.compile(rf'(<!-- (?:benchmarks|experiments) (.*?) -->\n)({NOTHING}|(?:\|.*\n)*)')

Row = dict[str, Any]  # heading of the column, with its unit -> number or text


def format_cell(value: object) -> str:
    """Returns a number with three significant digits and thousands separators, and anything else as it is."""
    if not isinstance(value, float):
        return f'{value:,}' if isinstance(value, int) else str(value)
    digits = float(f'{value:.3g}')
    return f'{digits:,.0f}' if abs(digits) >= 100 else f'{value:#.3g}'.rstrip('.')


def markdown(rows: Iterable[Row]) -> Iterator[str]:
    """Yields the lines of a table of rows that have the keys of the first."""
    for number, row in enumerate(rows):
        if not number:
            yield f'| {" | ".join(row)} |'
            yield f'|{"---|" * len(row)}'
        yield f'| {" | ".join(map(format_cell, row.values()))} |'


def printed(rows: Iterable[Row]) -> Iterator[Row]:
    """Prints rows as a table, each as soon as it is known, and yields them."""
    for number, row in enumerate(rows):
        header, rule, line = markdown([row])
        print(*(() if number else (header, rule)), line, sep='\n', flush=True)
        yield row


def command(name: str, arguments: Sequence[str]) -> str:
    """Returns a benchmark and its flags, without paths that do not change the result."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    for flag in ('--json', '--torch_python'):
        parser.add_argument(flag)
    _, unparsed = parser.parse_known_args(arguments)
    return ' '.join([name, *unparsed])


def environment() -> Row:
    """Returns where a result was measured: cores, and devices and version of JAX if the benchmark uses it."""
    jax = sys.modules.get('jax')  # the interpreter of torch_loops may not have it
    return {'cores': os.cpu_count()} | ({'devices': str(jax.devices()), 'jax': jax.__version__} if jax else {})


def read(path: Path) -> dict[str, list[Row]]:
    """Returns command -> rows of a file of results.

    Raises:
      UserError: If a line is not a result.
    """
    return {command: line['rows'] for command, line in _read_lines(path).items()}


def _read_lines(path: Path) -> dict[str, Row]:
    lines = {}
    for number, text in enumerate(path.read_text(encoding='utf-8').splitlines(), 1):
        try:
            line = json.loads(text)
            lines[line['command']] = line
        except (ValueError, KeyError, TypeError):
            raise UserError(f'line {number} of {path} is not a result of a benchmark; remove the line') from None
    return lines


def add(path: Path, name: str, arguments: Sequence[str], rows: list[Row], where: Row | None = None) -> None:
    """Adds the rows of a benchmark to a file of results, where they replace the rows of the same command.

    Args:
      path: The file.
      name: The name of the benchmark.
      arguments: Its flags.
      rows: The rows.
      where: Where they were measured, if that is not `environment`.
    """
    lines = _read_lines(path) if path.exists() else {}
    key = command(name, arguments)
    lines[key] = {'command': key, **(where or environment()), 'rows': rows}
    with replacing(path) as file:
        file.write(''.join(json.dumps(line) + '\n' for line in lines.values()).encode())


def rewritten(page: str, tables: Mapping[str, Sequence[Row]]) -> str:
    """Returns a page with each table, or `NOTHING`, made from the rows of the command in the comment above it.

    Raises:
      UserError: If a command has no rows.
    """

    def table(match: re.Match) -> str:
        if match[2] not in tables:
            raise UserError(f"docs has no result of '{match[2]}'; run this command with --json and a file of docs")
        return match[1] + (''.join(f'{line}\n' for line in markdown(tables[match[2]])) or NOTHING)

    return MARK.sub(table, page)


def rewrite(pages: Iterable[tuple[Path, str]]) -> None:
    """Writes pages with new texts."""
    for page, text in pages:
        with replacing(page) as file:
            file.write(text.encode())
