"""The queue of past pairs: what it holds and the loss on it by loops, and runs that resume exactly."""

import jax
import numpy as np
import optax
import pytest

from jitm.errors import UserError
from jitm.training.members import EMA, Gradient, Member, init_members
from jitm.training.objective import make_terms
from jitm.training.plan import make_plan
from jitm.training.source import View
from jitm.training.sources.queue import encode
from jitm.training.step import TrainState
from tests.configs.settings import load
from tests.support.matchers import MATCHERS
from tests.training.models import candidates_source, compile_step, small_vse
from tests.training.test_members import pipeline  # noqa: F401

LENGTH, TEMPERATURE = 20, 0.1
QUEUE = {'source': 'queue', 'same_image': 'ignored', 'encoder': 'average', 'length': LENGTH}
TERM = {'loss': 'ranking.softmax_contrastive', 'temperature': TEMPERATURE, 'reduction': 'sum'}
TERM |= {'weight': 1.0, 'start_epoch': 0, 'end_epoch': None}


def start(pipeline, same_image):  # noqa: F811
    """The compiled step of a target with its average, and the state before it."""
    model = small_vse(len(pipeline.vocabulary))
    members = {
        'target': Member(rule=Gradient(), model=model, optimizer=optax.sgd(1.0)),
        'average': Member(rule=EMA(of='target', momentum=0.5), model=model),
    }
    source, batch = candidates_source(QUEUE | {'same_image': same_image}), pipeline.batch(0)
    parts = {'members': members, 'terms': make_terms({'ranking': TERM}), 'source': source}
    states = init_members(members, 0, batch.images, batch.texts)
    memory = source.init({'average': (model, states['average'].variables)}, ['target'], batch, 0)
    return compile_step(**parts, seed=0, steps_per_epoch=5, epochs=2), TrainState(np.int32(0), states, memory)


def loss_by_loop(queries, keys, index, same_image):
    """The softmax of each query over the keys, which start with those of its batch; a key without a pair has row -1."""
    total, images, texts = 0.0, index['image_index'], index['text_index']
    for query, vector in enumerate(np.asarray(queries, np.float64)):
        power = {key: np.exp(vector @ np.asarray(keys[key], np.float64) / TEMPERATURE) for key in range(len(keys))}
        real = [key for key in power if images[key] >= 0]
        if same_image == 'positive':
            own = [key for key in real if images[key] == images[query]]
        else:
            own = [key for key in real if texts[key] == texts[query]]
        other = [key for key in real if key not in own]
        if same_image == 'ignored':
            other = [key for key in other if images[key] != images[query]]
        sum_of_all = sum(power[key] for key in own + other)
        total -= sum(np.log(power[key] / sum_of_all) for key in own) / len(own)
    return total


@pytest.mark.parametrize('same_image', ['negative', 'positive', 'ignored'])
def test_queue_and_loss_by_a_loop(pipeline, same_image):  # noqa: F811
    step, state = start(pipeline, same_image)
    model = small_vse(len(pipeline.vocabulary))
    held = jax.device_get(state.memory['queue'])
    assert (held['image_index'] == -1).all()
    repeated = 0
    for n in range(4):
        batch = pipeline.batch(n if n < 3 else 1).replace(step=np.int32(n))  # the last pairs are in the queue
        average, target = (encode(model, state.members[name].variables, batch) for name in ('average', 'target'))
        candidates = {key: np.concatenate([average[key], held[key]]) for key in held}
        repeated += len(set(batch.text_index) & set(held['text_index']))
        state, metrics = step(state, batch)
        want = sum(
            loss_by_loop(target[queries], candidates[keys], candidates, same_image)
            for queries, keys in (('images', 'texts'), ('texts', 'images'))
        )
        np.testing.assert_allclose(metrics['target/loss'], want, rtol=1e-4)
        held = {key: values[:LENGTH] for key, values in candidates.items()}
        for key, values in jax.device_get(state.memory['queue']).items():
            np.testing.assert_allclose(values, held[key], rtol=1e-5, atol=1e-6)
    assert repeated == 8
    assert (held['image_index'] >= 0).all()


def test_the_encoder_of_the_queue_is_a_member():
    config = load('vse:mean,softmax_queue,f8k')
    make_plan(config)
    config['candidates']['encoder'] = 'averge'
    with pytest.raises(UserError, match=r"'candidates.encoder' is 'averge', .* did you mean 'average'"):
        make_plan(config)


def test_the_queue_is_of_dual_encoders():
    source = candidates_source(QUEUE)
    view = View({name: (MATCHERS['saf'], {}) for name in ('target', 'average')}, None, {}, 0)
    with pytest.raises(UserError, match="'queue' needs a dual encoder, not SGRAF: use 'in_batch'"):
        source.look(view, {'target': None})
