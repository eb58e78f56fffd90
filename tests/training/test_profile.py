"""A step whose texts have a profile equals that of the padded texts."""

import dataclasses

import jax
import numpy as np

from jitm.devices import parallel
from jitm.training.setup import set_up


def test_a_step_with_a_profile_is_that_of_padded_texts(tiny_config):
    setup = set_up(tiny_config | {'batch_size': 40, 'length_multiple': 2})
    padded = dataclasses.replace(setup.pipeline, recurrent=False)
    batches = setup.pipeline.batch(0), padded.batch(0)
    assert len(batches[0].texts.profile) > 2
    assert batches[1].texts.profile is None
    results = []
    for batch in batches:
        state = parallel.put_state(setup.initial_state())
        results.append(jax.device_get(setup.train_step(state, parallel.put_batch(batch))))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *results)
