import dataclasses
import json

import numpy as np
import pytest

from jitm.commands import cli
from jitm.data import precomp
from jitm.errors import UserError
from jitm.evaluation import saved
from jitm.files.outputs import MARK, OutputFolder
from jitm.report import panels
from jitm.report.bootstrap import hits
from jitm.report.matrices import names_of, read_matrices
from tests.support.reports import make_split

# Two texts per image: pairs that are best, behind another image, behind another text, behind a tie.
SIMS = np.array([[0.9, 0.8, 0.1, 0.4], [0.0, 0.85, 0.3, 0.4]], np.float32)


def write(folder, sims=SIMS, runs=(), data='tiny/dev', image_of_text=None, split=None):
    """A folder as jitm eval writes it, without a report if there are no runs."""
    sims = np.asarray(sims, np.float32)
    if image_of_text is None:
        image_of_text = np.repeat(np.arange(len(sims)), sims.shape[-1] // len(sims))
    if runs:
        runs = [{'workdir': str(run), 'step': 1, 'member': 'target'} for run in runs]
        protocol = {'data': data, 'split': 'dev', 'runs': runs}
        split = split or make_split(data, image_of_text)
        saved.write({'protocol': protocol}, split, OutputFolder(folder, saved.EVALUATION), sims=sims)
    else:
        folder.mkdir(parents=True)
        np.save(folder / 'sims.npy', sims)
        np.save(folder / 'image_of_text.npy', image_of_text)
    return folder / 'sims.npy'


def test_matrices_of_different_images_or_captions_are_refused(tmp_path):
    first, wide = write(tmp_path / 'a', runs=['a']), write(tmp_path / 'b', np.zeros((2, 6)))
    with pytest.raises(UserError, match=r'a.sims.npy of tiny/dev and .*b.sims.npy have different images or '):
        read_matrices([first, wide])
    other = write(tmp_path / 'c', runs=['c'], data='other/dev')
    with pytest.raises(UserError, match=r'a.sims.npy of tiny/dev and .*c.sims.npy of other/dev have different'):
        read_matrices([first, write(tmp_path / 'e'), other])
    assert len(read_matrices([first, write(tmp_path / 'd', runs=['d']), tmp_path / 'e' / 'sims.npy'])) == 3


def test_matrices_of_the_same_captions_in_another_folder_are_compared(tmp_path):
    """Features and pixels of the same photos."""
    split = make_split('features/dev', [0, 0, 1, 1])
    sims = [write(tmp_path / name, runs=[name], data=f'{name}/dev', split=split) for name in ('features', 'photos')]
    assert [matrix.protocol['data'] for matrix in read_matrices(sims)] == ['features/dev', 'photos/dev']


def test_a_matrix_that_is_not_of_the_report_beside_it_is_refused(tmp_path):
    """Modified, of another evaluation, and of an evaluation that was killed before it wrote its report."""
    sims, other = write(tmp_path / 'a', runs=['a']), write(tmp_path / 'b', -SIMS, runs=['b'])
    message = 'sims.npy is not from the evaluation in metrics.json beside it; write both again with jitm eval, or move'
    read_matrices([sims])
    image_of_text = tmp_path / 'a' / 'image_of_text.npy'
    np.save(image_of_text, np.array([0, 1, 0, 1], np.int32))
    with pytest.raises(UserError, match=message):
        read_matrices([sims])
    np.save(image_of_text, np.array([0, 0, 1, 1], np.int32))
    sims.write_bytes(other.read_bytes())
    with pytest.raises(UserError, match=message):
        read_matrices([sims])
    np.save(sims, SIMS)
    read_matrices([sims])
    (tmp_path / 'a' / 'mine.npy').write_bytes(sims.read_bytes())
    with pytest.raises(UserError, match=r'mine\.npy is not from the evaluation in metrics.json beside it'):
        read_matrices([tmp_path / 'a' / 'mine.npy'])


def test_the_image_of_each_text_is_read(tmp_path):
    """Any number and order of texts, of which perfect scores have an rsum of 600."""
    for n, image_of_text in enumerate(([0, 1, 2, 0, 1, 2], [0, 0, 0, 1, 2, 2], [2, 0, 1, 2])):
        sims = 1.0 * (np.arange(3)[:, None] == image_of_text)
        for runs in ((), ['a']):
            path = write(tmp_path / f'{n}{len(runs)}', sims, runs, image_of_text=image_of_text)
            (matrix,) = read_matrices([path])
            assert matrix.image_of_text.tolist() == image_of_text
            assert hits(matrix).rsum() == 600
    path.with_name('image_of_text.npy').unlink()
    with pytest.raises(UserError, match=r'sims\.npy needs image_of_text\.npy beside it, the image of each text'):
        read_matrices([path])


@pytest.mark.parametrize(
    ('sims', 'message'),
    [
        (np.zeros(4), r'has shape \(4,\)'),
        (np.full((1, 2), np.nan), 'NaN'),
        (np.full((1, 2), np.inf), 'infinite'),
    ],
)
def test_invalid_matrices_are_refused(tmp_path, sims, message):
    with pytest.raises(UserError, match=message):
        read_matrices([write(tmp_path / 'a', sims)])


def test_damaged_reports_and_missing_files_are_refused(tmp_path, capsys):
    sims = write(tmp_path / 'a')
    texts = ('{}', '{"prot', '[]', '1', '[' * 100_000, '{"protocol": [], "files": {}, "identity": {}}', '\xff')
    for text in texts:
        (tmp_path / 'a' / 'metrics.json').write_text(text)
        with pytest.raises(UserError, match=r'metrics.json is not a report of jitm eval'):
            read_matrices([sims])
    assert cli.main(['report', 'panels', str(tmp_path / 'none.npy')]) == 2
    assert 'none.npy cannot be read' in capsys.readouterr().err


def test_matrices_are_named_by_their_runs(tmp_path):
    one, two = write(tmp_path / '1', runs=['runs/a']), write(tmp_path / '2', runs=['runs/b', 'old/c'])
    again, alone = write(tmp_path / '3', runs=['old/a']), write(tmp_path / '4')
    assert names_of(read_matrices([one, two])) == ['a', 'b + c']
    assert names_of(read_matrices([one, again])) == [str(one), str(again)]
    assert names_of(read_matrices([one, alone])) == [str(one), str(alone)]


@pytest.fixture
def split():
    named = {'captions': ('a dog', 'a <b> | *c*', 'two cats', 'a cat'), 'image_ids': ('dog_1.jpg', 'cats')}
    return dataclasses.replace(make_split('tiny/dev', [0, 0, 1, 1]), **named)


def test_panels_by_hand(tmp_path, split):
    matrices = read_matrices([write(tmp_path / 'a', runs=['a_0']), write(tmp_path / 'b', -SIMS, runs=['b'])])
    panels.write(matrices, split, [0], [3], tmp_path / 'new' / 'panels.md')
    assert (tmp_path / 'new' / 'panels.md').read_text(encoding='utf-8') == (
        f'<!-- {MARK.decode()} -->\n\n'
        '# Retrieval results on tiny/dev\n\n'
        '## The best 5 texts of an image\n\n'
        'Image 0: dog\\_1.jpg<br>*a dog*\n\n'
        '|  | a\\_0 | b |\n'
        '| --- | --- | --- |\n'
        '| 1 | ✓ a dog | two cats |\n'
        '| 2 | ✓ a \\<b\\> \\| \\*c\\* | a cat |\n'
        '| 3 | a cat | ✓ a \\<b\\> \\| \\*c\\* |\n'
        '| 4 | two cats | ✓ a dog |\n'
        '| first match | 1 | 3 |\n\n'
        '## The best 3 images of a text\n\n'
        'Text 3: a cat\n\n'
        '|  | a\\_0 | b |\n'
        '| --- | --- | --- |\n'
        '| 1 | dog\\_1.jpg<br>*a dog* | dog\\_1.jpg<br>*a dog* |\n'
        '| 2 | ✓ cats<br>*two cats* | ✓ cats<br>*two cats* |\n'
        '| first match | 2 | 2 |\n'
    )
    assert not (tmp_path / 'new' / 'panels_images').exists()


def test_command_writes_panels(tmp_path, precomp_folder, capsys):
    run, moved = tmp_path / 'run', tmp_path / 'moved'
    split = precomp.load('dev', root=str(precomp_folder))
    sims = write(run / 'eval' / 'dev', np.eye(4, 20), runs=[run], split=split)
    (run / 'config.json').write_text(
        json.dumps({'data': {'source': 'precomp.load', 'root': str(precomp_folder), 'dev_images': None}})
    )
    (run / 'metrics.jsonl').write_text('')
    output = tmp_path / 'panels.md'
    assert cli.main(['report', 'panels', str(sims), '--queries', '2', '--texts', '19', '--output', str(output)]) == 0
    written = output.read_text(encoding='utf-8')
    assert [line.split(':')[0] for line in written.splitlines() if line[:4] in ('Imag', 'Text')] == [
        'Image 0',
        'Image 2',
        'Text 19',
    ]
    precomp_folder.rename(moved)
    assert cli.main(['report', 'panels', str(sims), '--output', str(output), '--data_root', str(moved)]) == 0
    assert 'moved/dev' in output.read_text(encoding='utf-8')
    capsys.readouterr()
    for arguments, message in (
        ([str(sims)], 'is not a folder'),
        ([str(sims), '--data_root', str(moved), '--images', '4'], 'moved/dev has no image 4'),
        ([str(sims), '--data_root', str(moved), '--texts', '-1'], 'moved/dev has no text -1'),
        ([str(sims), '--data_root', str(moved), '--output', str(tmp_path)], 'was not written by jitm'),
        ([str(write(tmp_path / 'alone'))], 'has no metrics.json beside it'),
        ([str(write(tmp_path / 'other', runs=[run])), '--data_root', str(moved)], 'has other images or captions than'),
        ([str(write(tmp_path / 'gone', runs=['nowhere']))], 'nowhere is not a run directory'),
    ):
        assert cli.main(['report', 'panels', *arguments]) == 2
        assert message in capsys.readouterr().err
