"""Steps on small batches, as the last batch of an epoch can be."""

import jax
import numpy as np
import optax
import pytest

from jitm.losses import tokens
from jitm.training.members import Gradient, Member, MemberState
from jitm.training.objective import TokenTerm
from jitm.training.source import together
from jitm.training.step import TrainState
from jitm.types import Batch
from tests.support.matchers import MATCHERS, make_inputs, random_variables
from tests.support.steps import compile_step, in_batch_source, predictions_source, shortlist_source
from tests.support.tags import MEAN, TERMS


def take_step(model, terms, source, size):
    """The state after a step on a batch of so many pairs, and the metrics."""
    images, texts = make_inputs(size, size)
    batch = Batch(step=np.int32(0), images=images, texts=texts, image_index=np.arange(size, dtype=np.int32))
    variables = random_variables(model, images, texts)
    optimizer = optax.adamw(1e-2)
    state = MemberState(variables['params'], variables.get('batch_stats', {}), optimizer.init(variables['params']))
    members = {'target': Member(rule=Gradient(), model=model, optimizer=optimizer)}
    step = compile_step(members=members, terms=terms, source=source, seed=0, steps_per_epoch=1, epochs=1)
    return step(TrainState(np.int32(0), {'target': state}), batch)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['vsepp', 'vsrn_f30k', 'saf'])
def test_one_pair_has_no_negatives_and_stays_finite(name):
    terms = {'ranking': TERMS['ranking']}
    source = in_batch_source()
    if name == 'vsrn_f30k':
        terms['caption'] = TokenTerm(loss=tokens.captioning, predictions='captioning', **MEAN)
        source = together(predictions_source(caption=terms['caption']), source)
    state, metrics = take_step(MATCHERS[name], terms, source, 1)
    assert metrics['finite']
    assert metrics['target/terms/ranking'] == 0
    assert state.step == 1
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((state, metrics)))


@pytest.mark.slow
def test_shortlist_of_fewer_candidates_than_it_keeps():
    terms = {'ranking': TERMS['ranking']}
    fewer, more = (take_step(MATCHERS['vsepp'], terms, shortlist_source(0, count), 3)[1] for count in (2, 5))
    assert more['target/loss'] > 0
    np.testing.assert_allclose(more['target/loss'], fewer['target/loss'], rtol=1e-6)
