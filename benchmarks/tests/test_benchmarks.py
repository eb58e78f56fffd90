import dataclasses
import re

import jax
import numpy as np
import pytest

from benchmarks import (
    command,
    loader,
    members,
    memory,
    peer_jitm,
    peers,
    products,
    results,
    scene_graphs,
    start_up,
    tables,
    tags_step,
)
from benchmarks.__main__ import NAMES
from benchmarks.workers import Answer, WorkerError
from experiments import __main__ as experiments
from experiments import tables as written
from jitm import configs
from jitm.data.scene_graphs import parse
from jitm.devices import policy
from jitm.layers.transformer import SIZES
from jitm.models.make import make_model
from jitm.types import Images, Texts
from tests.conftest import CACHE, ROOT
from tests.losses import formulas

DOCS = ROOT / 'docs'
FACTUAL = '../shared/data/factual_sg/dev.csv'

MODELS = ['scan_t2i', 'scan_i2t', 'bfan_equal', 'bfan_prob', 'sgr', 'saf', 'naaf', 'dbl']


@pytest.fixture
def loops():
    from benchmarks import torch_loops

    return torch_loops


@pytest.mark.needs('torch')
@pytest.mark.parametrize('name', MODELS)
def test_torch_loops_ignore_padding(loops, name):
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


@pytest.mark.needs('torch')
def test_torch_loops_are_timed(loops, tmp_path, measured):
    captions = tmp_path / 'caps.txt'
    captions.write_text('a dog\na red house by the sea\n' * 6)
    sizes = ['--images=5', '--texts=12', '--dim=8', '--regions=4', '--seconds=0.01']
    [row] = measured('torch_loops', '--model=saf', f'--captions={captions}', *sizes)
    assert set(row) == {'model', 'threads', 'pairs/s', 'MiB', 'GFLOP/s of a product'}
    assert row['model'] == 'saf'
    assert min(row['pairs/s'], row['MiB'], row['GFLOP/s of a product']) > 0
    assert loops.caption_lengths(captions, 2).tolist() == [4, 8]


PEERS = ('--batch_size=4', '--images=8', '--features=6', '--embed_dim=8', '--cores=1')


@pytest.mark.needs('torch')
@pytest.mark.parametrize('name', ['vsepp', 'dbl'])
def test_peers_compute_the_same(tmp_path, precomp_folder, loops, name):
    from benchmarks import peer_torch

    threads = loops.torch.get_num_threads()
    args = command.make_parser('benchmarks', 'peers').parse_args([*PEERS, f'--data_root={precomp_folder}'])
    system = peers.SYSTEMS[name]
    config = peers.without_dropout(peers.make_config(system, args, precomp_folder))
    for steps, bound in ((3, 1e-5), (0, 0)):
        works = peers.write_inputs(tmp_path, system, config, steps)
        ours, theirs = (list(map(side.make(tmp_path, 1), works)) for side in (peer_jitm, peer_torch))
        numbers = [answer.number for answer in ours]
        assert numbers == pytest.approx([answer.number for answer in theirs], rel=bound)
        assert len({*numbers}) == max(1, steps)
        assert ours[0].compiled
        assert not any(answer.compiled for answer in theirs)
    loops.torch.set_num_threads(threads)


@pytest.mark.needs('torch')
@pytest.mark.slow
@pytest.mark.parametrize(('mode', 'work'), [('compile', '--checked=2'), ('eager', '--evaluate')])
def test_peers_are_timed_in_processes(precomp_folder, monkeypatch, measured, loops, mode, work):
    monkeypatch.setenv('JAX_COMPILATION_CACHE_DIR', CACHE)
    flags = ('--systems', 'vsepp', '--rounds=2', f'--torch={mode}', f'--data_root={precomp_folder}', *PEERS)
    [row] = measured('peers', work, *flags)
    assert (row.pop('system'), row.pop('PyTorch mode')) == ('vsepp', mode)
    if mode == 'eager':
        assert row.pop('difference of rsum') == 0
    else:
        assert row.pop('difference of losses') < 1e-5
        assert row['batch'] == 4
    assert min(row.values()) > 0


SECONDS = {'eager': 2.0, 'compile': 1.0}


class FakeWorker:
    """Answers at once with the times of its mode; the first two answers compile."""

    def __init__(self, module, folder, cores, mode):
        self.mode = mode
        self.answers = 0

    def __call__(self, work):
        self.answers += 1
        if SECONDS[self.mode] is None:
            raise WorkerError('peer_torch', 'BackendCompilerFailed')
        return Answer(SECONDS[self.mode] + work, 0.0, self.answers <= 2 and self.mode == 'compile')

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.mark.parametrize(
    ('seconds', 'mode'), [(1.0, 'compile'), (3.0, 'eager'), (None, 'eager (compile: BackendCompilerFailed)')]
)
def test_pytorch_runs_in_its_faster_mode(monkeypatch, seconds, mode):
    monkeypatch.setattr(peers, 'Worker', FakeWorker)
    monkeypatch.setitem(SECONDS, 'compile', seconds)
    assert peers.faster_mode(ROOT, 1, [0]) == mode


