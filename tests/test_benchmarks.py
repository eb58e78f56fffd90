import dataclasses
import json
import re
import sys

import numpy as np
import pytest

from benchmarks import flickr8k, members, mining, scene_graphs, scoring, tags_step
from benchmarks.settings import load_config
from jitm import config as config_lib
from jitm.data.scene_graphs import parse
from jitm.layers.transformer import SIZES
from tests.conftest import SHARED

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


@pytest.mark.parametrize('name', MODELS[:4])
def test_torch_loops_equal_our_scores(loops, name):
    torch, dim = loops.torch, 16
    images = scoring.make_elements(4, np.full(4, 6), 6, dim, 'float32')
    lengths = np.array([7, 3, 5])
    texts = scoring.make_elements(3, lengths, 7, dim, 'float32')
    want = scoring.make_model(name, dim).apply({}, images, texts, method='similarity')
    sides = [torch.tensor(np.array(side.vectors)) for side in (images, texts)]
    got = loops.score(loops.LOOPS[name](dim, 6), *sides, torch.tensor(lengths))
    np.testing.assert_allclose(got.detach().numpy(), want, atol=1e-5)


def test_max_of_hinges_of_torch_loops(loops):
    # Hardest hinges: rows 0.7, 0.2 and 0, columns 0, 0.9 and 0.
    scores = loops.torch.tensor([[0.5, 1.0, 0.4], [0.3, 0.3, 0.2], [0.1, 0.6, 0.9]])
    assert loops.max_of_hinges(scores).item() == pytest.approx(1.8)


@pytest.mark.parametrize('train', [False, True])
def test_torch_loops_print_json(loops, tmp_path, monkeypatch, capsys, train):
    captions = tmp_path / 'caps.txt'
    captions.write_text('a dog\na red house by the sea\n' * 6)
    sizes = ['--images=5', '--texts=12', '--dim=8', '--regions=4', '--batch=4', '--seconds=0.01']
    arguments = ['--model=saf', f'--captions={captions}', *sizes, *['--train'] * train]
    monkeypatch.setattr(sys, 'argv', ['torch_loops', *arguments])
    loops.main()
    result = json.loads(capsys.readouterr().out)
    speed = 'steps_per_second' if train else 'pairs_per_second'
    assert set(result) == {'model', 'mode', 'threads', speed, 'peak_rss_mb', 'matmul_gflops'}
    assert (result['model'], result['mode']) == ('saf', 'train' if train else 'score')
    assert min(result[speed], result['peak_rss_mb'], result['matmul_gflops']) > 0
    assert loops.caption_lengths(captions, 2).tolist() == [4, 8]


@pytest.mark.slow
@pytest.mark.parametrize('model', [[], ['--model=scan_t2i']])
def test_mining_prints_speed(monkeypatch, capsys, model):
    sizes = ['--images=12', '--texts=60', '--dim=8', '--top_h_texts=4', '--top_h_images=3']
    monkeypatch.setattr(sys, 'argv', ['mining', *sizes, *model])
    mining.main()
    out = capsys.readouterr().out
    assert out.startswith('12 x 60, 8 dimensions, float32')
    assert 'million pairs/s' in out
    assert ("Flickr30K's training split" if model else 'GFLOP/s of the plain product') in out


