import argparse
import json
import statistics

import numpy as np
import pytest

from benchmarks import command
from experiments import catalog, comments, flickr8k, intervals, means, row_hits
from jitm import configs
from jitm.errors import UserError
from jitm.evaluation.saved import folder_of
from jitm.metrics import retrieval_metrics
from jitm.report.bootstrap import Hits

IMAGES = 30
IMAGE_OF_TEXT = np.repeat(np.arange(IMAGES), 5)
PAIR = 'mean_max', 'mean_sum'
NAME = ' - '.join(PAIR)


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


@pytest.fixture
def row(tmp_path, save):
    """Returns the row of an experiment and seed that keeps the hits of its scores."""

    def run(name, seed, signal):
        metrics = save(name, seed, signal)
        hits = flickr8k.saved_hits(catalog.directory(tmp_path, name, seed), name)
        return {(name, seed): {'metrics': metrics, 'hits': row_hits.encode(hits)}}

    return run


def test_a_row_keeps_the_hits_of_its_scores(row):
    [kept] = row('mean_max', 0, 2.0).values()
    hits = row_hits.decode(json.loads(json.dumps(kept['hits'])))
    assert hits.rsum() == pytest.approx(kept['metrics']['rsum'])
    assert [*hits.texts] == [5] * IMAGES
    assert {*hits.i2t} <= {0, 100, 200, 300}
    with pytest.raises(ValueError, match='12 captions'):
        row_hits.encode(Hits(np.array([300]), np.array([3600]), np.array([12])))


def test_intervals_are_those_of_the_hits(row):
    runs = row('mean_sum', 1, 1.0) | row('mean_max', 1, 3.0)
    [found] = intervals.rows_of(*PAIR, runs, 'flickr8k')
    assert (found['pair'], found['seed'], found['metric'], found['n']) == (NAME, 1, 'rsum', IMAGES)
    control, treatment = (kept['metrics']['rsum'] for kept in runs.values())
    assert found['difference'] == pytest.approx(treatment - control)
    assert 0 < found['low'] < found['difference'] < found['high']


def test_three_seeds_have_an_interval_over_seeds_and_images(row):
    runs = {}
    for seed in range(3):
        runs |= row('mean_sum', seed, 1.0) | row('mean_max', seed, 3.0)
    *by_seed, over_all = intervals.rows_of(*PAIR, runs, 'flickr8k')
    assert [found['seed'] for found in by_seed] == [0, 1, 2]
    assert over_all['seed'] == intervals.ALL
    assert over_all['difference'] == pytest.approx(np.mean([found['difference'] for found in by_seed]))
    assert 0 < over_all['low'] < over_all['difference'] < over_all['high']


def test_pairs_without_hits_have_no_rows(row):
    assert not [*intervals.rows_of(*PAIR, row('mean_sum', 0, 1.0), 'flickr8k')]
    without = {('mean_max', 0): {'metrics': {}}}
    assert not [*intervals.rows_of(*PAIR, row('mean_sum', 1, 1.0) | without, 'flickr8k')]


def test_rows_of_intervals_replace_those_of_the_same_run(tmp_path):
    path = tmp_path / 'rows.jsonl'
    for seed, value in ((1, 1.0), (0, 2.0), (intervals.ALL, 4.0), (1, 3.0)):
        row = {'size': 'flickr8k', 'pair': NAME, 'seed': seed, 'metric': 'rsum', 'difference': value}
        intervals.update([row], path)
    assert {key[2]: row['difference'] for key, row in intervals.read(path).items()} == {0: 2.0, 1: 3.0, 'all': 4.0}