def test_rounds_that_compile_do_not_count():
    def turn(work, seconds, *, compiled=False):
        return peers.Round(work, Answer(seconds, 0.0, compiled, 5.0), Answer(2 * seconds, 0.0, False, 7.0), 10.0)

    rounds = [turn(0, 9.0), turn(1, 1.0), turn(0, 9.0, compiled=True), turn(1, 3.0), turn(0, 2.0)]
    row = peers.summary(peers.Measured(rounds, {0: 2e9, 1: 3e9}, 'eager'))
    assert (row['jitm s'], row['PyTorch s'], row['ratio'], row['PyTorch MiB']) == (2, 4, 2, 7)
    assert row['GFLOP'] == pytest.approx(8 / 3)
    assert row['jitm % of the rate'] == pytest.approx(10)  # the median of 3 / 1, 3 / 3 and 2 / 2 GFLOP/s
    assert row['PyTorch % of the rate'] == pytest.approx(5)


def test_products_are_those_that_xla_counts():
    """CLIP, whose blocks are not in a loop on a CPU; XLA also counts elementwise operations."""
    tower = {'hidden_dim': 128, 'num_layers': 2, 'num_heads': 2, 'mlp_dim': 512}
    config = configs.load('clip:b32,softmax,f30k').model.to_dict()
    sides = {name: config[name] | tower for name in ('image', 'text')}
    config |= {'embed_dim': 64, 'image': sides['image'] | {'image_size': 128}, 'text': sides['text']}
    model = make_model(config, vocab_size=16)
    lengths = np.full(4, 12, np.int32)
    inputs = Images(pixels=np.ones((4, 128, 128, 3), np.uint8)), Texts(np.ones((4, 12), np.int32), lengths)

    def loss(params):
        return jax.nn.logsumexp(model.apply({'params': params}, *inputs, train=True))

    params = jax.eval_shape(model.init, jax.random.key(0), *inputs)['params']
    counted = jax.jit(jax.grad(loss)).lower(params).cost_analysis()['flops']
    needed = products.training(products.clip(config, products.Inputs(np.ones(4, int), lengths, 0)))
    assert 1 <= counted / needed < 1.05


@pytest.mark.needs('torch')
@pytest.mark.parametrize('name', ['vsepp', 'vsrn', 'saf', 'dbl'])
def test_products_are_those_of_the_peer(loops, name):
    from torch.utils.flop_counter import FlopCounterMode

    from benchmarks import torch_networks

    torch = loops.torch
    system = peers.SYSTEMS[name]
    config = configs.load(system.preset).to_dict()
    sizes = {'embed_dim': 32, 'word_dim': 8, 'alignment_dim': 16}
    model = config['model'] | {key: size for key, size in sizes.items() if key in config['model']}
    if 'text' in model:
        model['text'] |= {'word_dim': 8}
    network = getattr(torch_networks, system.network.partition('.')[2])(model, 5, 24)
    lengths = torch.tensor([7, 3, 5])
    regions = torch.full((3,), 36)
    batch = {'regions': torch.rand(3, 36, 24), 'counts': regions, 'ids': torch.ones(3, 7, dtype=int)}
    batch['lengths'] = lengths
    with FlopCounterMode(display=False) as counter:
        network.rank(batch | {'image_index': torch.arange(3)}, 'negative')
    needed = products.forward(system.products(model, products.Inputs(regions.numpy(), lengths.numpy(), 24)))
    assert counter.get_total_flops() == pytest.approx(needed, rel=0.02)  # SAF has products with a column


def test_products_of_published_steps():
    """GFLOP of 128 images and captions, or 32, of 36 regions and 13.7 tokens, by hand."""
    expected = {'vsepp': 81, 'scan': 141, 'bfan': 141, 'sgr': 461, 'saf': 642, 'naaf': 141, 'vsrn': 2780}
    for name, gigaflops in (expected | {'vse_infinity': 158, 'vse_bert': 243, 'clip': 930}).items():
        system = peers.SYSTEMS[name]
        config = configs.load(system.preset).to_dict()
        count = system.batch_size
        inputs = products.Inputs(np.full(count, 36), np.full(count, 13.7), 2048)
        needed = products.training(system.products(config['model'], inputs)) / 1e9
        assert needed == pytest.approx(gigaflops, rel=0.011), name


