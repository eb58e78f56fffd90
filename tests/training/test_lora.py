"""A run whose BERT has adapters: what trains, what its checkpoints hold, and what others read."""

import jax
import numpy as np
import pytest
from flax import traverse_util

from jitm.data import scenes
from jitm.errors import UserError
from jitm.layers.lora import LEAVES, merge
from jitm.runs.checkpoint import Checkpoints
from jitm.runs.run import load_run
from jitm.training import loop
from jitm.training.setup import set_up
from tests.conftest import make_tiny_config

TEXT = {'name': 'text.BERTEncoder', 'size': 'L-2_H-8_A-2', 'dropout': 0.1, 'output_dropout': 0.0, 'dtype': 'float32'}


@pytest.fixture(scope='module')
def config(tmp_path_factory):
    """Four steps of two epochs; a rate that falls by layer."""
    split = scenes.load('train', train_images=16)
    path = tmp_path_factory.mktemp('words') / 'vocab.txt'
    words = sorted({word.strip('.,') for caption in split.captions for word in caption.lower().split()})
    path.write_text('\n'.join(('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *words)) + '\n')
    config = make_tiny_config() | {'epochs': 2, 'batch_size': 40, 'length_multiple': 64}
    config['vocabulary']['path'] = str(path)
    config['model'] |= {'text_pooling': 'mean', 'text': TEXT}
    config['terms'].pop('later')
    config['members']['target']['lora'] = {'rank': 2, 'alpha': 4.0, 'modules': ('query', 'out', 'mlp_in')}
    config['optimizer'] |= {'layer_decay': 0.5, 'weight_decay': 0.1}
    config['evaluation']['every_steps'] = None
    config['run']['checkpoint_every'] = 1
    return config


@pytest.fixture(scope='module')
def trained(config, tmp_path_factory):
    workdir = tmp_path_factory.mktemp('lora') / 'run'
    loop.train_and_evaluate(config, workdir)
    return workdir


def state_at(workdir, step):
    with Checkpoints(workdir) as checkpoints:
        return checkpoints.read(step)[0]['members']['target']


@pytest.mark.slow
def test_only_adapters_and_new_layers_change_and_have_moments(trained, config):
    setup = set_up(config)
    initial = setup.initial_state().members['target']
    state = state_at(trained, 4)
    first, last = (traverse_util.flatten_dict(tree, sep='/') for tree in (initial.params, state['params']))
    trained_paths = {path for path in first if (np.asarray(first[path]) != last[path]).any()}
    adapters = {path for path in first if path.endswith(('lora_a', 'lora_b'))}
    assert len(adapters) == 2 * 2 * 3
    assert trained_paths == adapters | {path for path in first if not path.startswith('text/bert')}
    moments = [leaf for leaf in jax.tree.leaves(initial.optimizer) if np.ndim(leaf)]
    assert len(moments) == 2 * len(trained_paths)


@pytest.mark.slow
def test_factors_may_name_modules_that_adapters_freeze(config):
    for name, exists in (('embeddings/words', True), ('embeddings/wrods', False)):
        with_factor = config | {'optimizer': config['optimizer'] | {'factors': {name: 0.0}}}
        if exists:
            assert set_up(with_factor).random_state().step == 0
        else:
            with pytest.raises(UserError, match="did you mean 'embeddings/words'"):
                set_up(with_factor)


@pytest.mark.slow
def test_gradients_of_the_base_are_zero(config, trained):
    setup = set_up(config)
    params = state_at(trained, 3)['params']
    member = setup.members['target']
    state = setup.initial_state().members['target']
    batch = setup.make_batch(3)

    def total(params):
        return member.model.apply(member.variables(params, state), batch.images, batch.texts).sum()

    gradients = traverse_util.flatten_dict(jax.jit(jax.grad(total))(params), sep='/')
    nonzero = {path for path, gradient in gradients.items() if gradient.any()}
    adapters = {path for path in gradients if path.endswith(('lora_a', 'lora_b'))}
    assert nonzero == adapters | {path for path in gradients if not path.startswith('text/bert')}


@pytest.mark.slow
def test_checkpoints_hold_adapters_and_runs_have_merged_weights(trained, config, tmp_path):
    params = state_at(trained, 4)['params']
    run = load_run(trained, 4)
    jax.tree.map(np.testing.assert_array_equal, run.variables['params'], merge(params))
    names = {path[-1] for path in traverse_util.flatten_dict(run.variables['params'])}
    assert not names & {*LEAVES}
    # A run that is initialized from it has new ones.
    target = {'rule': 'gradient', 'learn_from': (), 'init_from': str(trained), 'lora': {'rank': 1}}
    best = load_run(trained).variables['params']
    state = set_up(config | {'members': {'target': target}}).initial_state().members['target']
    jax.tree.map(np.testing.assert_array_equal, state.variables['params'], best)


def test_a_member_that_does_not_train_has_no_adapters(config):
    average = {'rule': 'ema', 'of': 'target', 'momentum': 0.9, 'lora': {'rank': 2}}
    with pytest.raises(UserError, match=r"'members\.average\.lora' must be left out: this member does not train"):
        set_up(config | {'members': config['members'] | {'average': average}})
