"""Checkpoints of the authors' training scripts against loops over their own tensors in float64."""

import functools
import json
import pickle

import chex
import jax
import numpy as np
import pytest
import safetensors
from flax import traverse_util
from safetensors.numpy import save_file

from jitm import config as config_lib
from jitm.commands.cli import main
from jitm.configs import vse_infinity, vsepp
from jitm.errors import UserError
from jitm.importers.authors import export_checkpoint, load_checkpoint
from jitm.importers.bert import NAMES
from jitm.importers.tensors import to_published
from jitm.layers.transformer import BERT, SIZES
from jitm.models.make import make_model
from jitm.runs.run import load_run
from jitm.types import Images, Texts
from tests.importers import authors_checkpoints as theirs
from tests.importers import joint_checkpoints as joint
from tests.importers.test_torch_files import Canary
from tests.importers.torch_pickles import Call, Global, write_legacy, write_zip

RNG = np.random.default_rng(0)
REGIONS = RNG.normal(size=(2, theirs.SLOTS, theirs.F)).astype(np.float32)
ONE = REGIONS[:, :1]
SCAN = {
    'cross_attn': 'i2t',
    'agg_func': 'LogSumExp',
    'lambda_softmax': 4.0,
    'lambda_lse': 5,
    'raw_feature_norm': 'clipped_l2norm',
}
SYSTEMS = {  # name -> --from, modules, options, regions, score
    'vsepp': (
        'vsepp',
        theirs.encoders(RNG, bidirectional=False),
        {'measure': 'cosine', 'no_imgnorm': False, 'use_abs': False},
        ONE,
        theirs.score_vsepp,
    ),
    'vse0': (
        'vsepp',
        theirs.encoders(RNG, bidirectional=False),
        {'measure': 'cosine', 'no_imgnorm': True, 'use_abs': False},
        ONE,
        functools.partial(theirs.score_vsepp, normalize=False),
    ),
    'order0': (
        'vsepp',
        theirs.encoders(RNG, bidirectional=False),
        {'measure': 'order', 'no_imgnorm': False, 'use_abs': True},
        ONE,
        functools.partial(theirs.score_vsepp, measure='order', absolute=True),
    ),
    'scan': (
        'scan',
        theirs.encoders(RNG),
        SCAN,
        REGIONS,
        functools.partial(theirs.score_scan, direction='i2t', softmax_temperature=4.0, lse_temperature=5.0),
    ),
    'bfan': (
        'bfan',
        theirs.encoders(RNG),
        {'focal_type': 'prob', 'lambda_softmax': 20.0, 'raw_feature_norm': 'clipped_l2norm'},
        REGIONS,
        functools.partial(theirs.score_bfan, focal='prob'),
    ),
    'sgr': ('sgraf', theirs.sgraf(RNG, 'SGR'), {}, REGIONS, functools.partial(theirs.score_sgraf, reasoning='SGR')),
    'dbl': ('dbl', theirs.dbl(RNG), {'no_simnorm': False}, REGIONS, theirs.score_dbl),
    'naaf': (
        'naaf',
        theirs.naaf(RNG),
        {'thres': 0.1, 'thres_safe': 0.25},
        REGIONS,
        functools.partial(theirs.score_naaf, threshold=0.25),
    ),
    'vsrn_f30k': ('vsrn', theirs.vsrn(RNG), {}, REGIONS, theirs.score_vsrn),
    'vsrn_coco': ('vsrn', theirs.vsrn(RNG, batch_norm=False), {}, REGIONS, theirs.score_vsrn),
    'vse_infinity': (
        'vse_infinity',
        theirs.pooled(RNG, 'gpo', theirs.F),
        {},
        REGIONS,
        functools.partial(theirs.score_pooled, pooling='gpo', on_input=True),
    ),
    'esa': (
        'esa',
        theirs.pooled(RNG, 'esa', theirs.F),
        {},
        REGIONS,
        functools.partial(theirs.score_pooled, pooling='esa', on_input=True),
    ),
    'rvsepp': (
        'rvsepp',
        theirs.pooled(RNG, 'gpo', theirs.D),
        {},
        REGIONS,
        functools.partial(theirs.score_pooled, pooling='gpo', on_input=False),
    ),
    'saf': ('sgraf', theirs.sgraf(RNG, 'SAF'), {}, REGIONS, functools.partial(theirs.score_sgraf, reasoning='SAF')),
}
SGR, WIDE = SYSTEMS['sgr'][1], np.zeros((3, 3), np.float32)


