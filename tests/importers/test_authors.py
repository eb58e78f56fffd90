"""Checkpoints of the authors' training scripts; tests/parity compares scores with the authors' networks."""

import pickle

import chex
import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from jitm import configs
from jitm.commands.cli import main
from jitm.commands.convert import CONFIGS
from jitm.config import build as config_lib
from jitm.configs import vse_infinity
from jitm.errors import UserError
from jitm.importers import systems
from jitm.importers.authors import load_checkpoint
from jitm.importers.tensors import export
from jitm.models.make import make_model
from jitm.runs.run import load_run
from jitm.types import Images, Texts
from tests.importers import authors_checkpoints as theirs
from tests.importers.test_torch_files import Canary
from tests.importers.torch_pickles import Call, Global, write_legacy, write_zip

RNG = np.random.default_rng(0)
SCAN = {
    'cross_attn': 'i2t',
    'agg_func': 'LogSumExp',
    'lambda_softmax': 4.0,
    'lambda_lse': 5,
    'raw_feature_norm': 'clipped_l2norm',
}
BFAN = {'focal_type': 'prob', 'lambda_softmax': 20.0, 'raw_feature_norm': 'clipped_l2norm'}
VSE = {'measure': 'cosine', 'no_imgnorm': False, 'use_abs': False}
ORDER = {'measure': 'order', 'no_imgnorm': False, 'use_abs': True}
ONE_DIRECTION = theirs.encoders(RNG, bidirectional=False)
SYSTEMS = {  # name -> --from, modules, options, keys of the model
    'vsepp': ('vsepp', ONE_DIRECTION, VSE, {'name': 'vse.VSE', 'normalize_images': True, 'text.bidirectional': False}),
    'vse0': ('vsepp', ONE_DIRECTION, VSE | {'no_imgnorm': True}, {'normalize_images': False, 'absolute': False}),
    'order0': ('vsepp', ONE_DIRECTION, ORDER, {'name': 'vse.OrderEmbedding', 'absolute': True}),
    'scan': (
        'scan',
        theirs.encoders(RNG),
        SCAN,
        {'direction': 'i2t', 'aggregation': 'LogSumExp', 'lambda_softmax': 4.0, 'lambda_lse': 5.0},
    ),
    'bfan': ('bfan', theirs.encoders(RNG), BFAN, {'focal': 'prob', 'lambda_softmax': 20.0, 'text.bidirectional': True}),
    'sgr': (
        'sgraf',
        theirs.sgraf(RNG, 'SGR'),
        {},
        {'reasoning.steps': 3, 'alignment_dim': theirs.M, 'image_whole.slots': theirs.SLOTS},
    ),
    'saf': ('sgraf', theirs.sgraf(RNG, 'SAF'), {}, {'reasoning.name': 'alignment.AttentionFiltration'}),
    'dbl': ('dbl', theirs.dbl(RNG), {'no_simnorm': False}, {'alignment_dim': theirs.M, 'activation': 'tanh'}),
    'naaf': ('naaf', theirs.naaf(RNG), {'thres': 0.1, 'thres_safe': 0.25}, {'embed_dim': theirs.D}),
    'vsrn_f30k': (
        'vsrn',
        theirs.vsrn(RNG),
        {},
        {'graph_layers': 2, 'batch_norm': True, 'normalize_before_graph': False},
    ),
    'vsrn_coco': (
        'vsrn',
        theirs.vsrn(RNG, batch_norm=False),
        {},
        {'batch_norm': False, 'normalize_before_graph': True},
    ),
    'vse_infinity': (
        'vse_infinity',
        theirs.pooled(RNG, 'gpo', theirs.F),
        {},
        {'image_pooling': 'gpo', 'image.mlp': 'residual_on_input'},
    ),
    'esa': (
        'esa',
        theirs.pooled(RNG, 'esa', theirs.F),
        {},
        {'text_pooling': 'esa', 'image.mlp': 'residual_on_input', 'text.dropout': 0.1},
    ),
    'rvsepp': ('rvsepp', theirs.pooled(RNG, 'gpo', theirs.D), {}, {'image_pooling': 'gpo', 'image.mlp': 'residual'}),
}
SGR, WIDE = SYSTEMS['sgr'][1], np.zeros((3, 3), np.float32)


@pytest.fixture
def vocabulary(tmp_path) -> str:
    return theirs.write_vocabulary(tmp_path)


def convert(system, path, out, *arguments) -> int:
    return main(['convert', '--from', system, path, '--out', str(out), *arguments])


def load(system, path, vocabulary):
    return load_checkpoint(system, path, vocabulary, configs.load(CONFIGS.get(system, system)).model.to_dict())


