"""A run as a folder of the Hugging Face Hub's layout: the same bits, and one sentence for a damaged one."""

import json
import os

import chex
import pytest

import jitm
from jitm.commands.cli import main
from jitm.errors import UserError
from jitm.files import hash_file
from jitm.runs.run import describe_runs, load_run
from tests.conftest import state_of
from tests.support import authors as theirs


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    """A run of NAAF, whose batch statistics are scalars."""
    folder = tmp_path_factory.mktemp('naaf')
    path = theirs.write_preset(folder / 'x.pth', 'naaf:f30k')
    assert theirs.convert('naaf', path, folder / 'run', '--vocabulary', theirs.write_vocabulary(folder)) == 0
    return folder / 'run'


def export(run, folder):
    assert main(['convert', '--to', 'safetensors', str(run), '--out', str(folder)]) == 0
    return folder


@pytest.fixture(scope='module')
def exported(run, tmp_path_factory):
    return export(run, tmp_path_factory.mktemp('hub') / 'naaf')


def test_the_folder_is_the_same_model(run, exported):
    first, second = load_run(run), load_run(exported)
    chex.assert_trees_all_equal(first.variables, second.variables)
    chex.assert_trees_all_equal_shapes_and_dtypes(first.variables, second.variables)
    assert (first.config, first.vocabulary) == (second.config, second.vocabulary)
    for name in ('step', 'member', 'model', 'feature_size', 'data_hash', 'image_size'):
        assert getattr(first, name) == getattr(second, name)
    assert sorted(path.name for path in exported.iterdir()) == [
        '.jitm',
        'README.md',
        'config.json',
        'model.safetensors',
        'vocabulary.json',
    ]
    assert jitm.load(exported).run.step == 0


def test_a_folder_is_written_again_the_same(exported, tmp_path):
    again = export(exported, tmp_path / 'again')
    for path in exported.iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes()


def test_only_an_exported_model_is_replaced(run, exported, tmp_path, capsys):
    folder = export(run, tmp_path / 'hub')
    (folder / '.jitm').write_text((folder / '.jitm').read_text().replace('[', '["old.txt", '))
    (folder / 'old.txt').write_text('of another target')
    (folder / 'notes.txt').write_text('mine')
    export(exported, folder)
    assert not (folder / 'old.txt').exists()
    assert (folder / 'notes.txt').read_text() == 'mine'
    (folder / '.jitm').unlink()
    state = state_of(folder)
    assert main(['convert', '--to', 'safetensors', str(run), '--out', str(folder)]) == 2
    assert 'is not empty and is not an exported model of jitm; choose a new or empty' in capsys.readouterr().err
    assert state_of(folder) == state


METRICS = {'rsum': 259.26}
for side in ('i2t', 't2i'):
    METRICS |= dict.fromkeys((f'{side}/median_rank', f'{side}/mean_rank'), 50.0)
    METRICS |= {f'{side}/recall@{k}': 43.21 for k in (1, 5, 10)}


def write_report(run, name, rsum, **changes):
    described = describe_runs([load_run(run)])[0] | changes
    protocol = {'data': 'data/f30k/test', 'images': 1000, 'runs': [described]}
    (run / 'eval' / name).mkdir(parents=True)
    report = {'metrics': METRICS | {'rsum': rsum}, 'protocol': protocol}
    (run / 'eval' / name / 'metrics.json').write_text(json.dumps(report))


def test_the_card_has_the_evaluation_of_this_model(run, exported, tmp_path):
    card = (exported / 'README.md').read_text()
    assert '# naaf.NAAF' in card
    assert '- feature_size: 7' in card
    assert 'It was not evaluated.' in card
    write_report(run, 'test', 259.26)
    write_report(run, 'test_step', 333.3, step=7)  # these are later
    write_report(run, 'test_training', 333.3, digest='0')
    card = (export(run, tmp_path / 'hub') / 'README.md').read_text()
    assert '- data: data/f30k/test\n- images: 1000\n' in card
    assert 'rsum 259.3' in card
    assert '333' not in card


@pytest.fixture
def copy(exported, tmp_path):
    folder = tmp_path / 'copy'
    folder.mkdir()
    for path in exported.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def change(folder, **changes):
    path = folder / 'config.json'
    described = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in described.items() if value is not None}))


def flip(folder):
    path = folder / 'model.safetensors'
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def write_words(text):
    """Returns a function that writes the vocabulary with its checksum."""

    def damage(folder):
        (folder / 'vocabulary.json').write_text(text)
        digests = json.loads((folder / 'config.json').read_text())['sha256']
        change(folder, sha256=digests | {'vocabulary.json': hash_file(folder / 'vocabulary.json')})

    return damage


def put_a_pipe(folder):
    (folder / 'vocabulary.json').unlink()
    os.mkfifo(folder / 'vocabulary.json')


@pytest.mark.parametrize(
    ('damage', 'message'),
    [
        (flip, 'model.safetensors differs from its checksum'),
        (lambda folder: (folder / 'vocabulary.json').unlink(), 'is damaged'),
        (lambda folder: (folder / 'vocabulary.json').write_text('{}'), 'vocabulary.json differs'),
        (put_a_pipe, 'is damaged .*not a regular file'),
        *(
            (write_words(text), 'is damaged|vocabulary.json cannot be read as JSON')
            for text in ('[' * 10**5, '{"kind": "songs", "words": ["a"]}', '{"kind": "words", "words": [1]}')
        ),
        *(
            (
                lambda folder, text=text: (folder / 'config.json').write_text(text),
                'config.json (cannot be read as|is) JSON',
            )
            for text in ('{', '[1]', '[' * 10**5)
        ),
        (lambda folder: change(folder, model_type='bert'), "has 'model_type' 'bert'; it must be jitm: export it"),
        (lambda folder: change(folder, format=9), "has 'format' 9; it must be 1: export it again"),
        (lambda folder: change(folder, data=None), "config.json has no 'data'"),
        (lambda folder: change(folder, step='7'), "has 'step' '7'; it must be an integer"),
        (lambda folder: change(folder, sha256=[1]), "has 'sha256' .1.; it must be a dict"),
        (lambda folder: (change(folder, sha256={}), flip(folder)), 'is damaged'),
        (lambda folder: change(folder, data={'hash': '', 'regions': 7}), 'has a damaged config'),
        (lambda folder: change(folder, config={}), 'config.json is damaged'),
        (lambda folder: (folder / 'model.safetensors').unlink(), 'is not a run directory'),
    ],
)
def test_damaged_folders_are_one_sentence(copy, damage, message):
    damage(copy)
    with pytest.raises(UserError, match=message):
        load_run(copy)


def test_files_are_read_by_their_names_only(copy):
    digests = json.loads((copy / 'config.json').read_text())['sha256']
    change(copy, sha256={'/dev/zero': ''} | digests)
    assert load_run(copy).step == 0


def test_other_steps_and_members_are_not_in_it(exported):
    with pytest.raises(UserError, match='has the step 0 only, not 7'):
        load_run(exported, step=7)
    with pytest.raises(UserError, match='has the member target only, not anchor'):
        load_run(exported, member='anchor')
