import re
from collections.abc import Sequence
from typing import Literal

import pytest

from jitm.config.foreign import declared, read_declared
from jitm.errors import UserError
from jitm.types import Positive


@declared
class Layer:
    harmless = 'seed bias'

    kind: Literal['dense']
    width: int = 3
    bias: bool = True
    sizes: tuple[Positive, Positive] | None = None


@declared
class Model:
    remedy = 'try another'

    layers: Sequence[Layer] = ()
    last: Layer | None = None


def read(tmp_path, content):
    return read_declared(Layer, tmp_path / 'c.json', content, 'x.')


def test_declared_keys_have_their_defaults(tmp_path):
    assert read(tmp_path, {'kind': 'dense', 'seed': None, 'extra': {}}) == Layer(kind='dense', width=3)


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        ({'kind': 'dense', 'scale': 2}, "c.json has 'x.scale' 2, which jitm does not know: give another model"),
        ({'scale': 2, 'kind': 'conv'}, "c.json has 'x.kind' 'conv'; it must be dense: give another model"),
        ({'kind': 'dense', 'bias': 'no'}, "c.json has 'x.bias' 'no'; it must be True or False: give another model"),
        ({'kind': 'dense', 'sizes': [1]}, "c.json has 'x.sizes' [1]; it must be a tuple of 2"),
        ({'kind': 'dense', 'sizes': [1, 0]}, "'x.sizes' [1, 0]; it must be a tuple of 2, each above 0"),
        ({}, "c.json has no 'x.kind': give another model"),
    ],
)
def test_other_keys_and_values_are_refused(tmp_path, content, message):
    with pytest.raises(UserError, match=re.escape(message)):
        read(tmp_path, content)


def test_objects_within_an_object_are_read(tmp_path):
    path = tmp_path / 'c.json'
    path.write_text('{"layers": [{"kind": "dense"}], "last": {"kind": "dense", "width": 5}}')
    layer = Layer(kind='dense')
    assert read_declared(Model, path) == Model(layers=[layer], last=Layer(kind='dense', width=5))
    assert read_declared(Model, tmp_path / 'missing.json') == Model()


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        ({'layers': [{'kind': 'dense'}, {'kind': 'conv'}]}, "has 'layers.1.kind' 'conv'; it must be dense: give"),
        ({'last': {}}, "has no 'last.kind': give another model"),
        ({'last': 3}, "has 'last' 3; it must be a dict or None: try another"),
        ({'layers': [3]}, "has 'layers.0' 3; it must be a dict: try another"),
    ],
)
def test_objects_within_an_object_are_named(tmp_path, content, message):
    with pytest.raises(UserError, match=re.escape(message)):
        read_declared(Model, tmp_path / 'c.json', content)
