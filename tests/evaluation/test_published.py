"""The published rows agree with the papers, and are compared only with evaluations of the same protocol."""

import collections
import dataclasses
import functools
import itertools
import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from jitm.commands import cli
from jitm.data import precomp
from jitm.errors import UserError
from jitm.evaluation import published
from jitm.inference import scoring
from tests.conftest import ROOT
from tests.support.runs import write_initial

ROWS = published.load()
RECALLS = published.RECALLS
RETRIEVAL = [row for row in ROWS if row.metrics.keys() & {*RECALLS, 'rsum'}]


def of(source, system, dataset, **fields):
    """Returns the metrics of the only row of a source with this system, data set and fields."""
    wanted = {'system': system, 'dataset': dataset} | fields
    found = [row for row in ROWS if source in row.sources]
    found = [row for row in found if all(getattr(row, key) == value for key, value in wanted.items())]
    assert len(found) == 1, (source, wanted, found)
    return found[0].metrics


def parts(protocol):
    """Returns a protocol without noise, the rate of the noise in percent, and what moved."""
    measured, rate, moved = re.fullmatch(r'(.*?)(?:, (\d+) % of (captions|images) mixed)?', protocol).groups()
    return measured, int(rate or 0), moved


# The file.


def test_rows_are_sorted_one_per_line():
    text = (ROOT / 'jitm' / 'evaluation' / 'published.json').read_text(encoding='utf-8')
    content = json.loads(text)
    presets = [f'{json.dumps(name)}: {json.dumps(keys)}' for name, keys in content['presets'].items()]
    rows = [json.dumps(row, ensure_ascii=False) for row in content['rows']]
    assert text == '{"presets": {\n' + ',\n'.join(presets) + '\n},\n"rows": [\n' + ',\n'.join(rows) + '\n]\n}\n'
    keys = [(row.dataset, row.protocol, row.system, row.backbone, row.sources) for row in ROWS]
    assert keys == sorted(keys)


def test_package_data_has_the_rows():
    project = tomllib.loads((ROOT / 'pyproject.toml').read_text())
    assert 'published.json' in project['tool']['setuptools']['package-data']['jitm.evaluation']


def test_metrics_of_a_row_are_consistent():
    for row in RETRIEVAL:
        assert parts(row.protocol)[0] in published.PROTOCOLS[row.dataset], row
        assert row.metrics.keys() <= {*RECALLS, 'rsum', 'i2t/median_rank', 't2i/median_rank', 'mean_distance'}, row
        for direction in ('i2t', 't2i'):
            recalls = [row.metrics[key] for key in RECALLS if key in row.metrics and key.startswith(direction)]
            assert recalls == sorted(recalls), row
            assert all(0 < recall <= 100 for recall in recalls), row
        printed = [row.metrics[key] for key in RECALLS if key in row.metrics]
        if 'rsum' in row.metrics:
            missing = row.metrics['rsum'] - sum(printed)
            if len(printed) == 6:
                assert abs(missing) < 0.15, f'more than rounding: {row}'
            elif len(printed) == 4:  # both R@10 are missing
                assert row.metrics['i2t/recall@5'] + row.metrics['t2i/recall@5'] < missing <= 200, row
            elif len(printed) == 2:  # both R@1
                assert 2 * sum(printed) < missing <= 400, row


def test_more_noise_gives_lower_recalls():
    """Within a source, a system and a kind of noise; a rank by chance has an rsum of 3.2."""
    series = collections.defaultdict(dict)
    for row in RETRIEVAL:
        measured, rate, moved = parts(row.protocol)
        for source, key in itertools.product(row.sources, row.metrics.keys() & {'rsum', RECALLS[0], RECALLS[3]}):
            series[source, row.system, row.dataset, measured, moved, key][rate] = row.metrics[key]
    noisy = {key: [value for _, value in sorted(found.items())] for key, found in series.items() if key[4]}
    assert sum(len(values) > 1 for values in noisy.values()) > 70
    for key, values in noisy.items():
        assert all(more <= less or more < 4 for less, more in itertools.pairwise(values)), (key, values)


# Rows typed from the papers: printed.json.


