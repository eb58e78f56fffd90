"""`jitm completion`, see `usage.completion`."""

import argparse
from collections.abc import Sequence

from absl import flags

from jitm.commands import cli
from jitm.commands import flags as shared
from jitm.errors import UserError, did_you_mean, require


def main(values: flags.FlagValues, words: Sequence[str]) -> None:
    """Prints the script of a shell."""
    del values
    shtab = require('shtab', extra='completion')
    if len(words) != 1 or words[0] not in shtab.SUPPORTED_SHELLS:
        near = did_you_mean(words[0], shtab.SUPPORTED_SHELLS) if words else ''
        raise UserError(f'name one shell: {", ".join(shtab.SUPPORTED_SHELLS)}{near}')
    print(shtab.complete(make_parser(shtab.FILE), words[0]))


def make_parser(file: dict[str, str]) -> argparse.ArgumentParser:
    """Returns a parser with the commands, flags and values that are completed.

    Args:
      file: What completes the path of a file or folder.
    """
    parser = argparse.ArgumentParser('jitm', description='Image-text matching.')
    commands = parser.add_subparsers()
    for name in cli.COMMANDS:
        usage = cli.load_usage(name)
        command = commands.add_parser(name, help=usage.__doc__.splitlines()[0])
        defined = cli.define_flags(usage)
        for flag in map(defined.__getitem__, defined):
            argument = command.add_argument(f'--{flag.name}', help=flag.help, **_values(flag))
            if isinstance(flag.parser, shared.PathParser):
                argument.complete = file
        if 'FILE' in getattr(usage, 'ARGUMENTS', ''):
            command.add_argument('words', nargs='*', metavar=usage.ARGUMENTS).complete = file
    return parser


def _values(flag: flags.Flag) -> dict[str, object]:
    """Returns the arguments of `add_argument` for the values of a flag."""
    if flag.boolean:
        return {'action': 'store_true'}
    return {'choices': getattr(flag.parser, 'enum_values', None)}