@pytest.fixture
def vocabulary(tmp_path) -> str:
    return theirs.write_vocabulary(tmp_path)


def convert(system, path, out, *arguments) -> int:
    return main(['convert', '--from', system, path, '--out', str(out), *arguments])


def scores_of(workdir, images, captions=theirs.CAPTIONS) -> np.ndarray:
    run = load_run(workdir)
    ids = np.zeros((len(captions), max(map(len, captions))), np.int32)
    for row, caption in zip(ids, captions, strict=True):
        row[: len(caption)] = caption
    lengths = np.array([len(caption) for caption in captions], np.int32)
    if not isinstance(images, Images):
        images = Images(images, np.full(len(images), images.shape[1], np.int32))
    with jax.default_matmul_precision('highest'):
        return np.asarray(run.model.apply(run.variables, images, Texts(ids, lengths)))


@pytest.mark.parametrize('name', SYSTEMS)
def test_scores_are_those_of_the_authors(tmp_path, vocabulary, capsys, name):
    system, modules, options, images, score = SYSTEMS[name]
    path = theirs.write_checkpoint(tmp_path / 'model_best.pth.tar', modules, options)
    assert convert(system, path, tmp_path / 'run', '--vocabulary', vocabulary) == 0
    assert 'assumed' not in capsys.readouterr().out
    want = theirs.score_all(score, modules, images)
    assert np.std(want) > 1e-3
    np.testing.assert_allclose(scores_of(tmp_path / 'run', images), want, atol=1e-5)
    model = load_run(tmp_path / 'run').config['model']
    theirs.write_checkpoint(tmp_path / 'model_best.pth.tar', modules, opt=None, args={'model': options})
    again = load_checkpoint(system, path, vocabulary, model)
    assert (config_lib.to_json(again.model), again.assumed) == (model, {})


def weight_norm(modules, old=True):
    """The images' layer as torch stores it with weight normalization."""
    images, *others = modules
    images = dict(images)
    weight = images.pop('fc.weight')
    length, direction = ('weight_g', 'weight_v') if old else [f'parametrizations.weight.original{n}' for n in range(2)]
    length_and_direction = {f'fc.{length}': np.float32(1.7), f'fc.{direction}': weight}
    scaled = {**images, 'fc.weight': weight * 1.7 / np.linalg.norm(weight)}
    return [{**images, **length_and_direction}, *others], [scaled, *others]


@pytest.mark.parametrize('old', [True, False])
def test_checkpoints_of_other_ages_and_of_several_devices(tmp_path, vocabulary, old):
    _, modules, options, images, score = SYSTEMS['scan']
    stored, scaled = weight_norm(modules, old)
    stored = [{name: np.asarray(x) for name, x in tensors.items()} for tensors in stored]
    path = theirs.write_checkpoint(tmp_path / 'x.pth', stored, options, write_legacy if old else write_zip, 'module.')
    assert convert('scan', path, tmp_path / 'run', '--vocabulary', vocabulary) == 0
    np.testing.assert_allclose(scores_of(tmp_path / 'run', images), theirs.score_all(score, scaled, images), atol=1e-5)


def test_what_nothing_states_is_that_of_the_config_and_printed(tmp_path, vocabulary, capsys):
    _, modules, _, images, _ = SYSTEMS['bfan']
    path = theirs.write_checkpoint(tmp_path / 'x.pth', modules)
    config = ('--config', 'bfan:prob,f30k')
    assert convert('bfan', path, tmp_path / 'run', '--vocabulary', vocabulary, *config) == 0
    assert 'assumed      lambda_softmax=20.0, focal=prob  (' in capsys.readouterr().out
    want = theirs.score_all(functools.partial(theirs.score_bfan, focal='prob'), modules, images)
    np.testing.assert_allclose(scores_of(tmp_path / 'run', images), want, atol=1e-5)


@pytest.mark.parametrize('name', ['dbl', 'esa'])
def test_a_vocabulary_that_lacks_the_mask_gets_it(tmp_path, name):
    system, modules, options, *_ = SYSTEMS[name]
    vocabulary = theirs.write_vocabulary(tmp_path, theirs.WORDS[:-1])
    path = theirs.write_checkpoint(tmp_path / 'x.pth', modules, options)
    assert convert(system, path, tmp_path / 'run', '--vocabulary', vocabulary) == 0
    run = load_run(tmp_path / 'run')
    assert run.vocabulary.words == (*theirs.WORDS[:-1], '<mask>')
    assert (run.feature_size, run.data_hash, run.config['model']['text']['word_dim']) == (theirs.F, '', theirs.W)