def test_rows_equal_the_papers():
    printed = json.loads(Path(__file__).with_name('printed.json').read_text())
    for source, system, dataset, fields, numbers in printed['rows']:
        assert [*of(source, system, dataset, **fields).values()] == numbers
    for source, system, dataset, moved, numbers in printed['rsum by noise']:
        rows = [row for row in ROWS if source in row.sources and (row.system, row.dataset) == (system, dataset)]
        found = {str(parts(row.protocol)[1]): row.metrics['rsum'] for row in rows if parts(row.protocol)[2] == moved}
        assert found == numbers, (source, system, dataset)
    assert list(of('AOQ table 1', 'SCAN', 'coco', protocol='5K')) == [*RECALLS, 'rsum']
    four = [key for key in RECALLS if '@10' not in key]
    assert list(of('DBL table I', 'VSRN', 'f30k')) == [*four, 'rsum']
    assert list(of('DBL table II', 'DBL baseline', 'f30k')) == [*four, 'mean_distance']
    assert list(of('SelHN table 7', 'BFAN (equal)', 'f30k')) == four
    ranked = ['i2t/recall@1', 'i2t/recall@10', 'i2t/median_rank', 't2i/recall@1', 't2i/recall@10', 't2i/median_rank']
    assert list(of('VSE++ table 4', 'Order0', 'coco')) == ranked
    long = of('LoTLIP README', 'Long-CLIP', 'urban1k')
    assert long == {'i2t/recall@1': 78.9, 't2i/recall@1': 79.5}
    gaps = of('SelHN table 9', 'SGRAF', 'coco')
    assert gaps == {'i2t/recall@1': 57.8, 'i2t/recall@10': 91.6, 't2i/recall@1': 41.9, 't2i/recall@10': 81.3}


def test_ensembles_are_marked():
    """Section B.1 of SelHN: table 7 has both; DBL takes single models; AOQ's BFAN averages two (footnote 3)."""
    kinds = {row.system: row.ensemble for row in ROWS if 'SelHN table 7' in row.sources}
    ensembles = {'SCAN', 'SCAN + SelHN', 'BFAN', 'BFAN + SelHN', 'SGRAF', 'SGRAF + SelHN'}
    assert {system for system, ensemble in kinds.items() if ensemble} == ensembles
    assert None not in kinds.values()
    dbl = {row.system.split(' + ')[0] for row in ROWS if 'DBL table I' in row.sources and row.ensemble}
    assert dbl == {'SGRAF'}
    assert all(row.ensemble for row in ROWS if row.system.startswith('BFAN') and 'AOQ' in row.sources[0])


# The comparison.


def protocol(dataset='f30k', split='test', images=1000, texts=5000, folds=1, runs=1):
    return {
        'data': f'my_precomp/{split}',
        'dataset': dataset,
        'split': split,
        'images': images,
        'texts': texts,
        'folds': folds,
        'runs': [{'workdir': f'runs/{n}', 'step': 7} for n in range(runs)],
    }


@pytest.mark.parametrize(
    ('ours', 'dataset', 'name'),
    [
        (protocol(), 'f30k', '1K'),
        (protocol('coco'), 'coco', '1K, 1 fold'),
        (protocol('coco', 'testall', folds=5), 'coco', '1K, 5 folds'),
        (protocol('coco', 'testall', 5000, 25000), 'coco', '5K'),
        (protocol('urban1k', texts=1000), 'urban1k', '1K'),
    ],
)
def test_rows_of_the_same_protocol_match(ours, dataset, name):
    elsewhere = [dataclasses.replace(row, dataset='elsewhere') for row in ROWS]
    rows = published.matching(elsewhere + ROWS, ours)
    assert rows == [row for row in ROWS if (row.dataset, row.protocol) == (dataset, name)]
    assert len(rows) >= 3


@pytest.mark.parametrize(
    ('ours', 'noise', 'rsum'),
    [
        (protocol(), '20 % of captions mixed', 496.7),
        (protocol(), '20 % of images mixed', 491.1),
        (protocol('coco', 'testall', folds=5), '20 % of captions mixed', 518.5),
        (protocol('coco', 'testall', folds=5), '60 % of images mixed', 2.4),
        (protocol('cc152k', texts=1000), '', 355.6),
    ],
)
def test_rows_have_the_noise_of_the_run(ours, noise, rsum):
    rows = published.matching(ROWS, ours, ['ncr'], noise)
    assert rsum in {row.metrics['rsum'] for row in rows}
    assert all(row.protocol.endswith(noise) and bool(parts(row.protocol)[2]) == bool(noise) for row in rows)


def test_rows_can_be_selected_by_system():
    rows = published.matching(ROWS, protocol(), ['vse++'])
    assert {row.system for row in rows} == {'VSE++', 'RVSE++'}
    rows = published.matching(ROWS, protocol('coco', 'testall', folds=5), ['ORDER', 'gsmn'])
    assert {row.system for row in rows} == {'Order (Vendrov et al., 2015)', 'Order0', 'Order++', 'GSMN'}


