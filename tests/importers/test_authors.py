"""Checkpoints of the authors' training scripts; tests/parity compares scores with the authors' networks."""

import chex
import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from jitm import configs
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
from tests.support import authors as theirs
from tests.support.authors import SCAN, SYSTEMS, convert, tensors_of, write_checkpoint, write_preset
from tests.support.torch_pickles import write_legacy, write_zip

WIDE = np.zeros((3, 3), np.float32)


@pytest.fixture
def vocabulary(tmp_path) -> str:
    return theirs.write_vocabulary(tmp_path)


def load(system, path, vocabulary):
    return load_checkpoint(system, path, vocabulary, configs.load(CONFIGS.get(system, system)).model.to_dict())


@pytest.mark.parametrize('preset', SYSTEMS)
def test_options_are_read(tmp_path, vocabulary, capsys, preset):
    system, options, keys = SYSTEMS[preset]
    path = write_preset(tmp_path / 'model_best.pth.tar', preset)
    assert convert(system, path, tmp_path / 'run', '--vocabulary', vocabulary) == 0
    assert 'assumed' not in capsys.readouterr().out
    first = load_run(tmp_path / 'run')
    model = first.config['model']
    assert config_lib.flatten(model).items() >= keys.items()
    write_checkpoint(tmp_path / 'model_best.pth.tar', tensors_of(system, preset), opt=None, args={'model': options})
    again = load_checkpoint(system, path, vocabulary, model)
    keys_read = config_lib.flatten(config_lib.to_json(again.model))
    assert keys_read.items() <= config_lib.flatten(model).items()  # which also has defaults
    assert not again.assumed
    chex.assert_trees_all_equal(again.variables, first.variables)


@pytest.mark.parametrize(
    ('names', 'write'),
    [
        (('weight_g', 'weight_v'), write_legacy),
        (('parametrizations.weight.original0', 'parametrizations.weight.original1'), write_zip),
    ],
)
def test_checkpoints_of_other_ages_and_of_several_devices(tmp_path, vocabulary, names, write):
    """As torch stores weight normalization, and without it."""
    stored = dict(tensors_of('scan', 'scan:i2t,lse,f30k'))
    weight = stored.pop('model.0.fc.weight')
    scaled = {**stored, 'model.0.fc.weight': weight * 1.7 / np.linalg.norm(weight)}
    stored |= {f'model.0.fc.{name}': x for name, x in zip(names, (np.float32([1.7]), weight), strict=True)}
    got = load('scan', write_checkpoint(tmp_path / 'x.pth', stored, SCAN, write, 'module.'), vocabulary)
    want = load('scan', write_checkpoint(tmp_path / 'y.pth', scaled, SCAN), vocabulary)
    chex.assert_trees_all_close(got.variables, want.variables, rtol=1e-6)


def test_what_nothing_states_is_that_of_the_config_and_printed(tmp_path, vocabulary, capsys):
    path = write_checkpoint(tmp_path / 'x.pth', tensors_of('bfan', 'bfan:prob,f30k'))
    config = ('--config', 'bfan:prob,f30k')
    assert convert('bfan', path, tmp_path / 'run', '--vocabulary', vocabulary, *config) == 0
    assert 'assumed      lambda_softmax=20.0, focal=prob  (' in capsys.readouterr().out
    assert load_run(tmp_path / 'run').config['model']['focal'] == 'prob'


@pytest.mark.parametrize('preset', ['dbl:baseline,max,alone,f30k', 'vse_infinity:esa,gru,f30k'])
def test_a_vocabulary_that_lacks_the_mask_gets_it(tmp_path, preset):
    vocabulary = theirs.write_vocabulary(tmp_path, theirs.WORDS[:-1])
    path = write_preset(tmp_path / 'x.pth', preset)
    assert convert(SYSTEMS[preset][0], path, tmp_path / 'run', '--vocabulary', vocabulary) == 0
    run = load_run(tmp_path / 'run')
    assert run.vocabulary.words == (*theirs.WORDS[:-1], '<mask>')
    assert (run.feature_size, run.data_hash, run.config['model']['text']['word_dim']) == (theirs.F, '', theirs.W)


@pytest.mark.parametrize('preset', ['vsepp', 'scan', 'bfan', 'sgraf', 'naaf', 'vsrn'])
def test_one_word_less_is_refused_of_systems_without_a_mask(tmp_path, preset):
    preset = next(name for name in SYSTEMS if name.startswith(f'{preset}:'))
    path = write_preset(tmp_path / 'x.pth', preset)
    count = len(theirs.WORDS)
    with pytest.raises(UserError, match=f'has {count - 1} words, but {path} has {count}: give the vocabulary it came'):
        load(SYSTEMS[preset][0], path, theirs.write_vocabulary(tmp_path, theirs.WORDS[:-1]))


def write_one_dict(path, tensors, options, **others) -> str:
    """Writes a checkpoint whose model is not a list."""
    flat = {}
    for name, tensor in tensors.items():
        for prefix, module in (('model.0.', 'img_enc.'), ('model.1.', 'txt_enc.'), ('model.2.', 'sim_enc.')):
            name = name.replace(prefix, module)
        flat[f'module.{name.removeprefix("model.")}'] = tensor
    return write_checkpoint(path, {}, options, model=flat, **others)