@pytest.mark.parametrize('name', ['vsepp', 'scan', 'bfan', 'sgr', 'naaf', 'vsrn_f30k'])
def test_one_word_less_is_refused_of_systems_without_a_mask(tmp_path, capsys, name):
    system, modules, options, *_ = SYSTEMS[name]
    path = theirs.write_checkpoint(tmp_path / 'x.pth', modules, options)
    vocabulary = theirs.write_vocabulary(tmp_path, theirs.WORDS[:-1])
    assert convert(system, path, tmp_path / 'run', '--vocabulary', vocabulary) == 2
    count = len(theirs.WORDS)
    assert f'has {count - 1} words, but {path} has {count}: give the vocabulary it came with' in capsys.readouterr().err
    assert not (tmp_path / 'run').exists()


def write_one_dict(path, modules, names, options, **others) -> str:
    """Writes a checkpoint whose model is not a list."""
    flat = {f'module.{m}{k}': x for m, tensors in zip(names, modules, strict=True) for k, x in tensors.items()}
    return theirs.write_checkpoint(path, [], options, model=flat, **others)


def test_dbl_is_one_dict_with_an_average_beside_it(tmp_path, vocabulary):
    system, modules, options, images, score = SYSTEMS['dbl']
    names, average = ('img_enc.', 'txt_enc.', 'sim_enc.'), {'module.x': WIDE}
    path = write_one_dict(tmp_path / 'checkpoint_1.pth.tar', modules, names, options, model_t=average)
    assert convert(system, path, tmp_path / 'run', '--vocabulary', vocabulary) == 0
    np.testing.assert_allclose(scores_of(tmp_path / 'run', images), theirs.score_all(score, modules, images), atol=1e-5)


IMRAM = {'model_mode': 'full_IMRAM', 'iteration_step': 3, 'lambda_softmax': 9.0, 'no_IMRAM_norm': True}
IMRAM |= {'raw_feature_norm': 'clipped_l2norm'}
MEMORIES = ('img_enc.', 'txt_enc.', '')


@pytest.mark.parametrize(
    ('mode', 'steps', 'directions'),
    [('full_IMRAM', 3, ('t2i', 'i2t')), ('text_IMRAM', 2, ('t2i',)), ('image_IMRAM', 1, ('i2t',))],
)
def test_imram_is_one_dict_with_the_memories_of_both_directions(tmp_path, vocabulary, mode, steps, directions):
    modules = theirs.imram(np.random.default_rng(1))
    path = write_one_dict(tmp_path / 'x.pth', modules, MEMORIES, IMRAM | {'model_mode': mode, 'iteration_step': steps})
    assert convert('imram', path, tmp_path / 'run', '--vocabulary', vocabulary) == 0
    score = functools.partial(theirs.score_imram, directions=directions, steps=steps, softmax_temperature=9.0)
    want = theirs.score_all(score, modules, REGIONS)
    np.testing.assert_allclose(scores_of(tmp_path / 'run', REGIONS), want, atol=1e-5)


@pytest.mark.parametrize(
    ('options', 'missing', 'message'),
    [
        ({'no_IMRAM_norm': False}, None, 'was trained with no_IMRAM_norm=False, but IMRAM has True here'),
        ({'model_mode': 'half'}, None, "has the option model_mode='half'"),
        ({}, 'gate_i2t.bias', 'lacks tensors (model.gate_i2t.bias)'),
    ],
)
def test_other_checkpoints_of_imram_are_one_sentence(tmp_path, vocabulary, capsys, options, missing, message):
    *encoders, memories = theirs.imram(np.random.default_rng(1))
    memories.pop(missing, None)
    path = write_one_dict(tmp_path / 'x.pth', [*encoders, memories], MEMORIES, IMRAM | options)
    assert convert('imram', path, tmp_path / 'run', '--vocabulary', vocabulary) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count('\n') == 1


PIECES = (np.array([2, 5, 6, 3]), np.array([2, 9, 10, 7, 7, 3]), np.array([2, 3]))


