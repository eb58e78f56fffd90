import json

import numpy as np
import pytest
from scipy import stats

from benchmarks import command
from experiments import catalog, intervals
from jitm import configs
from jitm.evaluation.saved import folder_of
from jitm.metrics import retrieval_metrics

IMAGES = 30
IMAGE_OF_TEXT = np.repeat(np.arange(IMAGES), 5)
PAIR = intervals.Pair('mean_sum', 'mean_max')


@pytest.fixture
def save(tmp_path):
    """Writes the run directory of an experiment and seed with scores that find more pairs with a stronger signal."""

    def run(name, seed, signal):
        noise = np.random.default_rng([seed, int(10 * signal)]).normal(size=(IMAGES, len(IMAGE_OF_TEXT)))
        sims = (noise + signal * (np.arange(IMAGES)[:, None] == IMAGE_OF_TEXT)).astype(np.float32)
        workdir = catalog.directory(tmp_path, name, seed)
        folder = folder_of(workdir, 'dev')
        folder.mkdir(parents=True)
        (workdir / 'config.json').write_text(json.dumps(configs.load('vse:mean,max,f8k').to_dict()))
        (workdir / 'metrics.jsonl').touch()
        np.save(folder / 'sims.npy', sims)
        np.save(folder / 'image_of_text.npy', IMAGE_OF_TEXT)
        return retrieval_metrics(sims, IMAGE_OF_TEXT)

    return run


def test_intervals_are_those_of_the_saved_scores(tmp_path, save):
    control, treatment = save('mean_sum', 1, 1.0), save('mean_max', 1, 3.0)
    rows = intervals.rows_of(PAIR, 1, 'flickr8k', tmp_path)
    assert [row['metric'] for row in rows] == ['rsum', 'i2t/recall@1', 't2i/recall@1']
    for row in rows:
        assert (row['pair'], row['seed'], row['n']) == ('mean_max - mean_sum', 1, IMAGES)
        assert row['difference'] == pytest.approx(treatment[row['metric']] - control[row['metric']])
        assert 0 < row['low'] < row['difference'] < row['high']


def test_pairs_without_saved_scores_have_no_rows(tmp_path, save):
    assert not intervals.rows_of(PAIR, 0, 'flickr8k', tmp_path)
    save('mean_sum', 0, 1.0)
    assert not intervals.rows_of(PAIR, 0, 'flickr8k', tmp_path)


def test_rows_of_intervals_replace_those_of_the_same_run(tmp_path):
    path = tmp_path / 'rows.jsonl'
    for seed, value in ((1, 1.0), (0, 2.0), (1, 3.0)):
        row = {'size': 'flickr8k', 'pair': PAIR.name, 'seed': seed, 'metric': 'rsum', 'difference': value}
        intervals.update([row], path)
    assert [row['difference'] for row in intervals.read(path).values()] == [2.0, 3.0]


def test_intervals_list_the_pairs_with_rows(tmp_path, save, monkeypatch, capsys):
    monkeypatch.setattr(intervals, 'PATH', tmp_path / 'rows.jsonl')
    monkeypatch.setattr(intervals, 'PAIRS', (PAIR, intervals.Pair('mean_sum', 'mean_selhn')))
    runs = ('mean_sum', 0), ('mean_max', 0), ('mean_max', 1)
    monkeypatch.setattr(
        intervals, 'read_runs', lambda size: {run: {'metrics': {'rsum': 280.0 + run[1]}} for run in runs}
    )
    save('mean_sum', 0, 1.0)
    save('mean_max', 0, 3.0)
    arguments = ['intervals', '--small', f'--folder={tmp_path}', f'--json={tmp_path}/results.jsonl']
    command.main('experiments', arguments)
    assert [line.split(' |')[0] for line in capsys.readouterr().out.splitlines()[2:]] == ['| mean_max - mean_sum']
    assert {key[:3] for key in intervals.read(intervals.PATH)} == {('flickr8k_small', PAIR.name, 0)}


@pytest.mark.parametrize('n', [2, 3, 8])
def test_detectable_differences_are_shown_in_80_percent_of_cases(n):
    rng = np.random.default_rng(0)
    spread = [*np.linspace(-1, 1, n)]
    mean = intervals.detectable(spread) / np.std(spread, ddof=1)
    values = mean + rng.normal(size=(20000, n))
    assert np.mean(stats.ttest_1samp(values, 0, axis=1).pvalue < 0.05) == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize(
    ('values', 'published', 'expected'),
    [
        ([16.1, 13.3, 15.7], None, 'better'),
        ([-16.1, -13.3, -15.7], None, 'worse'),
        ([3.0, -1.0, 1.0], None, 'no difference found'),
        ([3.0, -1.0, 1.0], 7.0, 'no difference found'),
        ([3.0, -1.0, 1.0], 2.5, 'not testable here'),
        ([10.0, 10.1], None, 'two seeds'),
        ([10.0, 14.0], 2.5, 'two seeds'),
        ([0.0, 0.0, 0.0], None, 'no difference found'),
        ([25.5], None, 'one seed'),
    ],
)
def test_results(values, published, expected):
    assert intervals.result(values, published) == expected


def test_pairs_are_experiments():
    names = [pair.name for pair in intervals.PAIRS]
    assert len(names) == len(set(names))
    assert {name for pair in intervals.PAIRS for name in (pair.control, pair.treatment)} <= catalog.EXPERIMENTS.keys()
