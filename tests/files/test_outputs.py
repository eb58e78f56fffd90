"""Output folders and files of jitm: what somebody else wrote is left alone."""

import json

import numpy as np
import pytest

from jitm.errors import UserError
from jitm.files.outputs import MARK, OWNED, UNFINISHED, OutputFolder, replacing_own


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
    taken_first = OutputFolder(tmp_path, 'an index')

    def take(folder):
        monkeypatch.undo()
        taken_first.claim(['a'])
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
    folder, outside = tmp_path / 'folder', tmp_path / 'other'
    outside.write_bytes(b'mine')
    OutputFolder(folder, 'an index').claim(['a'])
    (folder / OWNED).write_text(json.dumps({'kind': 'an index', 'files': ['../other']}))
    with pytest.raises(UserError, match=r'has a damaged file \.jitm'):
        OutputFolder(folder, 'an index')
    assert outside.read_bytes() == b'mine'


def test_the_mark_may_stand_at_the_end(tmp_path):
    path = tmp_path / 'figure.pdf'
    for first in (b'first' * 100_000, b'second' * 100_000):
        with replacing_own(path) as file:
            file.write(first + MARK)


def make_job(folder, inputs='inputs', kind='an index'):
    return OutputFolder(folder, kind).begin(inputs)


def test_parts_of_a_job_are_read_by_the_next_process(tmp_path):
    arrays = {'scores': np.arange(6, dtype=np.float32).reshape(2, 3), 'done': 4, 'names': 'a'}
    make_job(tmp_path).save('0_7', **arrays)
    part = make_job(tmp_path).load('0_7')
    assert {name: array.tolist() for name, array in part.items()} == {
        'scores': [[0, 1, 2], [3, 4, 5]],
        'done': 4,
        'names': 'a',
    }
    assert part['scores'].dtype == np.float32
    assert make_job(tmp_path).load('0_8') is None
    assert make_job(tmp_path, 'other inputs').load('0_7') is None
    make_job(tmp_path).save('0_7', done=5)
    assert make_job(tmp_path).load('0_7')['done'] == 5


@pytest.mark.parametrize('place', range(0, 400, 7))
def test_a_part_with_another_bit_is_damaged(tmp_path, place):
    job = make_job(tmp_path)
    job.save(0, scores=np.zeros(9))
    path = job.path / '0'
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= 1
    path.write_bytes(content)
    assert job.load(0) is None


@pytest.mark.parametrize('length', [0, 4, 32, 33, -1])
def test_a_part_that_is_cut_off_is_damaged(tmp_path, length):
    job = make_job(tmp_path)
    job.save(0, scores=np.zeros(9))
    path = job.path / '0'
    path.write_bytes(path.read_bytes()[:length])
    assert job.load(0) is None


def test_parts_by_number_end_at_the_first_one_that_is_missing(tmp_path):
    job = make_job(tmp_path)
    assert list(job.parts()) == []
    for number in (0, 1, 3):
        job.save(number, number=number)
    assert [int(part['number']) for part in make_job(tmp_path).parts()] == [0, 1]
    (job.path / '0').write_bytes(b'damaged')
    assert list(make_job(tmp_path).parts()) == []


def test_only_the_parts_of_the_jobs_of_a_folder_are_removed(tmp_path):
    output, other = OutputFolder(tmp_path, 'an index'), OutputFolder(tmp_path, 'an index')
    output.write('result', 'result')
    for job in (output.begin('first'), output.begin('second'), other.begin('third')):
        job.save(0, number=1)
        job.save(1, number=2)
    (output.begin('first').path / 'mine').write_text('mine')
    output.end_jobs()
    first, third = (make_job(tmp_path, inputs).path.name for inputs in ('first', 'third'))
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob('*') if path.is_file()}
    assert left == {
        OWNED,
        'result',
        *(f'{UNFINISHED}/{name}' for name in (f'{first}/mine', f'{third}/0', f'{third}/1')),
    }
    other.end_jobs()
    assert sorted(output.names) == ['result']


def test_a_killed_process_leaves_the_parts_before(tmp_path, monkeypatch):
    """Killed before the part is claimed, while it is written, and before it has its name."""
    job = make_job(tmp_path)
    job.save(0, number=0)

    class Killed(BaseException):
        pass

    def killed(*_, **__):
        raise Killed

    for name in ('np.savez', 'json.dumps', 'replacing'):
        with monkeypatch.context() as patch:
            patch.setattr(f'jitm.files.outputs.{name}', killed)
            with pytest.raises(Killed):
                job.save(1, number=1)
        assert [int(part['number']) for part in make_job(tmp_path).parts()] == [0]
    (job.path / '.1.jitm_partial').write_bytes(b'half')
    output = OutputFolder(tmp_path, 'an index')
    job = output.begin('inputs')
    job.save(1, number=1)
    assert [int(part['number']) for part in job.parts()] == [0, 1]
    output.claim([f'{UNFINISHED}/{job.path.name}/2'])
    (job.path / '.2.jitm_partial').write_bytes(b'half')
    output.end_jobs()
    assert [path.name for path in tmp_path.iterdir()] == [OWNED]


def test_a_file_of_somebody_else_is_not_replaced_by_a_part(tmp_path):
    job = make_job(tmp_path)
    job.save(0, number=0)
    (job.path / '1').write_text('mine')
    with pytest.raises(UserError, match='1 was not written by jitm; move it, or choose another folder'):
        job.save(1, number=1)
    assert (job.path / '1').read_text() == 'mine'
