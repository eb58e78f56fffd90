"""The examples run, and do what their docstrings say."""

import json
import runpy

import numpy as np
import pytest
from matplotlib import pyplot

from jitm.data.splits import Split
from jitm.evaluation import saved
from jitm.files.outputs import OutputFolder
from jitm.training.sources.generated import BINS
from tests.conftest import ROOT

IMAGES, TEXTS_PER_IMAGE = 30, 2
IMAGE_OF_TEXT = np.random.default_rng(0).permutation(np.repeat(np.arange(IMAGES), TEXTS_PER_IMAGE))


@pytest.mark.slow
def test_minimal_example_learns(capsys):
    main = runpy.run_path(str(ROOT / 'examples' / 'minimal.py'))['main']
    rsums = main(num_train=600, num_test=100, epochs=3)
    assert 'rsum' in capsys.readouterr().out
    assert rsums[-1] > rsums[0] + 20


def write_run(folder, temperature, rsums):
    """A run whose R@1 are 1/10 and 1/5 of its rsum."""
    folder.mkdir(parents=True)
    (folder / 'config.json').write_text(json.dumps({'terms': {'ranking': {'temperature': temperature}}}))
    lines = [{'epoch': 0.5, 'part': 'train', 'target/loss': 1.0}]
    lines += [{'rsum': rsum, 'i2t/recall@1': rsum / 10, 't2i/recall@1': rsum / 5} for rsum in rsums]
    (folder / 'metrics.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))


def write_evaluation(folder, seed):
    """Similarities of few values, nearly all ties, and vectors in a plane."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(IMAGES, 2)), rng.normal(size=(len(IMAGE_OF_TEXT), 2))
    sims = rng.integers(5, size=(IMAGES, len(IMAGE_OF_TEXT))).astype(np.float32)
    split = Split(
        name='tiny/dev',
        regions=np.zeros((IMAGES, 1, 3), np.float32),
        counts=np.ones(IMAGES, np.int32),
        captions=tuple(f'caption {n}' for n in range(len(IMAGE_OF_TEXT))),
        image_of_text=IMAGE_OF_TEXT,
        image_ids=tuple(map(str, range(IMAGES))),
    )
    saved.write({'protocol': {}}, split, OutputFolder(folder, saved.EVALUATION), sims=sims, vectors=vectors)
    return sims, np.concatenate(vectors)


def write_synthetic_captions(folder):
    """A log of three lines, of which the second has no synthetic caption."""
    folder.mkdir(parents=True)
    lines = []
    for epoch, gap, count in ((1.0, -0.35, 2), (2.0, 0.0, 0), (3.0, 0.55, 4)):
        shares = {f'share_{part:02}': float(part == int((gap + 1) * 10)) for part in range(BINS)}
        generated = {'gap': gap, 'count': count, **shares}
        lines.append({'epoch': epoch} | {f'target/generated/{key}': value for key, value in generated.items()})
    (folder / 'metrics.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))


def looped_cross_retrieval_ranks(sims):
    ranks = []
    for text, image in enumerate(IMAGE_OF_TEXT):
        image_rank = 1 + sum(sims[row, text] >= sims[image, text] for row in range(IMAGES) if row != image)
        others = [n for n, owner in enumerate(IMAGE_OF_TEXT) if owner != image]
        text_rank = 1 + sum(sims[image, n] >= sims[image, text] for n in others)
        ranks.append(max(TEXTS_PER_IMAGE * image_rank - TEXTS_PER_IMAGE + 1, text_rank))
    return np.array(ranks)


def distances(points):
    return np.linalg.norm(points[:, None] - points, axis=-1)


def test_notebook_draws_the_figures_of_the_papers(tmp_path, monkeypatch):
    """All cells, with files as jitm writes them."""
    pyplot.switch_backend('agg')
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / 'runs' / 'temperatures'
    for temperature, by_seed in {0.05: ([1, 30, 20], [50]), 0.5: ([10], [10])}.items():
        for seed, rsums in enumerate(by_seed):
            write_run(runs / f'terms.ranking.temperature={temperature}_seed={seed}', temperature, rsums)
    folders = [runs / f'terms.ranking.temperature={temperature}_seed=0' / 'eval' / 'dev' for temperature in (0.05, 0.5)]
    evaluations = [write_evaluation(folder, seed) for seed, folder in enumerate(folders)]
    write_synthetic_captions(tmp_path / 'runs' / 'tags')

    figures, names = [], {}
    monkeypatch.setattr(pyplot, 'show', lambda: figures.append(pyplot.gcf()))
    notebook = ROOT / 'examples' / 'notebooks' / 'paper_figures.ipynb'
    for cell in json.loads(notebook.read_text())['cells']:
        if cell['cell_type'] == 'code':
            exec(compile(''.join(cell['source']), notebook.name, 'exec'), names)
    by_key, difficulty, cross_retrieval, distributions, maps = figures

    *seeds, means = by_key.axes[2].lines  # rsum
    assert [points.get_xydata().tolist() for points in seeds] == [[[0.05, 30], [0.05, 50]], [[0.5, 10], [0.5, 10]]]
    assert means.get_xydata().tolist() == [[0.05, 40], [0.5, 10]]

    panel = difficulty.axes[0]
    assert panel.lines[0].get_xydata().tolist() == [[1, -0.35], [3, 0.55]]
    assert np.argwhere(panel.collections[0].get_array()).tolist() == [[6, 0], [15, 1]]

    for bars, (sims, _) in zip(cross_retrieval.axes[0].containers, evaluations, strict=True):
        ranks = looped_cross_retrieval_ranks(sims)
        bounds = ((1, 1), (2, 5), (6, 10), (11, 50), (51, 200), (201, 999))
        counts = [np.count_nonzero((first <= ranks) & (ranks <= last)) for first, last in bounds]
        assert [bar.get_height() for bar in bars] == counts

    positives = np.arange(IMAGES)[:, None] == IMAGE_OF_TEXT
    for panel, chosen in zip(distributions.axes, (positives, ~positives), strict=True):
        means = [line.get_xdata()[0] for line in panel.lines]
        np.testing.assert_allclose(means, [sims[chosen].mean() for sims, _ in evaluations])

    for panel, (_, vectors) in zip(maps.axes, evaluations, strict=True):
        dots, stars = (points.get_offsets() for points in panel.collections)
        directions = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        np.testing.assert_allclose(distances(np.concatenate([stars, dots])), distances(directions), atol=1e-6)
    pyplot.close('all')