def test_uniter_scores_a_pair_of_its_batch_once():
    """3 queries and 2 extra pairs: 3 x 2 candidates of the batch, 3 x 2 for images and for captions, 12 ranked."""
    model = {'size': 'L-1_H-8_A-1'}
    inputs = products.Inputs(np.full(5, 6), np.full(5, 4), 0, extra=2)
    pair = 2 * 10 * (4 * 8 * 8 + 2 * 8 * 32) + 4 * 10 * 10 * 8 + 2 * 8 * 8
    listed = products.uniter(model, inputs, num_hard=1)
    assert products.forward(listed) == (18 + 12) * pair
    assert products.training(listed) == (18 + 3 * 12) * pair


@pytest.mark.needs('torch')
@pytest.mark.parametrize('name', ['max_of_hinges', 'mean_of_hinges', 'selective_hard_negative', 'relative_max'])
def test_losses_of_the_peer_are_those_of_the_formulas(loops, name):
    from benchmarks.peer_torch import LOSSES
    from benchmarks.torch_networks import Ranking

    torch = loops.torch
    torch.manual_seed(0)
    rows = [torch.rand(6, 6) for _ in range(2)]
    positives = torch.eye(6, dtype=torch.bool)
    negatives = ~positives & (torch.rand(6, 6) > 0.2)
    ranking, anchor = (Ranking(scores, positives, negatives) for scores in rows)
    keywords = {'margin': 0.2} | ({'epsilon': 0.3} if name == 'selective_hard_negative' else {})
    anchored = {'anchor_scores': rows[1]} if name == 'relative_max' else {}
    for n, got in enumerate(LOSSES[name](ranking, *[anchor] * len(anchored), **keywords)):
        listed = [
            formulas.Row(s[n][positives[n]].tolist(), s[n][negatives[n]].tolist())
            for s in (rows[0], *anchored.values())
        ]
        expected = getattr(formulas, name)(listed[0], **dict(zip(anchored, listed[1:], strict=True)), **keywords)
        assert got.item() == pytest.approx(expected, abs=1e-6)


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
        command.main('benchmarks', ['tags_step', *flags])
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_train_step_compares_rules_of_padding(precomp_folder, measured):
    sizes = ['--embed_dim=8', '--batch_size=4', '--steps=1', '--length_multiples', '80', '8']
    first, other, profiled = measured('train_step', f'--data_root={precomp_folder}', *sizes)
    assert (first['ratio'], first['compilations'], first['padded to multiples of']) == (1, 1, 80)
    assert first['mean padded length'] > other['mean padded length']
    assert other['ratio'] == pytest.approx(other['steps/s'] / first['steps/s'])
    assert profiled['padded to multiples of'] == '4, by a profile'


def test_the_loader_measures_each_kind_of_work(measured):
    rows = measured('loader', '--images=3', '--image_size=32', '--short_side=40', '--cores', '1')
    assert [row['work'] for row in rows] == ['check at the start', 'centre crops', 'random crops', 'ten crops']
    assert min(row['images/s'] for row in rows) > 0


@pytest.mark.slow
@pytest.mark.parametrize('sparse', [[], ['--sparse']])
def test_the_loader_compares_reading_features_with_training(monkeypatch, measured, sparse):
    monkeypatch.setattr(loader, 'with_files', lambda *args: with_small_model(memory.with_files(*args)))
    sizes = ['--features=9', '--batch_size=4', '--steps=2', '--setting', 'vsepp:vsepp,f30k']
    (row,) = measured('loader', *sizes, *sparse)
    assert (row['images'], row['batch']) == (9, 4)
    assert row['ratio'] == pytest.approx(row['batches/s'] / row['steps/s'])
    assert row['MB/s'] == pytest.approx(row['batches/s'] * 4 * 36 * 2048 * 4 / 1e6)
    assert 0 <= row['% waiting for data'] <= 100


def with_small_model(config):
    return config | {'model': config['model'] | {'embed_dim': 8}}


def test_features_that_are_dropped_from_the_cache_are_kept_on_disk(tmp_path):
    loader.write_features(tmp_path, 3, sparse=False)
    array = np.load(tmp_path / 'train_ims.npy', mmap_mode='r')
    before = array.copy()
    assert len({row.tobytes() for row in before}) == 3
    loader.drop_from_cache(array)
    np.testing.assert_array_equal(array, before)
    loader.write_features(tmp_path, 3, sparse=True)
    assert (tmp_path / 'train_ims.npy').stat().st_blocks * 512 < array.nbytes / 2
    assert len((tmp_path / 'train_caps.txt').read_text().split('\n')) == 15


