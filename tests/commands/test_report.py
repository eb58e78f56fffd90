"""The page of `jitm report RUN...`: its content, that it needs no other file, and what it refuses; the summary."""

import csv
import dataclasses
import functools
import io
import json
import re
import shlex
import shutil
import sys

import jax
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from scipy import stats

from jitm.commands import cli
from jitm.data import scenes
from jitm.evaluation import saved
from jitm.files.outputs import OWNED, OutputFolder
from jitm.metrics import ranks
from jitm.pages import render
from jitm.pages.figures import FORMATS, save
from jitm.pages.render import Cell, Column, Table, breakable
from jitm.report.bootstrap import RESAMPLES
from jitm.report.groups import read_run_log
from jitm.report.matrices import saved_sims
from jitm.report.page import MINUS
from jitm.report.rows import read_rows
from jitm.report.significance import COLUMNS, detectable
from jitm.report.summary import RECALLS
from jitm.runs.checkpoint import Checkpoints
from jitm.runs.checkpoint_files import checkpoint_digest
from tests.conftest import TINY
from tests.support.html import Page

DATA = {key: value for key, value in TINY['data'].items() if key != 'source'}
IMAGE_OF_TEXT = np.repeat(np.arange(10), 5)


@pytest.fixture
def make_run(finished, tmp_path):
    """Copies the finished run as a run of another seed or loss, with similarities if `signal` is given."""

    def make(name, seed=0, loss='ranking.max_of_hinges', signal=None, **changes):
        run = tmp_path / 'runs' / name
        shutil.copytree(finished, run, ignore=shutil.ignore_patterns('checkpoints', 'tensorboard', 'eval'))
        config = json.loads((run / 'config.json').read_text())
        config['seed'], config['terms'] = seed, {'ranking': config['terms']['ranking'] | {'loss': loss}}
        (run / 'config.json').write_text(json.dumps(config | changes))
        if signal is not None:
            save_sims(run, seed, signal)
        return run

    return make


def save_sims(run, seed, signal, split=None, folder=None, metrics=(), **protocol):
    """Writes similarities of the 10 images of dev with a report, as `jitm eval --save_sims` does."""
    lines = [json.loads(line) for line in (run / 'metrics.jsonl').read_text().splitlines()]
    best = max((line for line in lines if line['part'] == 'dev'), key=lambda line: line['rsum'])
    noise = np.random.default_rng([seed, int(10 * signal)]).normal(size=(10, 50))
    sims = (noise + signal * (np.arange(10)[:, None] == IMAGE_OF_TEXT)).astype(np.float32)
    runs = [{'workdir': str(run), 'step': best['step'], 'member': 'target'}]
    evaluated = {'protocol': {'data': 'scenes/dev', 'split': 'dev', 'runs': runs} | protocol, 'metrics': dict(metrics)}
    folder = OutputFolder(folder or run / 'eval' / 'dev', saved.EVALUATION)
    saved.write(evaluated, split or scenes.load('dev', **DATA), folder, sims=sims)


def report(*words):
    return cli.main(['report', *map(str, words)])


def read(page):
    return Page(page.read_text(encoding='utf-8'))


def commands(parsed):
    """Returns the commands that a page lists."""
    return [item for item in parsed.texts['li'] if item.startswith('jitm ')]


@pytest.fixture
def four_runs(make_run):
    """Two groups of two seeds each."""
    return [
        make_run('max_s0', 0, signal=1.0),
        make_run('max_s1', 1, signal=1.0),
        make_run('sum_s0', 0, 'ranking.sum_of_hinges', signal=2.0),
        make_run('sum_s1', 1, 'ranking.sum_of_hinges', signal=2.0),
    ]


