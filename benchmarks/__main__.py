"""Measures the speed and memory of jitm, and trains the runs of docs/results.md.

    python -m benchmarks                                    # lists the benchmarks
    python -m benchmarks scoring --models saf sgr           # runs one; its flags: `scoring --help`
    python -m benchmarks members --json docs/timings.jsonl  # keeps the result for the tables of docs/timings.md

Every benchmark prints a Markdown table, row by row, and adds the rows to a file of JSON lines.
"""

import argparse
import ast
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import results
from jitm.errors import UserError

NAMES = (
    *('train_step', 'scoring', 'torch_loops', 'members', 'bert_step', 'tags_step', 'mining', 'precision'),
    *('loader', 'memory', 'accelerators', 'start_up', 'scene_graphs', 'flickr8k', 'cca'),
    *('intervals', 'provenance', 'tables'),
)
DEFAULT_JSON = Path('runs/benchmarks.jsonl')


def listing() -> str:
    """Returns a line for each benchmark: its name and the first line of its docstring."""
    docs = {name: ast.get_docstring(ast.parse(Path(__file__).with_name(f'{name}.py').read_text())) for name in NAMES}
    return '\n'.join(f'{name:12} {doc.splitlines()[0]}' for name, doc in docs.items())


def make_parser(name: str) -> argparse.ArgumentParser:
    """Returns the parser of a benchmark's flags; the benchmark is in its default `benchmark`."""
    module = importlib.import_module(f'benchmarks.{name}')
    parser = argparse.ArgumentParser(
        prog=f'python -m benchmarks {name}',
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_flags(parser)
    parser.add_argument('--json', type=Path, default=DEFAULT_JSON, help='the file of results (default: %(default)s)')
    parser.set_defaults(benchmark=module)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark that the first argument names, with the others as its flags."""
    name, *arguments = (sys.argv[1:] if argv is None else argv) or ['--help']
    if name in ('-h', '--help'):
        print(__doc__, listing(), sep='\n')
        return
    if name not in NAMES:
        sys.exit(f"benchmark '{name}' does not exist; choose one of: {', '.join(NAMES)}")
    parser = make_parser(name)
    args = parser.parse_args(arguments)
    try:
        rows = results.print_table(args.benchmark.run(args))
        results.add(args.json, name, arguments, rows)
    except UserError as error:
        parser.error(str(error))


if __name__ == '__main__':
    main()
