import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks import __main__ as entry
from benchmarks import (
    experiments,
    flickr8k,
    members,
    memory,
    results,
    scene_graphs,
    start_up,
    tables,
    tags_step,
)
from jitm import config as config_lib
from jitm import configs, parallel
from jitm.commands import cli
from jitm.commands.sections import override
from jitm.configs.common import first_stage
from jitm.data.scene_graphs import parse
from jitm.layers.transformer import SIZES
from jitm.report.rows import read_rows
from tests.configs.settings import start
from tests.conftest import ROOT, SHARED

DOCS = ROOT / 'docs'
FACTUAL = SHARED / 'data' / 'factual_sg' / 'dev.csv'

MODELS = ['scan_t2i', 'scan_i2t', 'bfan_equal', 'bfan_prob', 'sgr', 'saf', 'naaf', 'dbl']


@pytest.fixture
def loops():
    pytest.importorskip('torch')
    from benchmarks import torch_loops

    return torch_loops


@pytest.mark.parametrize('name', MODELS)
def test_torch_loops_score_and_train(loops, name):
    assert list(loops.LOOPS) == MODELS
    torch = loops.torch
    torch.manual_seed(0)
    model = loops.LOOPS[name](16, 6)
    regions, words = loops.unit(torch.randn(5, 6, 16)), loops.unit(torch.randn(5, 7, 16))
    lengths = torch.tensor([7, 3, 5, 4, 3])
    padding = torch.arange(7)[:, None] >= lengths[:, None, None]
    scores = loops.score(model, regions, words, lengths, shard=2)
    assert scores.shape == (5, 5)
    torch.testing.assert_close(scores, loops.score(model, regions, words.masked_fill(padding, torch.nan), lengths))
    loss = loops.train_step(model, regions, words, lengths)
    assert 0 < loss < 50
    assert not words.grad[padding.expand_as(words)].any()
    for tensor in (regions, words, *model.parameters()):
        assert tensor.grad.isfinite().all()
    assert regions.grad.any()
    assert words.grad.any()


def test_max_of_hinges_of_torch_loops(loops):
    # Hardest hinges: rows 0.7, 0.2 and 0, columns 0, 0.9 and 0.
    scores = loops.torch.tensor([[0.5, 1.0, 0.4], [0.3, 0.3, 0.2], [0.1, 0.6, 0.9]])
    assert loops.max_of_hinges(scores).item() == pytest.approx(1.8)


@pytest.fixture
def measured(tmp_path, capsys):
    """Runs a benchmark, and returns its rows from the end of the file of results."""

    def run(*arguments):
        entry.main([*arguments, f'--json={tmp_path}/results.jsonl'])
        *_, rows = results.read(tmp_path / 'results.jsonl').values()
        assert len(capsys.readouterr().out.splitlines()) == 2 + len(rows)
        return rows

    return run


@pytest.mark.parametrize('train', [False, True])
def test_torch_loops_are_timed(loops, tmp_path, measured, train):
    captions = tmp_path / 'caps.txt'
    captions.write_text('a dog\na red house by the sea\n' * 6)
    sizes = ['--images=5', '--texts=12', '--dim=8', '--regions=4', '--batch=4', '--seconds=0.01']
    [row] = measured('torch_loops', '--model=saf', f'--captions={captions}', *sizes, *['--train'] * train)
    speed = 'steps/s' if train else 'pairs/s'
    assert set(row) == {'model', 'threads', speed, 'MiB', 'GFLOP/s of a product'}
    assert row['model'] == 'saf'
    assert min(row[speed], row['MiB'], row['GFLOP/s of a product']) > 0
    assert loops.caption_lengths(captions, 2).tolist() == [4, 8]


@pytest.mark.slow
@pytest.mark.parametrize('model', [[], ['--model=scan_t2i']])
def test_mining_is_timed(measured, model):
    [row] = measured('mining', '--images=12', '--texts=60', '--dim=8', '--top_h_texts=4', '--top_h_images=3', *model)
    assert (row['images'], row['captions']) == (12, 60)
    pairs = row['s'] * row['million pairs/s'] * 1e6
    if model:
        assert pairs == pytest.approx(12 * 60)
        assert row["hours for Flickr30K's training split"] > 0
    else:
        assert pairs == pytest.approx(2 * 12 * 60)
        assert row['GFLOP/s'] == pytest.approx(2 * 8 * row['million pairs/s'] / 1000)