def test_page_has_all_sections_and_no_other_resource(four_runs, tmp_path, capsys):
    output = tmp_path / 'new' / 'page.html'
    assert report(*four_runs, '--output', output) == 0
    assert capsys.readouterr().out.endswith(f'\nwritten to {output}\n')
    parsed = read(output)
    assert parsed.texts['title'] == ['Comparison of 2 groups, 4 runs']
    assert parsed.texts['h2'] == ['Recalls', 'Significance', 'Curves', 'Examples', 'Runs']
    assert parsed.addresses
    assert all(address.startswith('data:image/') for address in parsed.addresses)
    links = {values['xlink:href'] for _, values in parsed.attributes if 'xlink:href' in values}
    assert links <= {f'#{values["id"]}' for _, values in parsed.attributes if 'id' in values}
    assert parsed.texts['figcaption'][:3] == ['validation rsum', 'image to text R@1', 'text to image R@1']
    styles = [values.get('style', '') for tag, values in parsed.attributes if tag == 'path']
    for color in ('var(--s0)', 'var(--s1)'):  # a line and a band of each group in each chart
        lines = [style for style in styles if style.startswith(f'fill: none; stroke: {color}')]
        assert len(lines) == len(parsed.texts['figcaption'])
        assert sum(f'fill: {color}; fill-opacity' in values.get('style', '') for _, values in parsed.attributes) > 0
    assert 'var(--s2)' not in ' '.join(styles)
    assert 'script' not in parsed.texts
    assert not re.search(r'url\(|@import', parsed.texts['style'][0])
    assert len(parsed.texts['caption']) == len(parsed.texts['table']) == 6
    first = output.read_bytes()
    assert report(*four_runs, '--output', output) == 0
    assert output.read_bytes() == first
    command = parsed.texts['footer'][0].removeprefix('Made by ')
    assert shlex.split(command) == ['jitm', 'report', f'--output={output}', *map(str, four_runs)]
    assert [path.name for path in output.parent.iterdir()] == ['page.html']


