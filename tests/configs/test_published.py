"""The numbers of the papers and of their released code, and those of the reduced variants, written apart from configs/.

An entry of published.json has values that all of its presets have, or presets with a value for each of its keys. A list
stands for the keys of a section. An entry may name a preset that is the same but for some keys.
"""

import functools
import inspect
import json
from pathlib import Path

import pytest

from jitm.config import names
from jitm.config.build import flatten, parameters_of
from tests.configs.settings import load

ENTRIES = json.loads(Path(__file__).with_name('published.json').read_text())
PACKAGES = {'terms': 'jitm.losses', 'labels': 'jitm.training.label_estimators', 'data': 'jitm.data'}


def expand(pattern):
    """Returns the presets of a pattern, whose braces have alternatives."""
    before, brace, rest = pattern.partition('{')
    if not brace:
        return [pattern.replace(':,', ':')]
    options, _, after = rest.partition('}')
    return [preset for option in options.split('|') for preset in expand(before + option + after)]


def value_of(config, key):
    """Returns a value, or the default of the function that its section names; None where it has none."""
    *sections, last = key.split('.')
    section = functools.reduce(lambda node, name: node.get(name) or {}, sections, config)
    if last in section or not sections or sections[0] not in PACKAGES:
        return section.get(last)
    function = section.get('loss') or section.get('source')
    parameters = parameters_of(names.resolve(PACKAGES[sections[0]], function, where='')) if function else {}
    default = parameters[last].default if last in parameters else inspect.Parameter.empty
    return None if default is inspect.Parameter.empty else default


def check(config, key, want):
    got = value_of(config, key)
    if isinstance(want, dict) and want:
        for name, value in want.items():
            check(config, f'{key}.{name}', value)
    elif isinstance(got, dict) and want != {}:
        assert want is not None
        assert sorted(got) == want
    else:
        number = isinstance(want, int | float)
        assert (list(got) if isinstance(got, tuple) else got) == (pytest.approx(want) if number else want)


@pytest.mark.parametrize('entry', ENTRIES, ids=[entry['source'] for entry in ENTRIES])
def test_presets_have_the_published_values(entry):
    presets = []
    for pattern, row in entry['rows'].items():
        for preset in expand(pattern):
            presets.append(preset)
            values = entry['values'] | dict(zip(entry.get('keys', ()), row, strict=True))
            for key, want in values.items():
                check(load(preset), key, want)
    if 'like' in entry:
        bases = expand(entry['like'])
        for preset, other in zip(presets, bases * (len(presets) // len(bases)), strict=True):
            first, second = flatten(load(preset)), flatten(load(other))
            differing = {key for key in first.keys() | second.keys() if first.get(key) != second.get(key)}
            assert not [key for key in differing if not key.startswith(tuple(entry['but']))]