def test_intervals_list_the_pairs_with_rows(tmp_path, row, monkeypatch, capsys):
    monkeypatch.setattr(intervals, 'PATH', tmp_path / 'rows.jsonl')
    monkeypatch.setattr(comments, 'differences', lambda size: iter([PAIR, ('mean_selhn', 'mean_sum')]))
    without = {('mean_max', 1): {'metrics': {'rsum': 280.0}}}
    runs = row('mean_sum', 0, 1.0) | row('mean_max', 0, 3.0) | without
    monkeypatch.setattr(intervals, 'read_runs', lambda size: runs)
    command.main('experiments', ['intervals', '--small', f'--json={tmp_path}/results.jsonl'])
    assert [line.split(' |')[0] for line in capsys.readouterr().out.splitlines()[2:]] == [f'| {NAME}']
    assert {key[:3] for key in intervals.read(intervals.PATH)} == {('flickr8k_small', NAME, 0)}


BETTER = [16.1, 13.3, 15.7], 0.01, None
WORSE = [-16.1, -13.3, -15.7], 0.01, None
EQUAL = [3.0, -1.0, 1.0], 0.5, None


@pytest.mark.parametrize(
    ('compared', 'expected'),
    [
        ([BETTER], 'Confirmed'),
        ([BETTER, BETTER], 'Confirmed'),
        ([WORSE], 'Contradicted'),
        ([EQUAL], 'No difference'),
        ([([3.0, -1.0, 1.0], 0.5, 7.0)], 'No difference'),
        ([([3.0, -1.0, 1.0], 0.5, 2.5)], 'Open'),  # the published difference would not be detected
        ([([10.0, 10.1], None, None)], 'Open'),
        ([BETTER, WORSE], 'Open'),
        ([BETTER, EQUAL], 'Open'),
        ([], 'Open'),
    ],
)
def test_verdicts(compared, expected):
    assert intervals.verdict(compared) == expected


def test_pages_name_experiments():
    pairs = [pair for size in ('flickr8k', 'flickr8k_small') for pair in comments.differences(size)]
    assert len(pairs) > 100
    assert {name for pair in pairs for name in pair} <= catalog.EXPERIMENTS.keys() | catalog.read_cca().keys()


def test_means_are_of_all_pairs_of_seeds_or_of_experiments(tmp_path, save):
    def means_of(names, seeds):
        return [*means.run(argparse.Namespace(names=names, seeds=seeds, small=True, folder=tmp_path))]

    def mean_of(*runs):
        sims = [np.load(tmp_path / run / 'eval' / 'dev' / 'sims.npy') for run in runs]
        return f'{retrieval_metrics(np.mean(sims, axis=0), IMAGE_OF_TEXT)["rsum"]:.1f}'

    rsums = [save('mean_max', seed, 2.0)['rsum'] for seed in range(3)]
    weaker = save('mean_sum', 1, 1.0)['rsum']
    one, two = means_of(['mean_max'], [0, 1, 2, 3])
    assert one['rsum'] == f'{statistics.mean(rsums):.1f} ± {statistics.stdev(rsums):.1f}'
    assert float(two['rsum'].split()[0]) > max(rsums)  # independent noise is averaged
    assert means_of(['mean_max'], [0, 1])[1]['rsum'] == mean_of('mean_max_s0', 'mean_max_s1')
    found = means_of(['mean_max', 'mean_sum'], [0, 1])
    assert [row['scores'] for row in found] == ['`mean_max`', '`mean_sum`', 'mean of these']
    assert [row['rsum'] for row in found] == [
        *(f'{rsum:.1f}' for rsum in (rsums[1], weaker)),
        mean_of('mean_max_s1', 'mean_sum_s1'),
    ]
    with pytest.raises(UserError, match='has scores of 1 seeds of mean_max: train them with --again'):
        means_of(['mean_max'], [0])


def test_a_command_reports_an_unknown_experiment(capsys):
    with pytest.raises(SystemExit) as ended:
        command.main('experiments', ['means', 'mean_maximum'])
    assert ended.value.code == 2
    assert "there is no experiment 'mean_maximum'; python -m experiments flickr8k lists them" in capsys.readouterr().err
