"""The table of wrong folders of photos; each row takes a fraction of a second."""

import pytest

from tests.test_drills import FAST
from tools.drills import inputs, photos


@pytest.fixture(scope='module')
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp('photos') / 'base'
    photos.write_base(folder)
    return folder


def test_table_is_long_and_without_repetition():
    names = [row.name for row in photos.rows()]
    assert len(names) == len(set(names)) >= 40


def params():
    """The table; one of four rows is tried by `make test`."""
    marks = [() if number % FAST == 0 else pytest.mark.slow for number in range(len(list(photos.rows())))]
    return [pytest.param(row, id=row.name, marks=mark) for row, mark in zip(photos.rows(), marks, strict=True)]


@pytest.mark.parametrize('row', params())
def test_wrong_photos_are_one_sentence(row, base, tmp_path):
    assert inputs.check(row, base, tmp_path / 'copy') is None
