"""Images with different numbers of regions and captions: trained on, evaluated and scored."""

import json

import numpy as np
import pytest

import jitm
from jitm.commands import cli
from jitm.training import loop
from tests.conftest import make_tiny_config

COUNTS = np.array([3, 1, 2, 3, 2, 1])
IMAGE_OF_TEXT = np.array([0, 1, 2, 3, 4, 5, 0, 0, 2, 5, 5, 5, 1])


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
    """A run on such a folder, whose padding no model may read."""
    folder = tmp_path_factory.mktemp('ragged')
    (folder / 'data').mkdir()
    rng = np.random.default_rng(0)
    for split in ('train', 'dev'):
        regions = rng.normal(size=(len(COUNTS), 3, 6)).astype(np.float32)
        regions[np.arange(3) >= COUNTS[:, None]] = 1e3
        captions = [f'a dog number {image} runs past house {n}' for n, image in enumerate(IMAGE_OF_TEXT)]
        np.save(folder / 'data' / f'{split}_ims.npy', regions)
        np.save(folder / 'data' / f'{split}_counts.npy', COUNTS)
        np.save(folder / 'data' / f'{split}_image_of_text.npy', IMAGE_OF_TEXT)
        (folder / 'data' / f'{split}_caps.txt').write_text('\n'.join(captions) + '\n')
    config = make_tiny_config() | {'epochs': 1, 'batch_size': 4}
    config['data'] = {'source': 'precomp.load', 'root': str(folder / 'data'), 'dev_images': None}
    config['vocabulary']['min_count'] = 1
    config['evaluation']['every_steps'] = None
    config['terms'].pop('later')
    loop.train_and_evaluate(config, folder / 'run')
    return folder / 'run'


def recall_at_1(sims, own_candidates):
    """Recall at 1 in percent, with loops: the best candidate of each query is one of its own."""
    hits = [np.argmax(row) in candidates for row, candidates in zip(sims, own_candidates, strict=True)]
    return 100 * np.mean(hits)


@pytest.mark.slow
def test_different_numbers_of_regions_and_captions(finished, tmp_path):
    argv = 'eval', '--workdir', str(finished), '--output', str(tmp_path), '--save_sims'
    assert cli.main(argv) == 0
    sims = np.load(tmp_path / 'sims.npy')
    run = jitm.load(finished)
    data = run.load_data('dev')
    assert [len(image) for image in data.images] == COUNTS.tolist()
    single = [[jitm.score(run, image, caption) for caption in data.captions] for image in data.images]
    np.testing.assert_allclose(sims, single, atol=1e-6)
    metrics = json.loads((tmp_path / 'metrics.json').read_text())['metrics']
    texts_of = [np.flatnonzero(image == IMAGE_OF_TEXT) for image in range(len(COUNTS))]
    assert metrics['i2t/recall@1'] == pytest.approx(recall_at_1(sims, texts_of))
    assert metrics['t2i/recall@1'] == pytest.approx(recall_at_1(sims.T, IMAGE_OF_TEXT[:, None]))