@pytest.mark.slow
def test_members_are_timed_against_a_single_model(precomp_folder, monkeypatch, measured):
    load = members.load_config

    def small(network, scenario, data):
        config = load(network, scenario, data)
        config['model'] |= {'embed_dim': 8}
        return config | {'vocabulary': {'path': '', 'min_count': 1}}

    monkeypatch.setattr(members, 'load_config', small)
    monkeypatch.setattr(members, 'SCENARIOS', ('single', 'oss', 'mss'))
    flags = ['--networks=vsepp', '--data=f8k', f'--data_root={precomp_folder}', '--batch_size=4', '--rounds=1']
    table = {row['scenario']: row for row in measured('members', *flags)}
    assert list(table) == ['single', 'oss', 'mss']
    times = 'time', 'lower bound of time', 'memory', 'lower bound of memory'
    assert [table['single'][column] for column in times] == [1, 1, 1, 1]
    assert table['oss']['lower bound of time'] == 2
    assert all(row['memory'] >= row['lower bound of memory'] > 1 for row in list(table.values())[1:])
    assert table['mss']['memory'] < table['oss']['memory']  # no gradient, and no optimizer


def test_flops_per_pair_by_hand():
    """Base size, 52 tokens: 12 blocks of 4 products with 768 x 768, 2 with 768 x 3072 and 2 of the attention."""
    blocks = 12 * (2 * 52 * (4 * 768 * 768 + 2 * 768 * 3072) + 2 * 2 * 52 * 52 * 768)
    ranked = tags_step.flops_per_pair(SIZES['base'], 16, 36, 28996, ['rank'])
    assert ranked == blocks + 2 * 768 * 768 + 2 * 768
    assert ranked == pytest.approx(8.93e9, rel=1e-3)
    words = 16 * 2 * 768 * (768 + 28996)
    assert tags_step.flops_per_pair(SIZES['base'], 16, 36, 28996, ['mlm']) == blocks + words
    heads = ['rank', 'discriminate', 'correct']
    assert tags_step.flops_per_pair(SIZES['base'], 16, 36, 28996, heads) == ranked + words + 16 * 2 * 768 * 2


@pytest.mark.slow
def test_tags_step_parts_are_timed_and_scaled(monkeypatch, measured):
    monkeypatch.setitem(SIZES, 'tiny', dataclasses.replace(SIZES['tiny'], layers=1))  # compiles in half the time
    monkeypatch.setattr(tags_step, 'seconds', lambda part, *args: (3.0, part(*args)))
    monkeypatch.setattr(tags_step, 'matmul_gflops', lambda: 10.0)
    sizes = ['--size=tiny', '--words=4', '--regions=3', '--vocabulary=30', '--rounds=1', '--positives=2', '--pairs=4']
    *rows, whole, step = measured('tags_step', *sizes, '--views=3', '--samples=2', '--num_hard=2', '--candidates=5')
    assert [row['part'] for row in rows] == list(tags_step.PARTS)
    assert [(row['pairs'], row['timed']) for row in rows] == [(3, 3), (6, 4), (12, 8), (3, 3), (3, 3), (6, 6)]
    assert all(1 < row['counted by XLA'] < 1.15 for row in rows)  # other operations matter more in a small model
    seconds = [1.5, 1.5 * 6 / 4, 1.5 * 12 / 8, 1.5, 1.5, 1.5]
    for row, took in zip(rows, seconds, strict=True):
        teraflops = row['GFLOP/pair'] * row['pairs'] / 1000
        expected = teraflops, took, 100 * took / sum(seconds), 1000 * teraflops / took, 10000 * teraflops / took
        columns = 'TFLOP', 's', '% of the time', 'GFLOP/s', '% of the plain product'
        assert [row[column] for column in columns] == pytest.approx(expected)
    for column in ('pairs', 'TFLOP', 's'):
        assert whole[column] == pytest.approx(sum(row[column] for row in rows))
        assert step[column] == pytest.approx(256 * whole[column])


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (['--num_hard=7', '--views=2', '--samples=3'], 'larger than the number of generated captions'),
        (['--num_hard=7', '--candidates=6'], 'larger than the number of generated captions or candidates'),
        (['--candidates=40', '--positives=41'], 'are candidates of each other'),
        (['--pairs=1'], 'a positive and a negative'),
    ],
)
def test_tags_step_refuses_inconsistent_flags(capsys, flags, message):
    with pytest.raises(SystemExit):
        entry.main(['tags_step', *flags])
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_train_step_compares_rules_of_padding(precomp_folder, measured):
    sizes = ['--embed_dim=8', '--batch_size=4', '--steps=1', '--length_multiples', '80', '8']
    first, other = measured('train_step', f'--data_root={precomp_folder}', *sizes)
    assert (first['ratio'], first['compilations'], first['padded to multiples of']) == (1, 1, 80)
    assert other['mean padded length'] < first['mean padded length']
    assert other['ratio'] == pytest.approx(other['steps/s'] / first['steps/s'])


