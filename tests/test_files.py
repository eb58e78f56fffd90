"""Files that are there whole or not at all."""

import errno

import pytest

from jitm.errors import UserError
from jitm.files import replacing


def test_a_file_is_replaced_when_it_is_complete(tmp_path):
    path = tmp_path / 'new' / 'file'
    for text in (b'first', b'second'):
        with replacing(path) as file:
            file.write(text)
        assert path.read_bytes() == text
    assert list(path.parent.iterdir()) == [path]


def test_full_disk_keeps_the_old_file(tmp_path):
    path = tmp_path / 'file'
    path.write_bytes(b'before')
    with pytest.raises(UserError, match=r'file cannot be written: No space left on device; make room'), replacing(path):
        raise OSError(errno.ENOSPC, 'No space left on device')
    assert path.read_bytes() == b'before'
    assert list(tmp_path.iterdir()) == [path]