@pytest.mark.slow
def test_memory_of_a_step_is_that_of_state_batch_and_temporaries(monkeypatch, measured):
    monkeypatch.setitem(policy.TILE_FLOATS, 'cpu', policy.TILE_FLOATS['cpu'])
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
def test_chunks_take_less_memory(monkeypatch, measured):
    monkeypatch.setitem(SIZES, 'base', dataclasses.replace(SIZES['base'], layers=2))
    flags = ('--settings', 'vsepp:vsepp,f30k', '--bert', '--batch_sizes', '128', '--chunk', '16', '--steps', '1')
    (row,) = measured('gradient_cache', '--target', 'cpu', *flags)
    assert (row['setting'], row['batch']) == ('vsepp:vsepp,f30k', 128)
    assert 0 < row['GB, in chunks of 16'] < row['GB, at once']
    assert row['time'] == row['CPU s/step, in chunks of 16'] / row['CPU s/step, at once'] > 0


@pytest.mark.slow
def test_what_is_kept_takes_memory_and_saves_products(measured):
    flags = ('--settings', 'sgraf:saf,f30k', '--batch_size', '16', '--budgets', '0', '4096')
    none, kept = measured('activations', '--target', 'cpu', *flags)
    assert (none['batch'], none['activations_mb'], kept['activations_mb']) == (16, 0, 4096)
    assert 0 < none['peak GB'] < kept['peak GB']
    assert none['TFLOP'] > kept['TFLOP'] > 0.6 * none['TFLOP']


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
            command.main('benchmarks', ['scene_graphs', f'--gold={name}'])
        assert message in capsys.readouterr().err


def test_base_forms():
    parse('a dog')  # loads the lexicon, which warns of unclosed files
    bases = {'sitting': 'sit', 'riding': 'ride', 'tied': 'tie', 'attached': 'attach', 'has': 'have', 'carries': 'carry'}
    bases |= {'covered': 'cover', 'cross': 'cross', 'growing': 'grow', 'stand': 'stand', 'watches': 'watch', 'on': 'on'}
    assert {word: scene_graphs.base_of_verb(word) for word in bases} == bases
    nouns = {'tennis racquets': 'racquet', 'bus': 'bus', 'buses': 'bus', 'women': 'woman', 'glass': 'glass'}
    assert {phrase: scene_graphs.base_of_noun(phrase) for phrase in nouns} == nouns


@pytest.mark.needs(FACTUAL)
def test_scene_graphs_accuracy():
    captions, gold = scene_graphs.read_file(str(ROOT / FACTUAL))
    parsed = [scene_graphs.read_parsed(caption, parse(caption)) for caption in captions]
    measured = {kind: row[:2] for kind, row in scene_graphs.measure(gold, parsed).items()}
    assert len(captions) == 1000
    assert min(measured['head_nouns']) > 0.95
    assert min(measured['attributes']) > 0.77
    assert min(measured['relations']) > 0.74


@pytest.mark.parametrize(('package', 'names'), [('benchmarks', NAMES), ('experiments', experiments.NAMES)])
def test_the_entry_lists_and_finds_all_modules(package, names, capsys):
    command.main(package, [])
    out = capsys.readouterr().out
    assert all(f'\n{name} ' in out for name in names)
    with pytest.raises(SystemExit, match=rf"{package[:-1]} 'speed' does not exist; choose one of: {names[0]}, "):
        command.main(package, ['speed'])


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
    assert results.rewritten(page, {'mining': [{'s': 2.0}]}) == page.replace('1.00', '2.00')
    with pytest.raises(results.UserError, match="no result of 'mining'"):
        results.rewritten(page, {})


def test_shares_are_columns_of_the_newest_comparison_of_each_system():
    old = dict.fromkeys(tables.SHARES, 1.0) | {'system': 'saf', 'batch': 4}
    other, new = old | {'system': 'scan'}, old | {'ratio': 2.0}
    timings = {'peers': [old, other], 'peers --systems saf': [new], 'peers --evaluate': [{'system': 'scan'}]}
    want = {column: old[column] for column in tables.SHARES}
    assert tables.shares(timings) == [want | {'ratio': 2.0}, want | {'system': 'scan'}]


@pytest.mark.slow
def test_tables_of_the_docs_are_those_of_the_results():
    texts = dict([*tables.pages(), *written.pages()])
    assert texts == {page: page.read_text() for page in texts}
    marks = {match[2] for text in texts.values() for match in results.MARK.finditer(text)}
    assert marks <= tables.tables().keys() | written.measured().keys()


def test_commands_of_the_docs_are_accepted():
    pages = ''.join(path.read_text() for path in sorted(DOCS.rglob('*.md')))
    lines = re.findall(r'^python -m (benchmarks|experiments) (\w+)(.*)$', pages, flags=re.MULTILINE)
    assert len(lines) > 10
    for package, name, arguments in lines:
        command.make_parser(package, name).parse_args(arguments.partition('  #')[0].split())