def test_dbl_is_one_dict_with_an_average_beside_it(tmp_path, vocabulary):
    tensors = tensors_of('dbl', 'dbl:baseline,max,alone,f30k')
    path = write_one_dict(tmp_path / 'checkpoint_1.pth.tar', tensors, {}, model_t={'module.x': WIDE})
    want = load('dbl', write_checkpoint(tmp_path / 'x.pth', tensors), vocabulary)
    chex.assert_trees_all_equal(load('dbl', path, vocabulary).variables, want.variables)


IMRAM = {'model_mode': 'full_IMRAM', 'iteration_step': 3, 'lambda_softmax': 9.0, 'no_IMRAM_norm': True}
IMRAM |= {'raw_feature_norm': 'clipped_l2norm'}


@pytest.mark.parametrize(
    ('mode', 'steps', 'direction'), [('full_IMRAM', 3, 'both'), ('text_IMRAM', 2, 't2i'), ('image_IMRAM', 1, 'i2t')]
)
def test_imram_is_one_dict_with_the_memories_of_both_directions(tmp_path, vocabulary, mode, steps, direction):
    options = IMRAM | {'model_mode': mode, 'iteration_step': steps}
    path = write_one_dict(tmp_path / 'x.pth', tensors_of('imram', 'imram:both,f30k'), options)
    model = load('imram', path, vocabulary).model
    assert (model['direction'], model['steps']) == (direction, steps)
    write_one_dict(tmp_path / 'x.pth', tensors_of('imram', 'imram:both,f30k'), options | {'no_IMRAM_norm': False})
    with pytest.raises(UserError, match='was trained with no_IMRAM_norm=False, but IMRAM has True here'):
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
    captioner = {'model.2.decoder.weight': WIDE}  # which only the files of AOQ have
    path = write_checkpoint(tmp_path / 'x.pth', tensors_of('vsrn', 'vsrn:f30k') | captioner)
    assert convert('vsrn', path, tmp_path / 'run', '--vocabulary', vocabulary) == 0
    config = load_run(tmp_path / 'run').config
    assert (list(config['terms']), config['model']['caption']) == (['ranking'], False)


SGR, RVSE = 'sgraf:sgr,f30k', 'vse:rvse,f30k'
REFUSED = [  # --from, preset, other tensors, other options, message
    ('sgraf', SGR, {'model.2.sim_tranloc_w.bias': None}, {}, 'lacks tensors (model.2.sim_tranloc_w.bias)'),
    ('sgraf', SGR, {'model.1.extra.weight': WIDE}, {}, 'has unknown tensors (model.1.extra.weight)'),
    ('sgraf', SGR, {'model.2.sim_eval_w.weight': WIDE[0]}, {}, "has no tensor 'model.2.sim_eval_w.weight' with 2"),
    ('scan', 'scan:i2t,lse,f30k', {}, {'cross_attn': 't2t'}, "'model.direction'"),
    ('scan', 'scan:i2t,lse,f30k', {}, {'lambda_lse': 'six'}, "has the option lambda_lse='six'"),
    ('vsepp', 'vsepp:vsepp,f30k', {}, {'measure': 'l2'}, "has the option measure='l2'"),
    ('naaf', 'naaf:f30k', {}, {'thres_safe': 'x'}, 'lacks tensors (opt.thres_safe)'),
    ('vsrn', 'vsrn:f30k', {'model.0.Rs_GCN_1.W.0.bias': WIDE[0]}, {}, 'of shape [0] where'),
    ('esa', 'vse_infinity:gru,f30k', {}, {}, 'lacks tensors (model.0.linear1.bias, '),
    ('vse_infinity', RVSE, {}, {}, "'model.0.mlp.layers.0.weight' of shape [3, 6] where"),
    ('scan', 'scan:i2t,lse,f30k', {}, {'raw_feature_norm': 'l2norm'}, "with raw_feature_norm='l2norm'"),
    ('scan', 'scan:i2t,lse,f30k', {'model.0.fc.bias': np.full(6, np.nan, np.float32)}, {}, 'that are not finite'),
    ('dbl', 'dbl:baseline,max,alone,f30k', {}, {'no_simnorm': True}, 'with no_simnorm=True, but DBL has False here'),
]


@pytest.mark.parametrize(('system', 'preset', 'tensors', 'options', 'message'), REFUSED)
def test_other_checkpoints_are_one_sentence(tmp_path, vocabulary, capsys, system, preset, tensors, options, message):
    stored, common, _ = SYSTEMS[preset]
    tensors = {name: x for name, x in (tensors_of(stored, preset) | tensors).items() if x is not None}
    path = write_checkpoint(tmp_path / 'x.pth', tensors, common | options)
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
        (('--vocabulary', 'x.txt'), 'x.txt'),
        (('--vocabulary', 'WORDS', '--config', 'scan'), "--config has the model 'scan.SCAN', which is not VSE++"),
    ],
)
def test_other_vocabularies_are_one_sentence(tmp_path, vocabulary, capsys, arguments, message):
    path = write_preset(tmp_path / 'x.pth', 'vsepp:vsepp,f30k')
    words = (vocabulary if word == 'WORDS' else word for word in arguments)
    assert convert('vsepp', path, tmp_path / 'run', *words) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / 'run').exists()
