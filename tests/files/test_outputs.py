"""Output folders and files of jitm: what somebody else wrote is left alone."""

import json

import pytest

from jitm.errors import UserError
from jitm.files.outputs import MARK, OWNED, OutputFolder, replacing_own


def test_an_output_folder_is_taken_by_its_first_file(tmp_path):
    folder = OutputFolder(tmp_path / 'out', 'an index')
    assert not folder.path.exists()
    with folder.replacing('parts/0.npz') as file:
        file.write(b'x')
    assert folder.names == ['parts/0.npz']
    assert OutputFolder(folder.path, 'an index').names == ['parts/0.npz']
    with pytest.raises(UserError, match='out is an index of jitm, not an evaluation; choose another folder'):
        OutputFolder(folder.path, 'an evaluation')


def test_a_folder_that_another_process_has_just_taken_is_known(tmp_path, monkeypatch):
    other = OutputFolder(tmp_path, 'an index')

    def take(folder):
        monkeypatch.undo()
        other.claim(['a'])
        (tmp_path / 'a').write_bytes(b'x')
        return [OWNED, 'a']

    monkeypatch.setattr('jitm.files.outputs._names_in', take)
    assert OutputFolder(tmp_path, 'an index').names == ['a']


@pytest.mark.parametrize('name', ['manifest.json', 'parts', '.hidden', f'{OWNED}x'])
def test_a_folder_of_somebody_else_is_not_taken(tmp_path, name):
    (tmp_path / name).write_bytes(b'mine')
    with pytest.raises(UserError, match='is not empty and is not an index of jitm; choose a new or empty folder'):
        OutputFolder(tmp_path, 'an index')


def test_a_file_in_place_of_a_folder_and_a_damaged_list_are_named(tmp_path):
    (tmp_path / 'file').write_bytes(b'mine')
    with pytest.raises(UserError, match='file is not a folder'):
        OutputFolder(tmp_path / 'file', 'an index')
    for content in (b'', b'[]', b'{"kind": "an index"}', b'\xff', b'[' * 100_000):
        (tmp_path / OWNED).write_bytes(content)
        with pytest.raises(UserError, match=f'has a damaged file {OWNED}'):
            OutputFolder(tmp_path, 'an index')


def test_files_that_jitm_did_not_write_stay_in_an_output_folder(tmp_path):
    folder = OutputFolder(tmp_path, 'an index')
    with folder.replacing('parts/0.npz') as file:
        file.write(b'x')
    for name in ('parts/mine.txt', 'vectors.npy'):
        (tmp_path / name).write_bytes(b'mine')
    with (
        pytest.raises(UserError, match=r'vectors\.npy was not written by jitm; move it'),
        folder.replacing('vectors.npy'),
    ):
        pass
    folder.remove(['parts/0.npz', 'parts/mine.txt', 'vectors.npy'])
    assert not folder.names
    assert sorted(path.name for path in tmp_path.rglob('*')) == [OWNED, 'mine.txt', 'parts', 'vectors.npy']
    assert (tmp_path / 'vectors.npy').read_bytes() == b'mine'


def test_removing_all_files_of_a_folder_removes_the_folders_within(tmp_path):
    folder = OutputFolder(tmp_path, 'an index')
    folder.claim(['a/b/0', 'a/b/1'])
    (tmp_path / 'a/b').mkdir(parents=True)
    (tmp_path / 'a/b/0').write_bytes(b'x')
    (tmp_path / 'a/b/.1.jitm_partial').write_bytes(b'half')  # the process was killed while it wrote the second one
    folder.remove(['a/b/0', 'a/b/1'])
    assert [path.name for path in tmp_path.iterdir()] == [OWNED]


def test_files_are_checked_without_being_claimed(tmp_path):
    folder = OutputFolder(tmp_path / 'out', 'an index')
    folder.check(['a', 'b'])
    assert not folder.path.exists()
    folder.claim(['a'])
    for name in 'ab':
        (folder.path / name).write_bytes(b'x')
    folder.check(['a'])
    with pytest.raises(UserError, match='b was not written by jitm; move it, or choose another folder'):
        folder.check(['a', 'b'])


def test_two_processes_may_write_to_an_output_folder(tmp_path):
    first, second = (OutputFolder(tmp_path, 'an evaluation') for _ in range(2))
    first.claim(['a'])
    second.claim(['b'])
    first.remove(['a'])
    assert json.loads((tmp_path / OWNED).read_bytes()) == {'kind': 'an evaluation', 'files': ['b']}


def test_a_single_file_is_replaced_only_if_jitm_wrote_it(tmp_path):
    path = tmp_path / 'report.html'
    for text in (b'first', b'second'):
        with replacing_own(path) as file:
            file.write(MARK + text)
        assert path.read_bytes() == MARK + text
    path.write_bytes(b'mine')
    with pytest.raises(UserError, match=r'report\.html exists and was not written by jitm'), replacing_own(path):
        pass
    assert path.read_bytes() == b'mine'
    path.unlink()
    path.mkdir()
    with pytest.raises(UserError, match=r'report\.html exists and was not written by jitm'), replacing_own(path):
        pass


def test_output_folder_names_no_file_outside(tmp_path):
    folder, other = tmp_path / 'folder', tmp_path / 'other'
    other.write_bytes(b'mine')
    OutputFolder(folder, 'an index').claim(['a'])
    (folder / OWNED).write_text(json.dumps({'kind': 'an index', 'files': ['../other']}))
    with pytest.raises(UserError, match=r'has a damaged file \.jitm'):
        OutputFolder(folder, 'an index')
    assert other.read_bytes() == b'mine'


def test_the_mark_may_stand_at_the_end(tmp_path):
    path = tmp_path / 'figure.pdf'
    for first in (b'first' * 100_000, b'second' * 100_000):
        with replacing_own(path) as file:
            file.write(first + MARK)