def score_with_bert(modules, regions, ids, pooling):
    """VSE-infinity and ESA with the words of a BERT."""
    images, texts = modules
    states = joint.read(texts, joint.embed(texts, ids, np.zeros_like(ids), 'bert'), 'bert')
    image = theirs.encode_pooled(images, regions, pooling, on_input=True)
    return image @ theirs.oracle.l2norm(theirs.pool(texts, joint.dense(texts, 'linear', states), pooling))


def test_texts_are_read_by_bert(tmp_path):
    pieces = tmp_path / 'vocab.txt'
    pieces.write_text('\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *'abcdef']))
    model = BERT(11, SIZES['tiny'], 0.1)
    texts = Texts(np.ones((1, 2), np.int32), np.full(1, 2, np.int32))
    params = jax.tree.map(np.asarray, model.init(jax.random.key(0), texts)['params'])
    bert = {NAMES.name(path): to_published(path, x) for path, x in traverse_util.flatten_dict(params).items()}
    images, texts = SYSTEMS['esa'][1]
    texts = {name: x for name, x in texts.items() if name.startswith('linear1')}
    texts |= theirs.linear(RNG, 'linear', theirs.D, 128) | {f'bert.{name}': x for name, x in bert.items()}
    texts |= theirs.linear(RNG, 'bert.pooler.dense', 4, 4) | {'bert.embeddings.position_ids': np.arange(4)[None]}
    path = theirs.write_checkpoint(tmp_path / 'checkpoint.pth', [images, texts])
    assert convert('esa', path, tmp_path / 'run', '--vocabulary', str(pieces)) == 0
    run = load_run(tmp_path / 'run')
    chex.assert_trees_all_equal(run.variables['params']['text']['bert'], params)
    np.testing.assert_array_equal(run.variables['params']['text']['linear']['kernel'], texts['linear.weight'].T)
    assert run.config['model']['text']['size'] == 'tiny'
    want = theirs.score_all(functools.partial(score_with_bert, pooling='esa'), [images, texts], REGIONS, PIECES)
    assert np.std(want) > 1e-3
    np.testing.assert_allclose(scores_of(tmp_path / 'run', REGIONS, PIECES), want, atol=1e-5)


def test_a_model_with_bert_survives_both_directions(tmp_path):
    pieces = tmp_path / 'vocab.txt'
    pieces.write_text('\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *'abcdef']))
    config = vse_infinity.get_config('vse_infinity,gru,f30k').to_dict()['model']
    bert = {'name': 'text.BERTEncoder', 'size': 'tiny', 'dropout': 0.1, 'output_dropout': 0.0, 'dtype': 'float32'}
    model = config | {'embed_dim': 6, 'text': bert | {'linear_init': 'uniform'}}
    images = Images(REGIONS, np.full(2, theirs.SLOTS, np.int32))
    texts = Texts(np.ones((2, 2), np.int32), np.full(2, 2, np.int32))
    variables = make_model(model, 11).init(jax.random.key(0), images, texts)
    tensors, options = export_checkpoint('vse_infinity', model, variables)
    save_file(tensors, tmp_path / 'model.safetensors', {'opt': json.dumps(options)})
    assert convert('vse_infinity', str(tmp_path), tmp_path / 'run') == 0
    run = load_run(tmp_path / 'run')
    chex.assert_trees_all_equal(run.variables, jax.tree.map(np.asarray, dict(variables)))
    assert run.config['model'] == model
    assert main(['convert', '--to', 'vse_infinity', str(tmp_path / 'run'), '--out', str(tmp_path / 'again')]) == 0
    for name in ('model.safetensors', 'vocab.txt'):
        assert (tmp_path / 'again' / name).read_bytes().strip() == (tmp_path / name).read_bytes().strip()


def test_vsrn_has_no_captioner_and_no_term_for_it(tmp_path, vocabulary):
    captioner = {'decoder.weight': WIDE}  # which only the files of AOQ have
    path = theirs.write_checkpoint(tmp_path / 'x.pth', [*SYSTEMS['vsrn_f30k'][1], captioner])
    assert convert('vsrn', path, tmp_path / 'run', '--vocabulary', vocabulary) == 0
    config = load_run(tmp_path / 'run').config
    assert (list(config['terms']), config['model']['caption']) == (['ranking'], False)


def changed(modules, number, **tensors):
    """The modules with other tensors in one of them, `__` for a dot; None removes one."""
    tensors = {name.replace('__', '.'): x for name, x in tensors.items()}
    merged = {name: x for name, x in (modules[number] | tensors).items() if x is not None}
    return [merged if n == number else module for n, module in enumerate(modules)]


@pytest.mark.parametrize(
    ('system', 'modules', 'options', 'message'),
    [
        ('sgraf', changed(SGR, 2, sim_tranloc_w__bias=None), {}, 'lacks tensors (model.2.sim_tranloc_w.bias)'),
        ('sgraf', changed(SGR, 1, extra__weight=WIDE), {}, 'has unknown tensors (model.1.extra.weight)'),
        ('sgraf', changed(SGR, 1, cap_rnn__weight_hh_l0=None), {}, 'lacks tensors (model.1.cap_rnn.weight_hh_l0)'),
        ('sgraf', changed(SGR, 1, cap_rnn__weight_hh_l0=WIDE), {}, 'of shape [1, 3] where the model has [6, 6]'),
        ('sgraf', changed(SGR, 1, cap_rnn__weight_hh_l0=WIDE[:2]), {}, 'of shape [2, 3] where the model has [6, 6]'),
        ('sgraf', changed(SGR, 2, sim_eval_w__weight=WIDE[0]), {}, "has no tensor 'model.2.sim_eval_w.weight' with 2"),
        ('sgraf', SGR[:2], {}, "has no tensor 'model.2.sim_eval_w.weight' with 2 axes"),
        ('scan', SGR, SCAN, 'lacks tensors (model.1.rnn.bias_hh_l0'),
        ('scan', changed(SYSTEMS['scan'][1], 0, fc__weight=None), SCAN, "has no tensor 'model.0.fc.weight' with"),
        ('scan', SYSTEMS['scan'][1], SCAN | {'cross_attn': 't2t'}, "'model.direction'"),
        ('scan', SYSTEMS['scan'][1], SCAN | {'lambda_lse': 'six'}, "has the option lambda_lse='six'"),
        ('vsepp', SYSTEMS['vsepp'][1], {'measure': 'l2'}, "has the option measure='l2'"),
        ('vsepp', SYSTEMS['vsepp'][1], {'use_abs': [1]}, 'has the option use_abs=[1]'),
        ('naaf', SYSTEMS['naaf'][1], {'thres': 0.1}, 'lacks tensors (opt.thres_safe)'),
        ('naaf', SYSTEMS['naaf'][1], {'thres': 0.1, 'thres_safe': 'x'}, 'lacks tensors (opt.thres_safe)'),
        ('vsrn', changed(SYSTEMS['vsrn_f30k'][1], 0, Rs_GCN_1__W__0__bias=WIDE[0]), {}, 'of shape [0] where'),
        ('vsrn', changed(SYSTEMS['vsrn_f30k'][1], 0, Rs_GCN_2__g__weight=None), {}, 'Rs_GCN_2.'),
        ('esa', SYSTEMS['vse_infinity'][1], {}, 'lacks tensors (model.0.linear1.bias, '),
        ('vse_infinity', SYSTEMS['rvsepp'][1], {}, "'model.0.mlp.layers.0.weight' of shape [3, 6] where"),
        ('scan', SYSTEMS['scan'][1], SCAN | {'raw_feature_norm': 'l2norm'}, "with raw_feature_norm='l2norm'"),
        ('scan', changed(SYSTEMS['scan'][1], 0, fc__bias=np.full(6, np.nan, np.float32)), SCAN, 'that are not finite'),
        ('scan', changed(SYSTEMS['scan'][1], 0, fc__weight=WIDE.astype(np.int8)), SCAN, "'model.0.fc.weight' in int8"),
        ('dbl', SYSTEMS['dbl'][1], {'no_simnorm': True}, 'was trained with no_simnorm=True, but DBL has False here'),
        ('scan', [], SCAN, "has no tensors of SCAN: all names start with 'optimizer"),
    ],
)
def test_other_checkpoints_are_one_sentence(tmp_path, vocabulary, capsys, system, modules, options, message):
    path = theirs.write_checkpoint(tmp_path / 'x.pth', modules, options)
    assert convert(system, path, tmp_path / 'run', '--vocabulary', vocabulary) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count('\n') == 1
    assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ((), '--vocabulary is missing: give the file of the words of'),
        (('--vocabulary', 'missing.json'), 'missing.json cannot be read'),
        (('--vocabulary', 'LONG'), 'has 14 words, but'),
        (('--vocabulary', 'x.txt'), 'x.txt'),
        (
            ('--vocabulary', 'WORDS', '--config', 'scan'),
            "--config has the model 'scan.SCAN', which is not VSE++",
        ),
    ],
)
def test_other_vocabularies_are_one_sentence(tmp_path, capsys, arguments, message):
    path = theirs.write_checkpoint(tmp_path / 'x.pth', SYSTEMS['vsepp'][1], SYSTEMS['vsepp'][2])
    (tmp_path / 'long').mkdir()
    places = {
        'WORDS': theirs.write_vocabulary(tmp_path),
        'LONG': theirs.write_vocabulary(tmp_path / 'long', (*theirs.WORDS, 'i', 'j')),
    }
    assert convert('vsepp', path, tmp_path / 'run', *(places.get(word, word) for word in arguments)) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('write', [write_zip, write_legacy])