@pytest.mark.parametrize(
    ('ours', 'systems', 'sentence'),
    [
        (
            protocol(''),
            [],
            r'my_precomp/test does not say which data set it is.* one of coco, f30k, cc152k.* dataset.txt',
        ),
        (protocol('f8k'), [], "is a split of the data set 'f8k', but published rows are available for coco, f30k, "),
        (protocol(split='dev'), [], 'my_precomp/dev is not a test split.*--split test'),
        (
            protocol(images=10, texts=50),
            [],
            r'1 fold of 10 images and 50 texts is not .* of f30k; known are 1K: 1 fold',
        ),
        (protocol(texts=1000), [], '1000 images and 1000 texts is not a published protocol'),
        (protocol(images=200, texts=1000, folds=5), [], '5 folds of 200 images'),
        (protocol('coco', 'testall', 2500, 12500, 2), [], '1K, 5 folds: 5 folds of 1000 images and 5000 texts'),
        (protocol('f30k', 'testall', 5000, 25000), [], 'not a published protocol of f30k'),
        (protocol(), ['vse++', 'order0'], "no row of f30k, 1K, has the system 'order0'"),
    ],
)
def test_other_protocols_are_refused(ours, systems, sentence):
    with pytest.raises(UserError, match=sentence):
        published.matching(ROWS, ours, systems)
    with pytest.raises(UserError, match='no results of f30k, 1K, 30 % of captions mixed, are published; jitm settings'):
        published.matching(ROWS, protocol(), noise='30 % of captions mixed')


TABLE = """\
| system | i2t R@1 | R@5 | R@10 | t2i R@1 | R@5 | R@10 | rsum | models | backbone | source |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
| ours | 30.0 | 60.0 | 70.1 | 9.0 | 5.0 | 7.0 | 181.1 | ensemble | - | runs/0, runs/1 |
| best | 50.0 | - | - | 20.0 | - | - | - | - | VGG19 | A table 1, B table 2 |
| next | 60.0 | 70.0 | - | 9.5 | - | - | 400.0 | single | - | C (misprint) |
| last | - | - | - | - | - | - | 500.0 | ensemble | - | D |"""


def test_comparison_by_hand():
    row = functools.partial(published.Row, dataset='f30k', protocol='1K')
    rows = [
        row(system='last', ensemble=True, sources=['D'], metrics={'rsum': 500.0}),
        row(
            system='next',
            ensemble=False,
            sources=['C'],
            metrics={'i2t/recall@1': 60.0, 'i2t/recall@5': 70.0, 't2i/recall@1': 9.5, 'rsum': 400.0},
            note='misprint',
        ),
        row(
            system='best',
            ensemble=None,
            sources=['A table 1', 'B table 2'],
            metrics={'i2t/recall@1': 50.0, 't2i/recall@1': 20.0, 'i2t/median_rank': 3.0},
            backbone='VGG19',
        ),
    ]
    metrics = dict(zip((*RECALLS, 'rsum'), (30.0, 60.0, 70.06, 9.0, 5.0, 7.0, 181.06), strict=True))
    report = {'metrics': metrics | {'i2t/median_rank': 2.0}, 'protocol': protocol(runs=2)}
    assert published.comparison(report, rows) == TABLE
    report['protocol'] |= {'shortlist': {}}
    assert published.comparison(report, rows).splitlines()[2].startswith('| ours, re-ranked | 30.0')


def test_command_refuses_data_without_published_rows(finished, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(scoring, 'Scorer', None)  # nothing is encoded
    assert cli.main(['eval', f'--workdir={finished}', '--split=test', '--compare', f'--output={tmp_path / "out"}']) == 2
    assert capsys.readouterr() == (
        '',
        "error: scenes/test is a split of the data set 'scenes', but published rows are available for "
        f'{", ".join(published.PROTOCOLS)}\n',
    )
    assert not (tmp_path / 'out').exists()


@pytest.mark.slow
def test_command_prints_published_results(tiny_config, precomp_folder, tmp_path, capsys):
    np.save(precomp_folder / 'test_ims.npy', np.random.default_rng(1).normal(size=(1000, 3, 6)).astype(np.float32))
    (precomp_folder / 'test_caps.txt').write_text('a dog runs past house 1\n' * 5000)
    tiny_config['data'] = {'source': 'precomp.load', 'root': str(precomp_folder), 'dev_images': 1000}
    write_initial(tiny_config, tmp_path / 'run')
    identity = precomp.load('dev', root=str(precomp_folder)).identity
    (precomp_folder / 'dataset.txt').write_text('f30k\n')  # belongs to the folder, so it may be written after training
    assert precomp.load('dev', root=str(precomp_folder)).identity == identity
    assert cli.main(['eval', f'--workdir={tmp_path / "run"}', '--split=test', '--compare_systems=vse0,vse++']) == 0
    lines = capsys.readouterr().out.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith('| ours '))
    assert lines[start - 2].startswith('| system | i2t R@1 |')
    report = json.loads((tmp_path / 'run' / 'eval' / 'test' / 'metrics.json').read_text())
    assert f'| {report["metrics"]["rsum"]:.1f} | single |' in lines[start]
    assert lines[start + 1].startswith('| RVSE++ | 83.6 | 96.5 |')
    assert sum('VSE++ table 3' in line for line in lines) == 7
    assert report['protocol']['dataset'] == 'f30k'
    (precomp_folder / 'dataset.txt').write_text('f30k\ncoco\n')
    with pytest.raises(UserError, match=r'dataset.txt has 2 lines: it must hold one name, such as f30k'):
        precomp.load('dev', root=str(precomp_folder))
