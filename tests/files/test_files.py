"""Files that are there whole or not at all."""

import dataclasses
import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from jitm import files
from jitm.errors import UserError
from jitm.files import LOCK, describe, json_parts, locked, open_file, parse_json, read_text, replacing, split_lines


def test_pipes_and_devices_are_not_opened(tmp_path):
    os.mkfifo(tmp_path / 'pipe')
    for path in (tmp_path / 'pipe', Path('/dev/zero')):
        with pytest.raises(OSError, match='it is not a regular file'):
            open_file(path)
    with pytest.raises(IsADirectoryError):
        open_file(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_file(tmp_path / 'none')


@pytest.mark.parametrize(
    ('content', 'lines'),
    [
        ('a\u2028b\x85\x0c\nc\n', ['a\u2028b\x85\x0c', 'c']),
        ('\ufeffa\r\n\r\nb', ['a', '', 'b']),
        ('a\rb\n\n', ['a\rb', '']),
        ('', []),
    ],
)
def test_lines_end_at_line_feeds_only(content, lines, tmp_path):
    (tmp_path / 'lines').write_bytes(content.encode())
    assert split_lines(read_text(tmp_path / 'lines')) == lines


@pytest.mark.parametrize(('encoding', 'line'), [('latin-1', 2), ('utf-16', 1)])
def test_other_encodings_are_named_with_the_line(encoding, line, tmp_path):
    (tmp_path / 'lines').write_bytes('a\nd\xf6g'.encode(encoding))
    with pytest.raises(UserError, match=rf'lines, line {line} is not UTF-8: convert the file to UTF-8'):
        read_text(tmp_path / 'lines')


def test_nested_brackets_are_no_json():
    assert parse_json(b'{"a": [1]}') == {'a': [1]}
    with pytest.raises(ValueError, match='nested too deeply'):
        parse_json('[' * 10**5)


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


def test_what_a_killed_process_left_is_overwritten(tmp_path):
    (tmp_path / '.file.jitm_partial').write_bytes(b'longer than what follows')
    with replacing(tmp_path / 'file') as file:
        file.write(b'short')
    assert (tmp_path / 'file').read_bytes() == b'short'
    assert [path.name for path in tmp_path.iterdir()] == ['file']


def test_threads_that_replace_one_file_take_turns(tmp_path):
    path, errors = tmp_path / 'file', []

    def write(letter):
        try:
            for _ in range(20):
                with replacing(path) as file:
                    for _ in range(10):
                        file.write(letter * 1000)
                        file.flush()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in (b'a', b'b', b'c')]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert path.read_bytes() in {letter * 10_000 for letter in (b'a', b'b', b'c')}
    assert list(tmp_path.iterdir()) == [path]


def test_a_persons_partial_file_is_left_alone(tmp_path):
    (tmp_path / 'file.partial').write_bytes(b'mine')
    with replacing(tmp_path / 'file') as file:
        file.write(b'new')
    assert (tmp_path / 'file.partial').read_bytes() == b'mine'


@pytest.mark.parametrize('names', [None, [], [LOCK], [LOCK, 'file']], ids=str)
def test_a_lock_leaves_a_folder_as_it_was(tmp_path, names):
    folder = tmp_path / 'folder'
    if names is not None:
        folder.mkdir()
    for name in names or ():
        (folder / name).write_bytes(b'mine')
    with locked(folder, 'busy'):
        assert (folder / LOCK).exists()
    assert sorted(tmp_path.rglob('*')) == ([] if names is None else [folder, *(folder / name for name in names)])
    assert all((folder / name).read_bytes() == b'mine' for name in names or ())


def test_the_lock_of_a_killed_process_is_free(tmp_path):
    code = f"""
import pathlib, time
from jitm.files import locked
with locked(pathlib.Path({str(tmp_path)!r}), 'busy'):
    print('locked', flush=True)
    time.sleep(600)
"""
    holder = subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE, text=True)
    with holder:
        assert holder.stdout.readline() == 'locked\n'
        with pytest.raises(UserError, match='busy'), locked(tmp_path, 'busy'):
            pass
        holder.kill()
    with locked(tmp_path, 'busy'):
        pass


def test_a_field_at_its_default_is_not_described():
    @dataclasses.dataclass(frozen=True)
    class Layer:
        width: int
        rate: float = 0.5

    assert describe(Layer(3, 0.5)) == 'Layer(width=3)'
    assert describe(Layer(width=Layer(1, 0.25))) == 'Layer(width=Layer(width=1, rate=0.25))'


@pytest.mark.parametrize('size', [0, 1, 2, 5])
def test_parts_of_json_are_those_of_the_whole(size, monkeypatch):
    monkeypatch.setattr(files, 'PART_VALUES', 2)
    captions = ['a "red" caf\u00e9', 'b', '', ', ', 'c'][:size]
    images = np.arange(size, dtype=np.int32)
    assert b''.join(json_parts([captions, images])).decode() == json.dumps([captions, images.tolist()])