def test_the_loader_measures_each_kind_of_work(measured):
    rows = measured('loader', '--images=3', '--image_size=32', '--short_side=40', '--cores', '1')
    assert [row['work'] for row in rows] == ['check at the start', 'centre crops', 'random crops', 'ten crops']
    assert min(row['images/s'] for row in rows) > 0


@pytest.mark.slow
def test_memory_of_a_step_is_that_of_state_batch_and_temporaries(monkeypatch, measured):
    monkeypatch.setattr(parallel, 'CPU_TILE_FLOATS', parallel.CPU_TILE_FLOATS)
    small, large = (
        measured('memory', '--settings', 'vsepp:vsepp,f30k', f'--batch_size={size}')[-1] for size in (4, 64)
    )
    assert (small['batch'], large['batch']) == (4, 64)
    assert small['state GB'] == large['state GB'] == pytest.approx(12 * small['million parameters'] / 1000, rel=1e-3)
    assert large['temporary GB'] > 1.5 * small['temporary GB'] > 0
    batch = 60 * 36 * 2048 * 2 / 1e9  # half-precision features, most of the difference besides temporaries
    assert large['peak GB'] - large['temporary GB'] - small['peak GB'] + small['temporary GB'] == pytest.approx(
        batch, rel=0.01
    )
    assert [small[f'in {size} GB'] for size in memory.ACCELERATORS] == ['yes'] * 3


@pytest.mark.slow
def test_start_up_is_timed_without_and_with_compiled_programs(monkeypatch, measured):
    for key in ('model.embed_dim', 'model.text.word_dim'):
        monkeypatch.setitem(start_up.SMALL, key, 8)
    none, cached = measured('start_up', '--settings', 'vsepp:vsepp,f30k')
    assert (none['programs'], none['ratio'], cached['programs']) == ('none', 1, 'cached')
    assert cached['ratio'] == pytest.approx(cached['CPU s'] / none['CPU s'])
    assert 2 <= cached['compilations'] <= none['compilations'] <= 12  # one for each compiled function and padded length


GOLD = """image_id,region_id,caption,scene_graph
1,1,two dogs on the seat of a bus,"( dogs , is , 2 ) , ( dogs , on , seat ) , ( bus , have , seat )"
1,2,a man wears red glasses,"( man , wear , glasses ) , ( glasses , is , dark red )"
1,3,scooters,( scooters )
"""


def test_scene_graphs_have_precision_and_recall(tmp_path, measured):
    path = tmp_path / 'gold.csv'
    path.write_text(GOLD)
    rows = measured('scene_graphs', f'--gold={path}')
    assert [(row['precision'], row['recall'], row['gold']) for row in rows] == [
        (1, 1, 6), (0.5, 0.5, 2), (0.5, 0.5, 2), (1, 1, 3)
    ]  # fmt: skip
    assert rows[0]['captions/s'] > 0


def test_scene_graphs_refuse_other_files(tmp_path, capsys):
    path = tmp_path / 'gold.csv'
    path.write_text('a,b\n1,2\n')
    for name, message in ((path, 'is not a CSV file with columns caption and scene_graph'), ('none', 'cannot be read')):
        with pytest.raises(SystemExit):
            entry.main(['scene_graphs', f'--gold={name}'])
        assert message in capsys.readouterr().err