@pytest.mark.slow
def test_members_are_timed_against_a_single_model(precomp_folder, monkeypatch, capsys):
    load = members.load_config

    def small(network, scenario, data):
        config = load(network, scenario, data)
        config['model'] |= {'embed_dim': 8}
        return config | {'vocabulary': {'path': '', 'min_count': 1}}

    monkeypatch.setattr(members, 'load_config', small)
    monkeypatch.setattr(members, 'SCENARIOS', ('single', 'oss', 'mss'))
    members.main(['--networks=vsepp', '--data=f8k', f'--data_root={precomp_folder}', '--batch_size=4', '--rounds=1'])
    lines = capsys.readouterr().out.splitlines()
    table = {line.split()[0]: [float(cell) for cell in line.split()[1:]] for line in lines[-3:]}
    assert list(table) == ['single', 'oss', 'mss']
    assert table['single'][:4] == [1, 1, 1, 1]
    assert table['oss'][1] == 2
    assert all(memory >= floor > 1 for _, _, memory, floor, _ in list(table.values())[1:])
    assert table['mss'][2] < table['oss'][2]  # no gradient, and no optimizer


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
def test_tags_step_parts_are_timed_and_scaled(monkeypatch, capsys):
    monkeypatch.setitem(SIZES, 'tiny', dataclasses.replace(SIZES['tiny'], layers=1))  # compiles in half the time
    monkeypatch.setattr(tags_step, 'seconds', lambda part, *args: (3.0, part(*args)))
    sizes = ['--size=tiny', '--words=4', '--regions=3', '--vocabulary=30', '--rounds=1', '--positives=2', '--pairs=4']
    tags_step.main([*sizes, '--views=3', '--samples=2', '--num_hard=2', '--candidates=5'])
    lines = capsys.readouterr().out.splitlines()
    assert 'K = 3, L = 2, m = 2, 5 candidates' in lines[0]
    assert lines[2].startswith('at most 4 pairs')
    rows = {line[:22].strip(): line[22:].replace('%', '').split() for line in lines[4:11]}
    assert list(rows) == [*tags_step.PARTS, 'all']
    assert [[int(cell) for cell in row[:2]] for row in rows.values()] == [
        [3, 3], [6, 4], [12, 8], [3, 3], [3, 3], [6, 6], [33, 27]
    ]  # fmt: skip
    parts = np.array([[float(cell) for cell in row[2:]] for name, row in rows.items() if name != 'all'])
    flops_per_pair, ratio, teraflops, took, share, gflops = parts.T
    assert (ratio > 1).all()
    assert (ratio < 1.15).all()  # other operations matter more in a small model
    pairs = np.array([int(row[0]) for row in rows.values()])[:-1]
    np.testing.assert_allclose(teraflops, flops_per_pair * pairs / 1000, rtol=0.01)
    np.testing.assert_allclose(took, [1.5, 1.5 * 6 / 4, 1.5 * 12 / 8, 1.5, 1.5, 1.5], rtol=0.01)
    np.testing.assert_allclose(gflops, teraflops / took * 1000, rtol=0.05)
    np.testing.assert_allclose(share, 100 * took / took.sum(), atol=0.5)
    total, whole = float(rows['all'][2]), float(rows['all'][3])
    np.testing.assert_allclose([total, whole], [teraflops.sum(), took.sum()], rtol=0.01)
    step = re.search(r'256 positives at this speed: (\S+) FLOP, (\S+) s', lines[11]).groups()
    np.testing.assert_allclose([float(number) for number in step], [256e12 * total, 256 * whole], rtol=0.05)


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
        tags_step.main(flags)
    assert message in capsys.readouterr().err


GOLD = """image_id,region_id,caption,scene_graph
1,1,two dogs on the seat of a bus,"( dogs , is , 2 ) , ( dogs , on , seat ) , ( bus , have , seat )"
1,2,a man wears red glasses,"( man , wear , glasses ) , ( glasses , is , dark red )"
1,3,scooters,( scooters )
"""


def test_scene_graphs_print_precision_and_recall(tmp_path, monkeypatch, capsys):
    path = tmp_path / 'gold.csv'
    path.write_text(GOLD)
    monkeypatch.setattr(sys, 'argv', ['scene_graphs', f'--gold={path}'])
    scene_graphs.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-3:] for line in lines[1:6]] == [
        ['1.000', '1.000', '6'],
        ['0.500', '0.500', '2'],
        ['0.500', '0.500', '2'],
        ['1.000', '1.000', '3'],
        ['1.000', '1.000', '3'],
    ]
    assert re.fullmatch(r'3 captions, \d+ captions/s', lines[6])


def test_scene_graphs_refuse_other_files(tmp_path, monkeypatch, capsys):
    path = tmp_path / 'gold.csv'
    path.write_text('a,b\n1,2\n')
    for name, message in ((path, 'is not a CSV file with columns caption and scene_graph'), ('none', 'cannot be read')):
        monkeypatch.setattr(sys, 'argv', ['scene_graphs', f'--gold={name}'])
        with pytest.raises(SystemExit):
            scene_graphs.main()
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
    assert min(measured['triples']) > 0.68


def test_every_experiment_on_flickr8k_is_a_setting():
    for name, experiment in flickr8k.experiments().items():
        config = config_lib.flatten(load_config(f'configs/{experiment.setting},f8k').to_dict())
        assert experiment.flags.keys() <= config.keys(), name
        if experiment.first_stage:
            other = load_config(f'configs/{flickr8k.experiments()[experiment.first_stage].setting},f8k')
            assert load_config(f'configs/{experiment.setting},f8k').stages.first == other.stages.first


def test_experiments_without_a_row_follow_the_runs_they_read(tmp_path, monkeypatch):
    monkeypatch.setattr(flickr8k, 'ROWS', tmp_path / 'rows.jsonl')
    runs = flickr8k.pending(['vsepp_rm_oas', 'mean_sum'], [1], tmp_path)
    assert runs == [('mean_sum_max', 1), ('vsepp_rm_oas', 1), ('mean_sum', 1)]
    command = flickr8k.command('vsepp_rm_oas', 1, tmp_path)
    assert f'--config.members.anchor.init_from={tmp_path}/mean_sum_max_s1' in command
    monkeypatch.setattr(flickr8k, 'read_rows', lambda path: {str(tmp_path / 'mean_sum_s1'): {}})
    flickr8k.ROWS.touch()
    assert flickr8k.pending(['vsepp_rm_oas', 'mean_sum'], [1], tmp_path) == runs[:2]
