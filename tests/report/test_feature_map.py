import json

import numpy as np
import pytest

from jitm.commands import cli
from jitm.errors import UserError
from jitm.files import hash_arrays
from jitm.report import feature_map
from jitm.report.feature_map import project, read_vectors


def write(folder, count=6, runs=(), **changes):
    """Vectors as jitm eval writes them, two texts for each image near it."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(count, 4)).astype(np.float32)
    texts = np.repeat(vectors, 2, axis=0) + 0.01 * rng.normal(size=(2 * count, 4)).astype(np.float32)
    arrays = {'images': vectors, 'texts': texts, 'image_of_text': np.repeat(np.arange(count), 2)} | changes
    path = folder / 'vectors.npz'
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    if runs:
        protocol = {'data': 'tiny/dev', 'split': 'dev', 'runs': [{'workdir': str(run), 'step': 1} for run in runs]}
        digest = hash_arrays(arrays.values())
        report = {'protocol': protocol, 'identity': {'captions': 'x'}, 'files': {path.name: digest}}
        (folder / 'metrics.json').write_text(json.dumps(report))
    return path


@pytest.mark.parametrize('method', feature_map.METHODS)
def test_projection_depends_on_directions_only(method):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(12, 5))
    scaled = vectors * rng.uniform(1, 9, size=(12, 1))
    first, again = project(scaled, method), project(scaled.copy(), method)
    assert first.shape == (12, 2)
    np.testing.assert_array_equal(first, again)
    if method == 'pca':  # t-SNE magnifies the last bits
        np.testing.assert_allclose(first, project(vectors, method), atol=1e-12)


@pytest.mark.parametrize('method', feature_map.METHODS)
def test_command_draws_a_map(tmp_path, method, monkeypatch, capsys):
    calls = []

    def record(vectors, method):
        calls.append((vectors, method))
        return project(vectors, method)

    monkeypatch.setattr(feature_map, 'project', record)
    files = [write(tmp_path / name, runs=[name]) for name in 'ab']
    output = tmp_path / 'map.png'
    assert (
        cli.main(['report', 'map', *map(str, files), '--method', method, '--pairs', '3', '--output', str(output)]) == 0
    )
    assert output.read_bytes().startswith(b'\x89PNG')
    assert f'written to {output}' in capsys.readouterr().out
    arrays = np.load(files[0])
    want = np.concatenate([arrays['images'][[0, 2, 4]], arrays['texts'][[0, 1, 4, 5, 8, 9]]])
    assert [name for _, name in calls] == [method] * 2
    np.testing.assert_array_equal(calls[0][0], want)


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'texts': None}, 'was not written by jitm eval --save_vectors .*texts'),
        ({'images': np.array([{}])}, 'was not written by jitm eval --save_vectors'),
        ({'images': np.zeros((6, 3), np.float32)}, r'has arrays of shapes .*\(6, 3\).* are not consistent'),
        ({'images': np.zeros((7, 4), np.float32)}, 'are not consistent'),
        ({'image_of_text': np.arange(6)}, 'are not consistent'),
        ({'images': np.full((6, 4), np.nan, np.float32)}, 'has NaN or infinite vectors'),
    ],
)
def test_invalid_files_are_refused(tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        read_vectors([write(tmp_path / 'a', **changes)])


def test_vectors_that_are_not_of_the_report_beside_them_are_refused(tmp_path):
    one, other = write(tmp_path / 'a', runs=['a']), write(tmp_path / 'b', count=5)
    read_vectors([one])
    one.write_bytes(other.read_bytes())
    with pytest.raises(UserError, match=r'vectors\.npz is not from the evaluation in metrics\.json beside it'):
        read_vectors([one])


def test_user_errors(tmp_path, capsys):
    one, other = write(tmp_path / 'a'), write(tmp_path / 'b', count=5)
    np.save(tmp_path / 'sims.npy', np.eye(3))
    for arguments, message in (
        ([one, other], 'b/vectors.npz have different images or captions; compare files of the same split'),
        ([tmp_path / 'sims.npy'], 'sims.npy was not written by jitm eval --save_vectors'),
        ([tmp_path / 'none.npz'], 'none.npz was not written by jitm eval --save_vectors'),
        ([one, '--pairs', '1'], '--pairs is 1; give 2 or more'),
        ([one, '--output', tmp_path], 'exists and was not written by jitm'),
    ):
        assert cli.main(['report', 'map', *map(str, arguments)]) == 2
        error = capsys.readouterr().err
        assert error.startswith('error: ')
        assert message in error
