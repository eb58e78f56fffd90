"""`jitm search` on the tiny run."""

import json

from jitm.commands import cli
from tests.conftest import TINY

DATA = {key: value for key, value in TINY['data'].items() if key != 'source'}


def search(capsys, *arguments):
    """What the command prints to stdout and stderr."""
    assert cli.main(['search', *map(str, arguments)]) == 0
    return capsys.readouterr()


def names_of(output):
    """The names of the results that it prints as JSON."""
    return [result['name'] for result in json.loads(output.out)['results']]
