"""The command line of `python -m benchmarks` and `python -m experiments`: a module for each name, which it runs."""

import argparse
import ast
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import results
from jitm.errors import UserError

DEFAULT_JSON = Path('runs/benchmarks.jsonl')


def listing(package: str, names: Sequence[str]) -> str:
    """Returns a line for each module: its name and the first line of its docstring."""
    sources = {name: (results.ROOT / package / f'{name}.py').read_text(encoding='utf-8') for name in names}
    docs = {name: ast.get_docstring(ast.parse(source)) for name, source in sources.items()}
    return '\n'.join(f'{name:12} {doc.splitlines()[0]}' for name, doc in docs.items())


def make_parser(package: str, name: str) -> argparse.ArgumentParser:
    """Returns the parser of the flags of a module, which is in its default `module`."""
    module = importlib.import_module(f'{package}.{name}')
    parser = argparse.ArgumentParser(
        prog=f'python -m {package} {name}',
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_flags(parser)
    parser.add_argument('--json', type=Path, default=DEFAULT_JSON, help='the file of results (default: %(default)s)')
    parser.set_defaults(module=module, environment=None)  # None: that of this process
    return parser


def main(package: str, argv: Sequence[str] | None = None) -> None:
    """Runs the module that the first argument names, with the others as its flags, prints its rows and keeps them."""
    entry = importlib.import_module(f'{package}.__main__')
    names = entry.NAMES
    name, *arguments = (sys.argv[1:] if argv is None else argv) or ['--help']
    if name in ('-h', '--help'):
        print(entry.__doc__, listing(package, names), sep='\n')
        return
    if name not in names:
        sys.exit(f"{package.removesuffix('s')} '{name}' does not exist; choose one of: {', '.join(names)}")
    parser = make_parser(package, name)
    args, rows = parser.parse_args(arguments), []
    try:
        for row in results.printed(args.module.run(args)):  # an interrupted run keeps the rows that it has
            rows.append(row)
            results.add(args.json, name, arguments, rows, args.environment)
    except UserError as error:
        parser.error(str(error))
