"""The queue of past pairs: what it holds and the loss on it by loops, and the config."""

import jax
import numpy as np
import optax
import pytest

from jitm.errors import UserError
from jitm.training.members import EMA, Gradient, Member, init_members
from jitm.training.plan import make_plan
from jitm.training.sources.queue import encode
from jitm.training.step import TrainState
from tests.configs.settings import load
from tests.losses import formulas
from tests.support.steps import ALWAYS, candidates_source, compile_step, make_pipeline, make_terms, small_vse

LENGTH = 20
TEMPERATURE = 0.1
QUEUE = {'source': 'queue', 'same_image': 'ignored', 'encoder': 'average', 'length': LENGTH}
TERM = ALWAYS | {'loss': 'ranking.softmax_contrastive', 'temperature': TEMPERATURE, 'reduction': 'sum'}


def start(pipeline, same_image):
    """The compiled step of a target with its average, and the state before it."""
    model = small_vse(len(pipeline.vocabulary))
    members = {
        'target': Member(rule=Gradient(), model=model, optimizer=optax.sgd(1.0)),
        'average': Member(rule=EMA(of='target', momentum=0.5), model=model),
    }
    source = candidates_source(QUEUE | {'same_image': same_image})
    batch = pipeline.batch(0)
    parts = {'members': members, 'terms': make_terms({'ranking': TERM}), 'source': source}
    states = init_members(members, 0, batch.images, batch.texts)
    memory = source.init({'average': (model, states['average'].variables)}, ['target'], batch, 0)
    return compile_step(**parts, seed=0, steps_per_epoch=5, epochs=2), TrainState(np.int32(0), states, memory)


def loss_by_loop(queries, keys, index, same_image):
    """The softmax of each query over the keys, which start with those of its batch; a key without a pair has row -1."""
    values = []
    real = index['image_index'] >= 0
    for query, scores in enumerate(np.asarray(queries, np.float64) @ np.asarray(keys, np.float64).T):
        match = index['text_index'] == index['text_index'][query]
        same = index['image_index'] == index['image_index'][query]
        row = {
            'positive': formulas.Row(scores[real & same], scores[real & ~same]),
            'negative': formulas.Row(scores[real & match], scores[real & ~match]),
            'ignored': formulas.Row(scores[real & match], scores[real & ~match & ~same]),
        }[same_image]
        values.append(formulas.softmax_contrastive(formulas.Row(*map(list, row)), TEMPERATURE))
    return sum(values)


@pytest.mark.slow
@pytest.mark.parametrize('same_image', ['negative', 'positive', 'ignored'])
def test_queue_and_loss_by_a_loop(same_image):
    pipeline = make_pipeline()
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