def test_base_forms():
    parse('a dog')  # loads the lexicon, which warns of unclosed files
    bases = {'sitting': 'sit', 'riding': 'ride', 'tied': 'tie', 'attached': 'attach', 'has': 'have', 'carries': 'carry'}
    bases |= {'covered': 'cover', 'cross': 'cross', 'growing': 'grow', 'stand': 'stand', 'watches': 'watch', 'on': 'on'}
    assert {word: scene_graphs.base_of_verb(word) for word in bases} == bases
    nouns = {'tennis racquets': 'racquet', 'bus': 'bus', 'buses': 'bus', 'women': 'woman', 'glass': 'glass'}
    assert {phrase: scene_graphs.base_of_noun(phrase) for phrase in nouns} == nouns


@pytest.mark.skipif(not FACTUAL.is_file(), reason='needs the gold scene graphs in ../shared/data')
def test_scene_graphs_accuracy():
    captions, gold = scene_graphs.read_file(str(FACTUAL))
    parsed = [scene_graphs.read_parsed(caption, parse(caption)) for caption in captions]
    measured = {kind: row[:2] for kind, row in scene_graphs.measure(gold, parsed).items()}
    assert len(captions) == 1000
    assert min(measured['head_nouns']) > 0.95
    assert min(measured['attributes']) > 0.77
    assert min(measured['relations']) > 0.74