def test_tables_have_the_numbers_of_the_runs(four_runs, tmp_path):
    lines = [json.loads(line) for line in (four_runs[2] / 'metrics.jsonl').read_text().splitlines()]
    for line in (line for line in lines if line['part'] == 'dev'):
        line['rsum'] += 10  # of one seed of the second group
    (four_runs[2] / 'metrics.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
    save_sims(four_runs[2], 0, 2.0)
    assert report(*four_runs, '--output', tmp_path / 'page.html') == 0
    recalls, _, _, _, runs, keys = read(tmp_path / 'page.html').texts['table']
    assert 'sum_s0, sum_s1' in runs
    assert 'random seedepochssteps' in runs
    assert '0, 1330' in runs
    assert 'terms.ranking.loss' in keys
    best = max(line['rsum'] for line in lines if line['part'] == 'dev')
    assert f'{best - 5:.1f} ± 7.1' in recalls
    text = (tmp_path / 'page.html').read_text()
    assert f'<span class="best">{best - 5:.1f} ± 7.1</span>' in text
    assert f'<span class="best">{best - 10:.1f} ± 0.0</span>' not in text


def by_image(sims):
    """The share of each image in rsum, which is their mean for equally many captions."""
    i2t, t2i = (100 * np.sum(np.less.outer(way, (1, 5, 10)), axis=1) for way in ranks(sims, IMAGE_OF_TEXT))
    return i2t + t2i.reshape(10, 5).mean(axis=1)


def test_significance_is_the_difference_of_the_seeds_means(four_runs, tmp_path, capsys):
    assert report(*four_runs, '--output', tmp_path / 'page.html') == 0
    sims = [np.load(run / 'eval' / 'dev' / 'sims.npy') for run in four_runs]
    a, b, c, d = (by_image(matrix) for matrix in sims)
    differences = (c + d - a - b) / 2
    parsed = read(tmp_path / 'page.html')
    shown = parsed.texts['table'][1].replace('\N{MINUS SIGN}', '-')
    assert parsed.texts['h1'] == [f'sum_of_hinges {differences.mean():+.1f} rsum against max_of_hinges']
    assert f'{differences.mean():+.1f}' in shown
    low, high = map(float, re.search(r'([+-]\d+\.\d) to ([+-]\d+\.\d)', shown).groups())
    resamples = np.random.default_rng(0).integers(10, size=(RESAMPLES, 10))
    expected = np.quantile(differences[resamples].mean(axis=1), [0.025, 0.975])
    np.testing.assert_allclose((low, high), expected, atol=0.1 * (high - low))
    printed = capsys.readouterr().out
    assert f'sum_of_hinges: rsum {(c + d).mean() / 2:.1f} on dev, {differences.mean():+.1f} from max' in printed
    assert f'({(a + b).mean() / 2:.1f}; 95% interval over the images {low:+.1f} to {high:+.1f})\n' in printed
    assert 'one seed' not in printed
    assert report(*four_runs[:3], '--output', tmp_path / 'page.html') == 0
    assert 'a group has one seed' in capsys.readouterr().out


def test_pairs_are_tested_over_the_seeds_that_both_have(four_runs, make_run, tmp_path):
    """Groups of two seeds have no interval over seeds and images; one seed of a third group is no test."""
    third = make_run('softmax', 1, loss='ranking.softmax', signal=1.5)
    assert report(*four_runs, third, '--output', tmp_path / 'page.html') == 0
    parsed = read(tmp_path / 'page.html')
    table = parsed.texts['table'][2].replace(MINUS, '-')
    a, b, c, d = (by_image(np.load(run / 'eval' / 'dev' / 'sims.npy')).mean() for run in four_runs)
    test = stats.ttest_rel([c, d], [a, b])
    low, high = test.confidence_interval()
    deviation = np.std([c - a, d - b], ddof=1)
    cells = f'{(c + d - a - b) / 2:+.1f} ± {deviation:.1f}{low:+.1f} to {high:+.1f}{2 * f"{test.pvalue:.2g}"}--'
    assert table.strip().endswith(f'sum_of_hingesmax_of_hinges{cells}')
    assert 'softmax' not in table
    assert report(*four_runs[1:3], '--output', tmp_path / 'page.html') == 0
    assert 'Differences of rsum over the seeds' not in (tmp_path / 'page.html').read_text()


@pytest.fixture
def six_runs(make_run):
    """Two groups of three seeds each, with evaluations on dev, and on test, where the second is better by 30."""
    runs = []
    for loss, gain in (('max_of_hinges', 0), ('sum_of_hinges', 30)):
        for seed in range(3):
            run = make_run(f'{loss}_{seed}', seed, f'ranking.{loss}', signal=1.0 + gain / 30)
            metrics = dict.fromkeys(RECALLS, 10.0 + seed) | {'rsum': 300.0 + gain + 2 * seed - (gain and seed % 2)}
            save_sims(run, seed, 1.0 + gain / 20, folder=run / 'eval' / 'test', metrics=metrics, data='scenes/test')
            runs.append(run)
    return runs


def test_summary_tests_the_differences(six_runs, capsys):
    """The two-way interval is that of the saved similarities, the rest that of the logs."""
    assert report('summary', *six_runs, '--split', 'test') == 0
    best, tests = capsys.readouterr().out.strip().split('\n\n')
    assert '| 302.0 ± 2.0 | - | 2, 2, 2 |' in best
    assert '| 331.7 ± 2.1 | +29.7 ± 0.6 | 2, 2, 2 |' in best
    header, _, first, second = (line.strip('| ').split(' | ') for line in tests.splitlines())
    assert header == ['difference from max_of_hinges', *COLUMNS]
    assert first == ['max_of_hinges', *5 * ['-']]
    low, high = stats.ttest_1samp([30, 29, 30], 0).confidence_interval()
    assert second[1:4] == [f'{low:+.1f} to {high:+.1f}', '<0.001', '<0.001']
    assert second[4] == f'{detectable([30, 29, 30]):.1f}'
    sims = [np.load(run / 'eval' / 'test' / 'sims.npy') for run in six_runs]
    gains = [by_image(sims[n + 3]) - by_image(sims[n]) for n in range(3)]
    rng = np.random.default_rng(1)
    means = [np.mean(np.array(gains)[rng.integers(3, size=3)][:, rng.integers(10, size=10)]) for _ in range(1000)]
    shown = [float(end) for end in second[5].split(' to ')]
    np.testing.assert_allclose(shown, np.quantile(means, [0.025, 0.975]), atol=0.1 * (shown[1] - shown[0]))


def test_formats_of_the_summary(six_runs, capsys):
    assert report('summary', *six_runs, '--split', 'test', '--format', 'latex') == 0
    best, tests = capsys.readouterr().out.strip().split('\n\n')
    assert best.startswith('\\begin{tabular}{lrrrrrrrr}\n\\toprule\ngroup & R@1 i2t & R@5 i2t & ')
    assert r'sum\_of\_hinges & 11.0 $\pm$ 1.0 & ' in best
    assert tests.splitlines()[-3].startswith(r'sum\_of\_hinges & +')
    assert tests.endswith(' \\\\\n\\bottomrule\n\\end{tabular}')
    assert report('summary', *six_runs, '--format', 'csv') == 0
    header, first, second = csv.reader(io.StringIO(capsys.readouterr().out))
    assert len(header) == len({*header}) == len(first) == len(second)
    assert header[:3] == ['group', 'R@1 i2t', 'R@5 i2t']
    assert {*COLUMNS, 'difference', 'best epoch', '0', '1', '2', '3'} <= {*header}
    assert second[header.index('difference')] == '+0.0 ± 0.0'
    assert second[header.index('p')] == '1'


def test_summaries_that_lack_an_evaluation_are_refused(six_runs, tmp_path, capsys):
    assert report('summary', *six_runs, '--split', 'val') == 2
    command = f'jitm eval --workdir {six_runs[0]} --split val --save_sims'
    assert capsys.readouterr().err == f'error: {six_runs[0]} has no evaluation on val; write it with {command}\n'
    folder = six_runs[0] / 'eval' / 'val'
    folder.mkdir()
    (folder / 'metrics.json').write_text('{')
    assert report('summary', *six_runs, '--split', 'val') == 2
    assert f'{folder}/metrics.json is not a report of jitm eval (' in capsys.readouterr().err
    save_sims(
        six_runs[1], 1, 1.0, folder=six_runs[1] / 'eval' / 'test', runs=[{'step': 1, 'member': 'target', 'workdir': ''}]
    )
    assert report('summary', *six_runs, '--split', 'test') == 2
    assert 'test/metrics.json is from step 1 of target, which is not the best validation' in capsys.readouterr().err
    rows = tmp_path / 'rows.jsonl'
    assert report(*six_runs, '--output', tmp_path / 'page.html', '--rows', rows, '--queries', 0) == 0
    capsys.readouterr()
    assert report('summary', rows) == 0
    assert f'| {COLUMNS[0]} |' in capsys.readouterr().out
    assert report('summary', rows, '--split', 'test') == 2
    assert capsys.readouterr().err == f'error: {rows} has no evaluations on test; give the run directories instead\n'


def test_the_headline_is_the_difference_of_the_best_two_groups(four_runs, make_run, tmp_path):
    output = tmp_path / 'page.html'
    third = make_run('softmax', loss='ranking.softmax', signal=1.5)
    assert report(*four_runs, '--output', output) == 0
    parsed = read(output)
    difference, interval = re.search(rf'([+{MINUS}]\d+\.\d)(\S+ to \S+?\.\d)\d+\.\d%$', parsed.texts['tr'][5]).groups()
    assert difference.startswith('+')
    assert parsed.texts['h1'] == [f'sum_of_hinges {difference} rsum against max_of_hinges']
    assert f'interval {interval} over the queries of dev' in parsed.texts['p'][1]
    assert 'One seed' not in output.read_text()
    assert '<span class="best">' in output.read_text().partition('<h2>Significance')[2]
    assert report(*four_runs[:3], third, '--output', output) == 0
    parsed = read(output)
    assert parsed.texts['h1'][0].startswith('sum_of_hinges +')
    assert 'One seed of sum_of_hinges and of softmax:' in parsed.texts['p'][2]
    assert '<span class="best">' not in output.read_text().partition('<h2>Significance')[2].partition('<h2>')[0]


def test_examples_have_captions_pictures_and_ranks(four_runs, tmp_path):
    """The best group is the second; each of its examples has a rank of the other group, and two pictures or one."""
    output = tmp_path / 'page.html'
    assert report(*four_runs, '--output', output, '--queries', 2) == 0
    parsed = read(output)
    counts = parsed.texts['table'][3]
    assert all(word in counts for word in ('both', 'only sum_of_hinges', 'only max_of_hinges', 'none'))
    captions = scenes.load('dev', **DATA).captions
    assert 4 <= len(parsed.texts['article']) <= 8
    for article in parsed.texts['article']:
        assert any(caption in article for caption in captions)
        assert article.count('✓') == article.count('✗') == article.count('first match at rank ') == 1
    assert sum(address.startswith('data:image/png') for address in parsed.addresses) >= len(parsed.texts['article'])


def test_photographs_are_shown(four_runs, tmp_path):
    photos, output = tmp_path / 'photos', tmp_path / 'page.html'
    photos.mkdir()
    for image_id in scenes.load('dev', **DATA).image_ids:
        Image.new('RGB', (9, 9)).save(photos / f'{image_id}.jpg')
    assert report(*four_runs, '--output', output, '--photos', photos) == 0
    kinds = {address.partition(';')[0] for address in read(output).addresses}
    assert kinds == {'data:image/jpeg'}


def test_runs_without_similarities_name_the_command(make_run, tmp_path):
    runs = [make_run('max', signal=1.0), make_run("it's", loss='ranking.sum_of_hinges')]
    assert report(*runs, '--output', tmp_path / 'page.html') == 0
    parsed = read(tmp_path / 'page.html')
    assert commands(parsed) == [f"jitm eval --workdir '{tmp_path}/runs/it'\"'\"'s' --save_sims"]
    assert 'Two groups need saved similarities' in parsed.texts['section'][-2]
    assert report(*runs, '--output', tmp_path / 'page.html', '--split', 'test') == 0
    items = commands(read(tmp_path / 'page.html'))
    assert len(items) == 2
    assert all(item.endswith('--save_sims --split test') for item in items)


def test_groups_of_other_data_are_left_out_of_the_comparison(four_runs, make_run, tmp_path):
    """Seeds of one group that are of different data leave this group out, and no other."""
    split = scenes.load('dev', **DATA)
    reversed_split = dataclasses.replace(split, image_ids=split.image_ids[::-1])
    save_sims(four_runs[1], 1, 1.0, split=reversed_split, data='other/dev')
    third = make_run('softmax', loss='ranking.softmax', signal=0.5)
    for runs, compared in ((four_runs, False), ([*four_runs, third], True)):
        assert report(*runs, '--output', tmp_path / 'page.html') == 0
        parsed = read(tmp_path / 'page.html')
        _, significance, _, examples, _ = parsed.texts['section']
        assert re.search(r'Left out of the comparison, .*max_s1/eval/dev/sims.npy of other/dev\.', significance)
        assert ('Two groups need saved similarities to be compared' in significance) == (not compared)
        assert ('Two groups need saved similarities of the same images' in examples) == (not compared)
        assert ('only softmax' in examples) == compared
    assert len(parsed.texts['table']) == 5
    assert 'max_of_hinges' not in parsed.texts['table'][1]


def test_similarities_of_data_that_moved_are_found(make_run, tmp_path, monkeypatch):
    run = make_run('a', signal=1.0)
    moved = saved.folder_of(run, 'dev', data_root='moved') / 'sims.npy'
    log = read_run_log(run)
    assert saved_sims(log, 'dev', 'moved') == saved_sims(log, 'dev') == run / 'eval' / 'dev' / 'sims.npy'
    moved.parent.mkdir()
    moved.touch()
    assert saved_sims(log, 'dev', 'moved') == moved
    shutil.rmtree(run / 'eval')
    assert saved_sims(log, 'dev', 'moved') == moved


def test_a_converted_run_is_compared(finished, make_run, tmp_path, capsys):
    """It has no config and no log; its evaluation is its validation, on data of any folder."""
    run = make_run('max', signal=1.0)
    converted = tmp_path / 'converted'
    with Checkpoints(finished) as checkpoints:
        state, described = checkpoints.read(checkpoints.best_step())
        del described['steps_per_epoch']
    with Checkpoints(converted) as checkpoints:
        checkpoints.save(state, 0, described | {'best_step': 0}, None)
    assert report('summary', run, converted) == 0
    assert re.search(r'^\| .* \| - \| - \| - \| - \| .* \| 0 \| converted \|$', capsys.readouterr().out, re.MULTILINE)
    assert report(run, converted, '--output', tmp_path / 'page.html', '--rows', tmp_path / 'rows.jsonl') == 0
    assert commands(read(tmp_path / 'page.html')) == [f'jitm eval --workdir {converted} --save_sims']
    assert report('summary', tmp_path / 'rows.jsonl') == 0
    evaluation = described['config']['evaluation']
    single = {'folds': 1, 'dtype': evaluation['dtype'], 'precision': evaluation['precision'], 'data': 'moved/dev'}
    runs = [{'workdir': str(converted), 'step': 0, 'member': 'target', 'digest': checkpoint_digest(converted, 0)}]
    folder = saved.folder_of(converted, 'dev', data_root='moved')
    metrics = dict.fromkeys(RECALLS, 12.5) | {'mean_distance': 1}
    save_sims(run, 1, 2.0, folder=folder, runs=runs, metrics=metrics, **single)
    assert report(run, converted, '--output', tmp_path / 'page.html') == 0
    recalls, differences, outcomes, *_ = read(tmp_path / 'page.html').texts['table']
    assert '12.5' in recalls
    assert 'first is ahead in' in differences
    assert 'both' in outcomes
    assert report('summary', run, converted) == 0
    assert '| 12.5 |' in capsys.readouterr().out


def test_one_group_has_a_page(make_run, tmp_path):
    assert report(make_run('a', signal=1.0), make_run('b', 1), '--output', tmp_path / 'page.html') == 0
    parsed = read(tmp_path / 'page.html')
    assert parsed.texts['title'] == ['Comparison of 1 group, 2 runs']
    assert 'There is one group' in parsed.texts['section'][1]


def test_names_and_captions_are_escaped(make_run, tmp_path, monkeypatch):
    evil = '<script>alert("&")</script>'
    split = scenes.load('dev', **DATA)
    hostile = dataclasses.replace(split, captions=tuple(f'{evil} {caption}' for caption in split.captions))
    monkeypatch.setattr(scenes, 'load', functools.wraps(scenes.load)(lambda split, **keys: hostile))
    runs = [make_run('<i>a&b', signal=0.5), make_run('b', loss='ranking.sum_of_hinges<b>', signal=2.0)]
    assert report(*runs, '--output', tmp_path / 'page.html') == 0
    parsed = read(tmp_path / 'page.html')
    assert not {'script', 'i', 'b'} & {*parsed.texts}
    assert evil in parsed.texts['article'][0]
    assert '<i>a&b' in parsed.texts['table'][3]


def test_rows_are_written_with_the_page_and_make_the_summary(four_runs, tmp_path, capsys):
    rows = tmp_path / 'rows.jsonl'
    for runs in (four_runs[:3], four_runs):
        assert report(*runs, '--output', tmp_path / 'page.html', '--rows', rows) == 0
    assert [*read_rows(rows)] == [str(run) for run in four_runs]
    capsys.readouterr()
    assert report('summary', *four_runs) == 0
    expected = capsys.readouterr().out
    assert report('summary', rows) == 0
    assert capsys.readouterr().out == expected


def damage_sims(run):
    (run / 'eval' / 'dev' / 'sims.npy').write_bytes(b'\x93NUMPY')


def cut_metrics(run):
    lines = (run / 'metrics.jsonl').read_text().splitlines(keepends=True)
    early = [line for line in lines if json.loads(line)['epoch'] < 3]
    (run / 'metrics.jsonl').write_text(''.join(early))


WRONG = {
    'damaged sims': (damage_sims, 'sims.npy is no .npy file, damaged or cut off'),
    'modified sims': (
        lambda run: np.save(run / 'eval' / 'dev' / 'sims.npy', np.ones((10, 50), np.float32)),
        'sims.npy is not from the evaluation in metrics.json beside it',
    ),
    'sims without a report': (
        lambda run: (run / 'eval' / 'dev' / 'metrics.json').unlink(),
        'sims.npy is from no known checkpoint, which is not the best validation of',
    ),
    'sims of another model': (
        lambda run: save_sims(run, 0, 1.0, runs=[{'step': 20, 'workdir': '', 'member': 'anchor'}]),
        'sims.npy is from step 20 of anchor, which is not the best validation of',
    ),
    'old sims': (
        lambda run: save_sims(run, 0, 1.0, runs=[{'step': 0, 'workdir': '', 'member': 'target'}]),
        'sims.npy is from step 0 of target, which is not the best',
    ),
    'no metrics': (lambda run: (run / 'metrics.jsonl').unlink(), 'is not a run directory'),
    'no validation': (lambda run: (run / 'metrics.jsonl').write_text(''), 'has no validation yet'),
    'unfinished': (cut_metrics, 'of 3; resume it, leave it out, or add --unfinished'),
    'damaged times': (lambda run: (run / 'timing.jsonl').write_text('{\n'), 'timing.jsonl is damaged'),
}


@pytest.mark.parametrize('name', WRONG)
def test_runs_that_cannot_be_reported_are_one_sentence(four_runs, tmp_path, capsys, name):
    damage, sentence = WRONG[name]
    damage(four_runs[1])
    assert report(*four_runs, '--output', tmp_path / 'page.html', '--rows', tmp_path / 'rows.jsonl') == 2
    output, error = capsys.readouterr()
    assert output == ''
    assert error.startswith('error: ')
    assert len(error.splitlines()) == 1
    assert sentence in error
    assert 'max_s1' in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ['runs']


def test_similarities_of_an_earlier_training_are_refused(finished, tmp_path, capsys):
    """The checkpoint of the same step has other parameters."""
    run = shutil.copytree(finished, tmp_path / 'run', ignore=shutil.ignore_patterns('eval'))
    assert cli.main(['eval', '--workdir', str(run), '--save_sims']) == 0
    assert report(run, '--output', tmp_path / 'page.html') == 0
    with Checkpoints(run) as checkpoints:
        best = checkpoints.best_step()
        state, described = checkpoints.read(best)
        scores = checkpoints.metrics(best)
        shutil.rmtree(run / 'checkpoints' / str(best))
        checkpoints.save(jax.tree.map(lambda x: x * 2, state), best, described, scores)
    capsys.readouterr()
    assert report(run, '--output', tmp_path / 'page.html') == 2
    refusal = f'{run}/eval/dev/sims.npy comes from another training of {run}, whose checkpoint {best} is newer; '
    assert capsys.readouterr().err == f'error: {refusal}write it again with jitm eval --save_sims\n'


def test_unfinished_runs_can_be_included(four_runs, tmp_path):
    cut_metrics(four_runs[1])
    for folder in ('0', '1'):
        shutil.rmtree(four_runs[1] / 'eval', ignore_errors=True)
        assert report(*four_runs, '--output', tmp_path / folder / 'page.html', '--unfinished') == 0
    assert ' of 3' in read(tmp_path / '1' / 'page.html').texts['table'][-2]


def test_missing_data_can_be_left_out(make_run, tmp_path, capsys):
    data = {'source': 'precomp.load', 'root': str(tmp_path / 'gone'), 'dev_images': None}
    losses = ('ranking.max_of_hinges', 'ranking.sum_of_hinges')
    runs = [make_run(str(n), loss=loss, signal=1.0 + n, data=data) for n, loss in enumerate(losses)]
    assert report(*runs, '--output', tmp_path / 'page.html') == 2
    assert '--queries 0 leaves out the examples' in capsys.readouterr().err
    assert report(*runs, '--output', tmp_path / 'page.html', '--queries', 0) == 0
    parsed = read(tmp_path / 'page.html')
    assert 'None were asked for' in parsed.texts['section'][-2]
    assert len(parsed.texts['table']) == 4


DEFAULTS = {
    '': 'report.html',
    'panels': 'panels.md',
    'training': 'training.png',
    'validation': 'validation.png',
}


@pytest.mark.parametrize('kind', DEFAULTS)
def test_a_file_of_somebody_else_is_refused_before_anything_is_read(make_run, tmp_path, monkeypatch, capsys, kind):
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / DEFAULTS[kind]
    words = [kind, 'absent'] if kind else [make_run('a')]
    mine.write_text('mine')
    assert report(*words) == 2
    sentence = f'{mine.name} exists and was not written by jitm; choose another file, or remove it\n'
    assert capsys.readouterr().err == f'error: {sentence}'
    assert mine.read_text() == 'mine'


@pytest.mark.parametrize(
    'suffix', [pytest.param(name, marks=[pytest.mark.slow] * (name not in ('png', 'pdf'))) for name in FORMATS]
)
def test_figures_of_each_format_replace_their_own(tmp_path, suffix):
    output = tmp_path / f'figure.{suffix}'
    for _ in range(2):
        figure = Figure(figsize=(2, 2))
        panels = figure.subplots(4, 4)
        for panel in panels.flat:  # a large table of objects at the end of a PDF
            panel.plot([1, 2], 'o-')
        save(figure, output)
    assert [path.name for path in tmp_path.iterdir()] == [output.name]


def test_panels_replace_only_their_own_pictures(four_runs, tmp_path, capsys):
    sims = four_runs[0] / 'eval' / 'dev' / 'sims.npy'
    output, pictures = tmp_path / 'panels.md', tmp_path / 'panels_images'
    pictures.mkdir()
    (pictures / '3.png').write_text('mine')
    assert report('panels', sims, '--output', output) == 2
    assert 'panels_images is not empty and is not a folder of pictures of jitm' in capsys.readouterr().err
    assert (pictures / '3.png').read_text() == 'mine'
    assert not output.exists()
    (pictures / '3.png').unlink()
    for image in (3, 4):
        assert report('panels', sims, '--images', image, '--texts', '', '--output', output) == 0
        assert {path.name for path in pictures.iterdir()} == {OWNED, f'{image}.png'}


def test_tables_group_their_headers():
    columns = [Column('x'), Column('R@1', 'both'), Column('R@5', 'both'), Column('y')]
    rows = [['1', '2', Cell('3', best=True), Cell('4', note='5')]]
    parsed = Page(render.environment().get_template('tables.html').module.table(Table('a < b', columns, rows)))
    assert parsed.texts['caption'] == ['a < b']
    assert parsed.texts['tr'] == ['xbothy', 'R@1R@5', '1234 5']
    assert parsed.texts['th'] == ['x', 'both', 'y', 'R@1', 'R@5', '1']


def test_pages_need_jinja(make_run, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, 'jinja2', None)
    assert report(make_run('a'), '--output', tmp_path / 'page.html') == 2
    expected = "error: the package jinja2 is not installed: run pip install -e '.[report]' in jitm's clone\n"
    assert capsys.readouterr().err == expected
    assert not (tmp_path / 'page.html').exists()


def test_numbers_are_not_broken():
    assert breakable('a_b.c=0.5, c/d<') == 'a_<wbr>b.<wbr>c=<wbr>0.5, c/<wbr>d&lt;'
