import json
import subprocess
import sys

import numpy as np
import pytest

from jitm.analysis import feature_map
from jitm.analysis.feature_map import place, read_vectors
from jitm.commands import cli
from jitm.errors import UserError
from tests.conftest import environment


def write(folder, count=6, runs=(), **changes):
    """Vectors as eval.py writes them, two texts for each image near it."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(count, 4)).astype(np.float32)
    texts = np.repeat(vectors, 2, axis=0) + 0.01 * rng.normal(size=(2 * count, 4)).astype(np.float32)
    arrays = {'images': vectors, 'texts': texts, 'image_of_text': np.repeat(np.arange(count), 2)} | changes
    np.savez(folder / 'vectors.npz', **{key: value for key, value in arrays.items() if value is not None})
    if runs:
        protocol = {'data': 'tiny/dev', 'runs': [{'workdir': str(run), 'step': 1} for run in runs]}
        (folder / 'metrics.json').write_text(json.dumps({'protocol': protocol}))
    return folder / 'vectors.npz'


@pytest.mark.parametrize('method', feature_map.METHODS)
def test_places_are_decided_by_directions_alone_and_the_same_again(method):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(12, 5))
    scaled = vectors * rng.uniform(1, 9, size=(12, 1))
    first, again = place(scaled, method), place(scaled.copy(), method)
    assert first.shape == (12, 2)
    np.testing.assert_array_equal(first, again)
    if method == 'pca':  # t-SNE magnifies the last bits
        np.testing.assert_allclose(first, place(vectors, method), atol=1e-12)


def test_pca_is_the_plane_of_the_largest_singular_values():
    vectors = np.random.default_rng(0).normal(size=(12, 5))
    directions = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    u, s, _ = np.linalg.svd(directions - directions.mean(0), full_matrices=False)
    np.testing.assert_allclose(np.abs(place(vectors, 'pca')), np.abs(u[:, :2] * s[:2]), atol=1e-10)


def test_tsne_puts_what_is_near_together():
    """Four bundles of ten vectors each: every nearest neighbour is of the own bundle."""
    rng = np.random.default_rng(0)
    bundles = np.repeat(np.arange(4), 10)
    places = place(np.eye(8)[bundles] + 0.05 * rng.normal(size=(40, 8)), 'tsne')
    distances = np.linalg.norm(places[:, None] - places, axis=-1) + np.diag(np.full(40, np.inf))
    np.testing.assert_array_equal(bundles[distances.argmin(1)], bundles)


@pytest.mark.parametrize('method', feature_map.METHODS)
def test_a_map_is_drawn_of_some_images_and_all_their_texts(tmp_path, method, monkeypatch, capsys):
    placed = []

    def note(vectors, method):
        placed.append((vectors, method))
        return place(vectors, method)

    monkeypatch.setattr(feature_map, 'place', note)
    files = [write(tmp_path / name, runs=[name]) for name in 'ab']
    output = tmp_path / 'map.png'
    assert (
        cli.main(['report', 'map', *map(str, files), '--method', method, '--pairs', '3', '--output', str(output)]) == 0
    )
    assert output.read_bytes().startswith(b'\x89PNG')
    assert f'written to {output}' in capsys.readouterr().out
    arrays = np.load(files[0])
    want = np.concatenate([arrays['images'][[0, 2, 4]], arrays['texts'][[0, 1, 4, 5, 8, 9]]])
    assert [name for _, name in placed] == [method] * 2
    np.testing.assert_array_equal(placed[0][0], want)


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'texts': None}, 'is no file of eval.py --save_vectors .*texts'),
        ({'images': np.array([{}])}, 'is no file of eval.py --save_vectors'),
        ({'images': np.zeros((6, 3), np.float32)}, r'has arrays of shapes .*\(6, 3\).* do not belong together'),
        ({'images': np.zeros((7, 4), np.float32)}, 'do not belong together'),
        ({'image_of_text': np.arange(6)}, 'do not belong together'),
        ({'images': np.full((6, 4), np.nan, np.float32)}, 'has NaN or infinite vectors'),
    ],
)
def test_files_that_cannot_be_drawn_are_refused(tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        read_vectors([write(tmp_path / 'a', **changes)])


def test_what_a_user_gets_wrong(tmp_path, capsys):
    one, other = write(tmp_path / 'a'), write(tmp_path / 'b', count=5)
    np.save(tmp_path / 'sims.npy', np.eye(3))
    (tmp_path / 'empty.npz').touch()
    for arguments, message in (
        ([one, other], 'b/vectors.npz is of other images and texts than'),
        ([tmp_path / 'sims.npy'], 'sims.npy is no file of eval.py --save_vectors'),
        ([tmp_path / 'empty.npz'], 'empty.npz is no file of eval.py --save_vectors'),
        ([tmp_path / 'none.npz'], 'none.npz is no file of eval.py --save_vectors'),
        ([one, '--pairs', '1'], '--pairs is 1; give 2 or more'),
        ([one, '--output', tmp_path], 'the figure cannot be written to'),
    ):
        assert cli.main(['report', 'map', *map(str, arguments)]) == 2
        error = capsys.readouterr().err
        assert error.startswith('error: ')
        assert message in error


def test_the_libraries_are_loaded_for_drawing_only():
    code = "import jitm.analysis.__main__, sys; sys.exit(bool({'sklearn', 'matplotlib'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, '-c', code], env=environment(), check=False).returncode == 0