@pytest.mark.parametrize('small', [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_experiment_on_flickr8k_can_be_trained(tmp_path, small):
    for name in experiments.EXPERIMENTS:
        command = experiments.command(name, 0, tmp_path, small)
        assert command[:2] == ['train', '--config']
        flags = dict(flag.removeprefix('--config.').split('=', 1) for flag in command[5:])
        config = config_lib.check(override(cli.read_config(command[2]), flags))
        start(config)


def test_stages_that_are_taken_over_are_the_same():
    for experiment in (experiment for experiment in experiments.EXPERIMENTS.values() if experiment.first_stage):
        other = configs.load(experiments.EXPERIMENTS[experiment.first_stage].config)
        first = configs.load(experiment.config).stages.first.to_dict()
        assert first == (other.stages.first.to_dict() if other.stages else first_stage(other))


@pytest.mark.parametrize('size', ['flickr8k', 'flickr8k_small'])
def test_rows_are_of_the_terms_of_their_experiments(size):
    rows = read_rows(DOCS / f'{size}.jsonl')
    for name, experiment in experiments.EXPERIMENTS.items():
        config = config_lib.flatten(configs.load(experiment.config).to_dict()) | experiment.flags
        folder = str(experiments.scored(experiments.directory(Path('runs', size), name, 0), name))
        row = config_lib.flatten(rows[folder]['config']) if folder in rows else {}
        for key in row.keys() & config.keys():
            assert not key.startswith('terms.') or row[key] == config[key], (name, key)


def test_experiments_without_a_row_follow_the_runs_they_read(tmp_path, monkeypatch):
    rows = tmp_path / 'rows.jsonl'
    runs = flickr8k.pending(['vsepp_rm_oas', 'mean_sum'], [1], tmp_path, rows)
    assert runs == [('mean_sum_max', 1), ('vsepp_rm_oas', 1), ('mean_sum', 1)]
    command = experiments.command('vsepp_rm_oas', 1, tmp_path)
    assert f'--config.members.anchor.init_from={tmp_path}/mean_sum_max_s1' in command
    monkeypatch.setattr(flickr8k, 'read_rows', lambda path: {str(tmp_path / 'mean_sum_s1'): {}})
    rows.touch()
    assert flickr8k.pending(['vsepp_rm_oas', 'mean_sum'], [1], tmp_path, rows) == runs[:2]
    assert flickr8k.pending(['vsepp_rm_oas', 'mean_sum'], [1], tmp_path, None) == runs


def test_small_experiments_are_small_in_both_stages(tmp_path):
    small = {'model.embed_dim=256', 'model.text.recurrent=False'}
    command = experiments.command('aoq_offtri', 0, tmp_path, small=True)
    assert {f'--config.{prefix}{key}' for prefix in ('', 'stages.first.') for key in small} <= set(command)
    assert not any(key in flag for flag in experiments.command('aoq_offtri', 0, tmp_path) for key in small)


def test_flickr8k_lists_all_groups_and_refuses_other_names(tmp_path, measured, capsys):
    rows = measured('flickr8k')
    assert {row['group'] for row in rows} == experiments.GROUPS.keys()
    assert {row['name'] for row in rows} == experiments.EXPERIMENTS.keys()
    with pytest.raises(SystemExit):
        entry.main(['flickr8k', 'lossess', '--seeds', '0'])
    assert 'lossess: neither a group nor an experiment' in capsys.readouterr().err


def test_the_entry_lists_and_finds_all_benchmarks(capsys):
    entry.main([])
    out = capsys.readouterr().out
    assert all(f'\n{name} ' in out for name in entry.NAMES)
    with pytest.raises(SystemExit, match=r"benchmark 'speed' does not exist; choose one of: train_step, "):
        entry.main(['speed'])


def test_cells_have_three_significant_digits():
    cells = ['1,234,567', '1,230,000', '123', '12.3', '1.00', '0.0123', '', 'saf']
    assert [results.format_cell(cell) for cell in (1234567, 1234567.0, 123.4, 12.34, 1.0, 0.01234, '', 'saf')] == cells


def test_a_result_replaces_that_of_the_same_command(tmp_path):
    path = tmp_path / 'results.jsonl'
    for flags, value in (([], 1.0), (['--dim=8'], 2.0), ([f'--json={path}'], 3.0), (['--json', 'other'], 4.0)):
        results.add(path, 'mining', flags, [{'s': value}])
    assert results.read(path) == {'mining': [{'s': 4.0}], 'mining --dim=8': [{'s': 2.0}]}
    path.write_text('{}')
    with pytest.raises(results.UserError, match=r'line 1 of .* is not a result of a benchmark'):
        results.read(path)


def test_tables_replace_the_rows_below_their_command():
    page = 'Speed.\n\n<!-- benchmarks mining -->\n| s |\n|---|\n| 1.00 |\n\nEnd.\n'
    assert tables.rewritten(page, {'mining': [{'s': 2.0}]}) == page.replace('1.00', '2.00')
    with pytest.raises(tables.UserError, match="no result of 'mining'"):
        tables.rewritten(page, {})


def test_tables_of_the_docs_are_those_of_the_results():
    texts = dict(tables.pages())
    assert texts == {page: page.read_text() for page in texts}
    marks = {match[2] for text in texts.values() for match in tables.MARK.finditer(text)}
    assert marks == tables.tables().keys()


def test_commands_of_the_docs_are_accepted():
    pages = ''.join(path.read_text() for path in sorted(DOCS.glob('*.md')))
    lines = re.findall(r'^python -m benchmarks (.*)$', pages, flags=re.MULTILINE)
    assert len(lines) > 10
    for name, *flags in map(str.split, lines):
        entry.make_parser(name).parse_args(flags)


def test_small_experiments_keep_the_gru_where_words_are_not_averaged(tmp_path):
    assert not any('recurrent' in flag for flag in experiments.command('fc_max', 0, tmp_path, small=True))


def test_cca_finds_the_captions_of_linear_features(tmp_path, measured):
    """The features of an image count the words of its captions; 20 directions find all, and noise finds few."""
    rng = np.random.default_rng(0)
    for folder, signal in (('words', 1.0), ('noise', 0.0)):
        (tmp_path / folder).mkdir()
        for split, images in (('train', 300), ('dev', 40)):
            words = rng.integers(20, size=(images, 4))
            counts = np.stack([np.bincount(row, minlength=20) for row in words])
            features = signal * counts[:, None] + 0.01 * rng.normal(size=(images, 3, 20))
            np.save(tmp_path / folder / f'{split}_ims.npy', features.astype(np.float32))
            captions = '\n'.join(' '.join(f'w{chr(97 + word)}' for word in row) for row in words)
            (tmp_path / folder / f'{split}_caps.txt').write_text(captions + '\n')
    (found,), (nothing,) = (measured('cca', f'--data_root={tmp_path}/{folder}') for folder in ('words', 'noise'))
    assert float(found['rsum']) > 540
    assert float(nothing['rsum']) < 200