@pytest.mark.parametrize('name', SYSTEMS)
def test_options_and_bits_are_read(tmp_path, vocabulary, capsys, name):
    system, modules, options, keys = SYSTEMS[name]
    path = theirs.write_checkpoint(tmp_path / 'model_best.pth.tar', modules, options)
    assert convert(system, path, tmp_path / 'run', '--vocabulary', vocabulary) == 0
    assert 'assumed' not in capsys.readouterr().out
    first = load_run(tmp_path / 'run')
    model = first.config['model']
    assert config_lib.flatten(model).items() >= keys.items()
    theirs.write_checkpoint(tmp_path / 'model_best.pth.tar', modules, opt=None, args={'model': options})
    again = load_checkpoint(system, path, vocabulary, model)
    stated = config_lib.flatten(config_lib.to_json(again.model))
    assert stated.items() <= config_lib.flatten(model).items()  # which also has defaults
    assert not again.assumed
    chex.assert_trees_all_equal(again.variables, first.variables)
    want = {f'model.{n}.{key}': x for n, tensors in enumerate(modules) for key, x in tensors.items()}
    names = systems.SYSTEMS[system].names
    for name, x in export(first.variables, names).items():
        if name in want and system != 'vsrn':  # whose tensors are prepared
            np.testing.assert_array_equal(x, want[name], err_msg=name)


def weight_norm(modules, names):
    """The images' layer as torch stores it with weight normalization, and without."""
    images, *others = modules
    weight = images['fc.weight']
    parts = {f'fc.{name}': x for name, x in zip(names, (np.float32([1.7]), weight), strict=True)}
    scaled = {**images, 'fc.weight': weight * 1.7 / np.linalg.norm(weight)}
    return [{'fc.bias': images['fc.bias'], **parts}, *others], [scaled, *others]


@pytest.mark.parametrize(
    ('names', 'write'),
    [
        (('weight_g', 'weight_v'), write_legacy),
        (('parametrizations.weight.original0', 'parametrizations.weight.original1'), write_zip),
    ],
)
def test_checkpoints_of_other_ages_and_of_several_devices(tmp_path, vocabulary, names, write):
    stored, scaled = weight_norm(SYSTEMS['scan'][1], names)
    got = load('scan', theirs.write_checkpoint(tmp_path / 'x.pth', stored, SCAN, write, 'module.'), vocabulary)
    want = load('scan', theirs.write_checkpoint(tmp_path / 'y.pth', scaled, SCAN), vocabulary)
    chex.assert_trees_all_close(got.variables, want.variables, rtol=1e-6)


def test_what_nothing_states_is_that_of_the_config_and_printed(tmp_path, vocabulary, capsys):
    path = theirs.write_checkpoint(tmp_path / 'x.pth', SYSTEMS['bfan'][1])
    config = ('--config', 'bfan:prob,f30k')
    assert convert('bfan', path, tmp_path / 'run', '--vocabulary', vocabulary, *config) == 0
    assert 'assumed      lambda_softmax=20.0, focal=prob  (' in capsys.readouterr().out
    assert load_run(tmp_path / 'run').config['model']['focal'] == 'prob'


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
def test_one_word_less_is_refused_of_systems_without_a_mask(tmp_path, name):
    system, modules, options, *_ = SYSTEMS[name]
    path = theirs.write_checkpoint(tmp_path / 'x.pth', modules, options)
    count = len(theirs.WORDS)
    with pytest.raises(UserError, match=f'has {count - 1} words, but {path} has {count}: give the vocabulary it came'):
        load(system, path, theirs.write_vocabulary(tmp_path, theirs.WORDS[:-1]))


def write_one_dict(path, modules, names, options, **others) -> str:
    """Writes a checkpoint whose model is not a list."""
    flat = {f'module.{m}{k}': x for m, tensors in zip(names, modules, strict=True) for k, x in tensors.items()}
    return theirs.write_checkpoint(path, [], options, model=flat, **others)


def test_dbl_is_one_dict_with_an_average_beside_it(tmp_path, vocabulary):
    system, modules, options, _ = SYSTEMS['dbl']
    names, average = ('img_enc.', 'txt_enc.', 'sim_enc.'), {'module.x': WIDE}
    path = write_one_dict(tmp_path / 'checkpoint_1.pth.tar', modules, names, options, model_t=average)
    want = load(system, theirs.write_checkpoint(tmp_path / 'x.pth', modules, options), vocabulary)
    chex.assert_trees_all_equal(load(system, path, vocabulary).variables, want.variables)


