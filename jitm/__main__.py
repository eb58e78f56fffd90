"""`jitm COMMAND` and `python -m jitm COMMAND`."""

import sys
from collections.abc import Sequence

from jitm import allocator, job
from jitm.runs import interrupt


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command, see `jitm.commands.cli.main`; signals count from the first line on."""
    with interrupt.watched():
        allocator.keep_freed_memory()
        from jitm.commands import cli  # imports take seconds

        code = 1
        try:
            code = cli.main(argv)
        finally:
            job.leave(code)
        return code


if __name__ == '__main__':
    sys.exit(main())
