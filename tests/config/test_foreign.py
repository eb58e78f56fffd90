import re
from typing import Literal

import pytest

from jitm.config.foreign import declared, read_declared
from jitm.errors import UserError


@declared
class Layer:
    kind: Literal['dense']
    width: int = 3
    bias: bool = True


def read(tmp_path, content):
    return read_declared(Layer, tmp_path / 'c.json', content, harmless=('seed', 'bias'), where='x.')


def test_declared_keys_have_their_defaults(tmp_path):
    assert read(tmp_path, {'kind': 'dense', 'seed': None, 'extra': {}}) == Layer(kind='dense', width=3)


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        ({'kind': 'dense', 'scale': 2}, "c.json has 'x.scale' 2, which jitm does not know: give another model"),
        ({'scale': 2, 'kind': 'conv'}, "c.json has 'x.kind' 'conv'; it must be dense: give another model"),
        ({'kind': 'dense', 'bias': 'no'}, "c.json has 'x.bias' 'no'; it must be True or False: give another model"),
        ({}, "c.json has no 'x.kind': give another model"),
    ],
)
def test_other_keys_and_values_are_refused(tmp_path, content, message):
    with pytest.raises(UserError, match=re.escape(message)):
        read(tmp_path, content)