def test_nothing_in_a_hostile_checkpoint_runs(tmp_path, vocabulary, capsys, write):
    canary = tmp_path / 'canary'
    code = Call(Global('os', 'system'), (f'touch {canary}',))
    hostile = [
        {'model': [{'fc.weight': code}]},
        {'opt': code},
        {'opt': code, 'model': SYSTEMS['vsepp'][1]},
        {'opt': {'measure': code}, 'model': SYSTEMS['vsepp'][1]},
    ]
    for content in hostile:
        path = write(tmp_path / 'x.pth', content)
        assert convert('vsepp', path, tmp_path / 'run', '--vocabulary', vocabulary) == 2
        assert "an object of 'os.system', which is" in capsys.readouterr().err
    (tmp_path / 'y.pth').write_bytes(pickle.dumps(Canary(canary)))
    assert convert('vsepp', str(tmp_path / 'y.pth'), tmp_path / 'run', '--vocabulary', vocabulary) == 2
    assert not canary.exists()
    assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('name', ['vsepp', 'order0', 'scan', 'sgr', 'saf', 'vse_infinity'])
def test_names_and_bits_survive_both_directions(tmp_path, vocabulary, capsys, name):
    system, modules, options, *_ = SYSTEMS[name]
    path = theirs.write_checkpoint(tmp_path / 'x.pth', modules, options)
    assert convert(system, path, tmp_path / 'run', '--vocabulary', vocabulary) == 0
    assert main(['convert', '--to', system, str(tmp_path / 'run'), '--out', str(tmp_path / 'exported')]) == 0
    with safetensors.safe_open(tmp_path / 'exported' / 'model.safetensors', 'numpy') as file:
        got, stored = {key: file.get_tensor(key) for key in file.keys()}, json.loads(file.metadata()['opt'])  # noqa: SIM118
    want = {f'model.{n}.{key}': x for n, tensors in enumerate(modules) for key, x in tensors.items()}
    want = {key: x for key, x in want.items() if '.mlp.bns.1.' not in key}  # which is never applied
    assert {key: (x.shape, x.dtype.kind) for key, x in got.items()} == {
        key: (x.shape, x.dtype.kind) for key, x in want.items()
    }
    for key, x in got.items():
        lost = key.endswith(('graph_key_w.bias', 'num_batches_tracked'))  # without effect on the scores
        np.testing.assert_array_equal(x, 0 * want[key] if lost else want[key])
    assert stored == {'embed_size': theirs.D, 'word_dim': theirs.W} | options
    capsys.readouterr()
    assert convert(system, str(tmp_path / 'exported'), tmp_path / 'again') == 0
    assert 'assumed' not in capsys.readouterr().out
    first, second = (load_run(tmp_path / run) for run in ('run', 'again'))
    chex.assert_trees_all_equal(first.variables, second.variables)
    assert (first.config['model'], first.vocabulary) == (second.config['model'], second.vocabulary)


def test_what_the_authors_code_has_not_is_not_written(tmp_path, capsys):
    config = vsepp.get_config('vsepp,f8k').to_dict()
    variables = {'params': {'image': {'other': {'kernel': np.zeros((2, 2))}}}}
    with pytest.raises(UserError, match=r"model\.text_pooling = 'mean', but VSE\+\+ as released has 'last'"):
        export_checkpoint('vsepp', config['model'], variables)
    with pytest.raises(UserError, match=r"VSE\+\+ has no 'image/other/kernel', which this run has"):
        export_checkpoint('vsepp', config['model'] | {'text_pooling': 'last'}, variables)
