"""A step does not depend on the profile of its texts."""

import dataclasses

import chex
import jax
import pytest

from jitm import configs
from jitm.devices import parallel
from jitm.training.setup import set_up

SMALL = {
    'vse': {'text': {'word_dim': 8}},
    'sgraf': {'alignment_dim': 8, 'text': {'word_dim': 8, 'dropout': 0.0}},
    'naaf': {'text': {'word_dim': 8, 'dropout': 0.0}, 'minimum_words': 20},
}


def merge(config, changes):
    return {
        **config,
        **{key: merge(config[key], value) if isinstance(value, dict) else value for key, value in changes.items()},
    }


def take_step(setup, pipeline):
    batch = pipeline.batch(0)
    state = parallel.put_state(setup.initial_state())
    state, metrics = jax.device_get(setup.train_step(state, parallel.put_batch(batch)))
    member = state.members['target']  # the first step of Adam amplifies the rounding of a gradient of 0
    return batch, (member.optimizer, member.batch_stats, metrics)


def make_setup(preset, tiny_config):
    network = configs.load(preset).to_dict()
    model = merge(network['model'], {'embed_dim': 8, **SMALL[preset.partition(':')[0]]})
    for section in ('image_whole', 'text_whole'):
        if model.get(section):
            model[section]['dropout'] = 0.0
    ranking = network['terms']['ranking'] | {'start_epoch': 0}
    changes = {'batch_size': 40, 'length_multiple': 2, 'model': model, 'terms': {'ranking': ranking}}
    return set_up(tiny_config | changes)


@pytest.mark.slow
@pytest.mark.parametrize('preset', ['vse:mean,sum', 'vse:fc,sum', 'sgraf:saf,softmax', 'naaf'])
def test_a_step_with_a_profile_is_that_of_padded_texts(preset, tiny_config):
    setup = make_setup(preset, tiny_config)
    batch, step = take_step(setup, setup.pipeline)
    plain, padded = take_step(setup, dataclasses.replace(setup.pipeline, skips_padding=False))
    assert len(batch.texts.profile.segments) > 2
    assert plain.texts.profile is None
    chex.assert_trees_all_close(step, padded, rtol=1e-3, atol=1e-4)
