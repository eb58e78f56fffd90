"""A run whose BERT has adapters: what trains, what its checkpoints hold, and what others read."""

import chex
import jax
import numpy as np
import pytest
from flax import traverse_util
from safetensors.numpy import load_file

from jitm.commands.cli import main
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
    split, path = scenes.load('train', train_images=16), tmp_path_factory.mktemp('words') / 'vocab.txt'
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
    before, state = setup.initial_state().members['target'], state_at(trained, 4)
    first, last = (traverse_util.flatten_dict(tree, sep='/') for tree in (before.params, state['params']))
    changed = {path for path in first if (np.asarray(first[path]) != last[path]).any()}
    adapters = {path for path in first if path.endswith(('lora_a', 'lora_b'))}
    assert len(adapters) == 2 * 2 * 3
    assert changed == adapters | {path for path in first if not path.startswith('text/bert')}
    moments = [leaf for leaf in jax.tree.leaves(before.optimizer) if np.ndim(leaf)]
    assert len(moments) == 2 * len(changed)


@pytest.mark.slow
def test_factors_may_name_modules_that_adapters_freeze(config):
    for name, known in (('embeddings/words', True), ('embeddings/wrods', False)):
        changed = config | {'optimizer': config['optimizer'] | {'factors': {name: 0.0}}}
        if known:
            assert set_up(changed).random_state().step == 0
        else:
            with pytest.raises(UserError, match="did you mean 'embeddings/words'"):
                set_up(changed)


@pytest.mark.slow
def test_gradients_of_the_base_are_zero(config, trained):
    setup, params = set_up(config), state_at(trained, 3)['params']
    member, state, batch = setup.members['target'], setup.initial_state().members['target'], setup.make_batch(3)

    def total(params):
        return member.model.apply(member.variables(params, state), batch.images, batch.texts).sum()

    gradients = traverse_util.flatten_dict(jax.jit(jax.grad(total))(params), sep='/')
    given = {path for path, gradient in gradients.items() if gradient.any()}
    adapters = {path for path in gradients if path.endswith(('lora_a', 'lora_b'))}
    assert given == adapters | {path for path in gradients if not path.startswith('text/bert')}


@pytest.mark.slow
def test_checkpoints_hold_adapters_and_runs_have_merged_weights(trained, config, tmp_path):
    params, run = state_at(trained, 4)['params'], load_run(trained, 4)
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


@pytest.mark.slow
def test_an_exported_folder_has_merged_adapters(trained, tmp_path):
    folder = tmp_path / 'exported'
    assert main(['convert', '--to', 'safetensors', str(trained), '--out', str(folder)]) == 0
    assert not any(name.endswith('.lora_a') for name in load_file(folder / 'model.safetensors'))
    variables = [load_run(path).variables for path in (trained, folder)]
    chex.assert_trees_all_equal(*variables)
