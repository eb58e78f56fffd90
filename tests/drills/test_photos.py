"""The table of wrong folders of photos; each row takes a fraction of a second."""

import pytest

from tests.drills import inputs, photos


@pytest.fixture(scope='module')
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp('photos') / 'base'
    photos.write_base(folder)
    return folder


def test_table_is_long_and_without_repetition():
    names = [row.name for row in photos.rows()]
    assert len(names) == len(set(names)) >= 40


@pytest.mark.parametrize('row', list(photos.rows()), ids=lambda row: row.name)
def test_wrong_photos_are_one_sentence(row, base, tmp_path):
    assert inputs.check(row, base, tmp_path / 'copy') is None