IMRAM = {'model_mode': 'full_IMRAM', 'iteration_step': 3, 'lambda_softmax': 9.0, 'no_IMRAM_norm': True}
IMRAM |= {'raw_feature_norm': 'clipped_l2norm'}
MEMORIES = ('img_enc.', 'txt_enc.', '')


@pytest.mark.parametrize(
    ('options', 'missing', 'message'),
    [
        ({}, None, ('both', 3)),
        ({'model_mode': 'text_IMRAM', 'iteration_step': 2}, None, ('t2i', 2)),
        ({'model_mode': 'image_IMRAM', 'iteration_step': 1}, None, ('i2t', 1)),
        ({'no_IMRAM_norm': False}, None, 'was trained with no_IMRAM_norm=False, but IMRAM has True here'),
        ({'model_mode': 'half'}, None, "has the option model_mode='half'"),
        ({}, 'gate_i2t.bias', r'lacks tensors \(model.gate_i2t.bias\)'),
    ],
)
def test_imram_is_one_dict_with_the_memories_of_both_directions(tmp_path, vocabulary, options, missing, message):
    *encoders, memories = theirs.imram(np.random.default_rng(1))
    memories.pop(missing, None)
    path = write_one_dict(tmp_path / 'x.pth', [*encoders, memories], MEMORIES, IMRAM | options)
    if isinstance(message, tuple):
        model = load('imram', path, vocabulary).model
        assert (model['direction'], model['steps']) == message
    else:
        with pytest.raises(UserError, match=message):
            load('imram', path, vocabulary)


@pytest.mark.slow
def test_a_model_with_bert_is_read(tmp_path):
    pieces = tmp_path / 'vocab.txt'
    pieces.write_text('\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *'abcdef']))
    config = vse_infinity.get_config('vse_infinity,gru,f30k').to_dict()['model']
    bert = {'name': 'text.BERTEncoder', 'size': 'tiny', 'dropout': 0.1, 'output_dropout': 0.0, 'dtype': 'float32'}
    model = config | {'embed_dim': 6, 'text': bert | {'linear_init': 'uniform'}}
    images = Images(np.zeros((2, theirs.SLOTS, theirs.F), np.float32), np.full(2, theirs.SLOTS, np.int32))
    texts = Texts(np.ones((2, 2), np.int32), np.full(2, 2, np.int32))
    variables = make_model(model, 11).init(jax.random.key(0), images, texts)
    tensors = export(variables, systems.SYSTEMS['vse_infinity'].names)
    unread = {'pooler.dense.bias': WIDE, 'embeddings.position_ids': np.arange(4)[None]}
    tensors |= {f'model.1.bert.{name}': x for name, x in unread.items()}
    save_file(tensors, tmp_path / 'model.safetensors')
    published = load_checkpoint('vse_infinity', str(tmp_path), None, model)
    chex.assert_trees_all_equal(published.variables, jax.tree.map(np.asarray, dict(variables)))
    assert published.model == model


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
        ('sgraf', changed(SGR, 1, cap_rnn__weight_hh_l0=WIDE[:2]), {}, 'of shape [2, 3] where the model has [6, 6]'),
        ('sgraf', changed(SGR, 2, sim_eval_w__weight=WIDE[0]), {}, "has no tensor 'model.2.sim_eval_w.weight' with 2"),
        ('scan', SYSTEMS['scan'][1], SCAN | {'cross_attn': 't2t'}, "'model.direction'"),
        ('scan', SYSTEMS['scan'][1], SCAN | {'lambda_lse': 'six'}, "has the option lambda_lse='six'"),
        ('vsepp', SYSTEMS['vsepp'][1], {'measure': 'l2'}, "has the option measure='l2'"),
        ('naaf', SYSTEMS['naaf'][1], {'thres': 0.1, 'thres_safe': 'x'}, 'lacks tensors (opt.thres_safe)'),
        ('vsrn', changed(SYSTEMS['vsrn_f30k'][1], 0, Rs_GCN_1__W__0__bias=WIDE[0]), {}, 'of shape [0] where'),
        ('esa', SYSTEMS['vse_infinity'][1], {}, 'lacks tensors (model.0.linear1.bias, '),
        ('vse_infinity', SYSTEMS['rvsepp'][1], {}, "'model.0.mlp.layers.0.weight' of shape [3, 6] where"),
        ('scan', SYSTEMS['scan'][1], SCAN | {'raw_feature_norm': 'l2norm'}, "with raw_feature_norm='l2norm'"),
        ('scan', changed(SYSTEMS['scan'][1], 0, fc__bias=np.full(6, np.nan, np.float32)), SCAN, 'that are not finite'),
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
