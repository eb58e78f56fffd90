"""Members that learn from each other: DBL's three scenarios, mutual learning, and what each may never do."""

import functools
import shutil

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jitm.data import scenes
from jitm.data.augmentation import Augmentation
from jitm.data.pipeline import Pipeline, tokenize_split
from jitm.data.text import Vocabulary
from jitm.errors import UserError
from jitm.losses import anchored, distillation, ranking
from jitm.runs.checkpoint import Checkpoints
from jitm.runs.run import load_run
from jitm.training import loop
from jitm.training.candidates import InBatch
from jitm.training.logs import read_metrics
from jitm.training.members import Member, MemberState, Outcome, ema, frozen, gradient, init_members
from jitm.training.objective import make_terms
from jitm.training.step import TrainState, make_train_step
from tests.conftest import UNCHANGED, run_script
from tests.models.test_matchers import make_vse
from tests.test_train import assert_same_run, finished  # noqa: F401
from tests.training.test_objective import TERM

BOOST = {'weight': 1.0, 'start_epoch': 0, 'end_epoch': None, 'reduction': 'sum', 'margin': 0.2}
TERMS = {'ranking': TERM, 'boost': BOOST | {'loss': 'anchored.relative_max'}}
EPOCHS, PER_EPOCH = 2, 5


@pytest.fixture(scope='module')
def pipeline():
    split = scenes.load('train', train_images=8)
    vocabulary = Vocabulary.build(split.captions, 1)
    tokens = tokenize_split(split.captions, vocabulary)
    return Pipeline(split, tokens, vocabulary, 8, 0, length_multiple=32, augmentation=Augmentation(**UNCHANGED))


def begin(pipeline, terms=TERMS, **members):
    """The compiled step of some members, and their first state."""
    step = make_train_step(
        members,
        make_terms(terms, supplied=('anchor_scores',)),
        InBatch(same_image='negative'),
        seed=0,
        steps_per_epoch=PER_EPOCH,
        epochs=EPOCHS,
    )
    batch = pipeline.batch(0)
    return jax.jit(step), TrainState(jnp.int32(0), init_members(members, 0, batch.images, batch.texts))


def take(step, state, pipeline, count=3):
    states, told = [state], []
    for n in range(count):
        state, metrics = step(state, pipeline.batch(n))
        assert metrics['finite']
        states.append(state)
        told.append(jax.device_get(metrics))
    return states, told


def branch(pipeline, learn_from=(), mlp='plain'):
    """A member that trains; its MLP has batch normalisation."""
    return Member(make_vse(mlp, vocab_size=len(pipeline.vocabulary)), gradient, optax.sgd(0.1), learn_from)


def still(pipeline, update, **fields):
    return Member(make_vse('plain', vocab_size=len(pipeline.vocabulary)), update, **fields)


def assert_equal(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def assert_changed(one, other):
    assert any((a != b).any() for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


def scores_of(model, state, batch, train=False):
    variables = {'params': state.params, 'batch_stats': state.batch_stats}
    scores, _ = model.apply(variables, batch.images, batch.texts, train=train, mutable=['batch_stats'])
    return scores


def test_the_anchor_of_oss_is_what_it_would_be_alone(pipeline):
    """Bitwise: its own objective only, its own draw, and no gradient from the branch that learns from it."""
    alone, _ = take(*begin(pipeline, {'ranking': TERM}, target=branch(pipeline)), pipeline)
    pair, told = take(*begin(pipeline, anchor=branch(pipeline), target=branch(pipeline, ('anchor',))), pipeline)
    for one, two in zip(alone, pair, strict=True):
        assert_equal(one.members['target'], two.members['anchor'])
    assert_changed(pair[0].members['anchor'].params, pair[0].members['target'].params)
    assert {'anchor/terms/ranking', 'target/terms/ranking', 'target/terms/boost'} <= told[0].keys()
    assert 'anchor/terms/boost' not in told[0]


@pytest.fixture(scope='module')
def oas(pipeline):
    return take(*begin(pipeline, anchor=still(pipeline, frozen), target=branch(pipeline, ('anchor',))), pipeline)


def test_a_frozen_anchor_stays_and_holds_nothing_but_its_weights(oas):
    states, _ = oas
    for state in states[1:]:
        assert_equal(states[0].members['anchor'], state.members['anchor'])
    assert states[0].members['anchor'].optimizer == ()
    assert_changed(states[0].members['target'].params, states[1].members['target'].params)


def test_a_frozen_anchor_is_scored_as_in_evaluation(oas, pipeline):
    states, told = oas
    batch, model = pipeline.batch(0), make_vse('plain', vocab_size=len(pipeline.vocabulary))
    scores = scores_of(model, states[0].members['target'], batch, train=True)
    anchor = scores_of(model, states[0].members['anchor'], batch)
    own = jnp.eye(8, dtype=bool)
    want = sum(
        anchored.relative_max(s, own, anchor_scores=a, margin=0.2).sum()
        for s, a in ((scores, anchor), (scores.T, anchor.T))
    )
    np.testing.assert_allclose(told[0]['target/terms/boost'], want, rtol=1e-5)
    gap = np.mean([a.diagonal() - ranking.hardest_negative(a, ~own) for a in (anchor, anchor.T)])
    np.testing.assert_allclose(told[0]['anchor/gap'], gap, atol=1e-6)


@pytest.mark.parametrize('scenario', ['oas', 'mss'])
def test_a_target_learns_from_the_scores_of_a_still_anchor_as_given(request, pipeline, scenario):
    states, _ = request.getfixturevalue(scenario)
    before, batch, own = states[0].members['target'], pipeline.batch(0), jnp.eye(8, dtype=bool)
    model = make_vse('plain', vocab_size=len(pipeline.vocabulary))
    held = scores_of(model, states[0].members['anchor'], batch)

    def loss(params):
        scores = scores_of(model, before.replace(params=params), batch, train=True)
        both = ((scores, held), (scores.T, held.T))
        hard = sum(ranking.max_of_hinges(s, own, margin=0.2).sum() for s, _ in both)
        return hard + sum(anchored.relative_max(s, own, anchor_scores=a, margin=0.2).sum() for s, a in both)

    want = optax.tree.add_scale(before.params, -0.1, jax.jit(jax.grad(loss))(before.params))
    chex.assert_trees_all_close(states[1].members['target'].params, want, atol=1e-5)


@pytest.fixture(scope='module')
def mss(pipeline):
    anchor = still(pipeline, functools.partial(ema, of='target', momentum=0.5), num_views='target')
    return take(*begin(pipeline, target=branch(pipeline, ('anchor',)), anchor=anchor), pipeline, 4)


def test_an_averaged_anchor_is_its_closed_form(mss):
    """theta_a after n steps is the sum of beta-weighted targets, beta from 0.5 to 1 along half a cosine."""
    states, _ = mss
    assert_equal(states[0].members['anchor'].params, states[0].members['target'].params)
    assert states[0].members['anchor'].optimizer == ()
    total = EPOCHS * PER_EPOCH
    betas = [1 - 0.5 * (1 + np.cos(np.pi * n / total)) / 2 for n in range(4)]
    weights = [np.prod(betas)] + [(1 - betas[n]) * np.prod(betas[n + 1 :]) for n in range(4)]
    np.testing.assert_allclose(sum(weights), 1)
    for part in ('params', 'batch_stats'):
        targets = [getattr(state.members['target'], part) for state in states]
        want = jax.tree.map(lambda *leaves: sum(w * leaf for w, leaf in zip(weights, leaves, strict=True)), *targets)
        chex.assert_trees_all_close(getattr(states[-1].members['anchor'], part), want, rtol=1e-5, atol=1e-6)
        assert_changed(targets[0], targets[1])


def test_the_published_average_hardly_moves_at_first_and_not_at_last():
    def after(progress):
        target = MemberState({'w': jnp.ones(1)}, {})
        outcome = Outcome(None, None, None, jnp.float32(progress), {'target': target})
        return float(ema(MemberState({'w': jnp.zeros(1)}, {}), outcome, of='target', momentum=0.99995).params['w'][0])

    np.testing.assert_allclose([after(0), after(0.5), after(1)], [5e-5, 2.5e-5, 0], atol=1e-11, rtol=1e-4)


def test_of_three_branches_the_last_learns_from_the_mean_of_both(pipeline):
    members = {
        'anchor': branch(pipeline),
        'anchor_2': branch(pipeline, ('anchor',)),
        'target': branch(pipeline, ('anchor', 'anchor_2')),
    }
    states, told = take(*begin(pipeline, **members), pipeline, 1)
    batch = pipeline.batch(0)
    scores = {name: scores_of(m.model, states[0].members[name], batch, train=True) for name, m in members.items()}
    own = jnp.eye(8, dtype=bool)

    def boost(name, anchor):
        pairs = ((scores[name], scores[anchor]), (scores[name].T, scores[anchor].T))
        return sum(anchored.relative_max(s, own, anchor_scores=a, margin=0.2).sum() for s, a in pairs)

    np.testing.assert_allclose(told[0]['anchor_2/terms/boost'], boost('anchor_2', 'anchor'), rtol=1e-5)
    mean = (boost('target', 'anchor') + boost('target', 'anchor_2')) / 2
    np.testing.assert_allclose(told[0]['target/terms/boost'], mean, rtol=1e-5)


def test_in_mutual_learning_each_branch_has_both_terms_and_its_own_gradient(pipeline):
    """The gradient of each is that of its own objective with the other's scores held still."""
    terms = {'ranking': TERM, 'mutual': TERM | {'loss': 'distillation.mutual_learning'}}
    del terms['mutual']['margin']
    members = {'a': branch(pipeline, ('b',), mlp='none'), 'b': branch(pipeline, ('a',), mlp='none')}
    states, told = take(*begin(pipeline, terms, **members), pipeline, 1)
    assert {'a/terms/mutual', 'b/terms/mutual'} <= told[0].keys()
    batch, own = pipeline.batch(0), jnp.eye(8, dtype=bool)
    for name, other in (('a', 'b'), ('b', 'a')):
        model, before, after = (members[name].model, states[0].members[name], states[1].members[name])
        held = scores_of(model, states[0].members[other], batch)

        def loss(params, model=model, held=held):
            scores = model.apply({'params': params}, batch.images, batch.texts, train=True)
            both = ((scores, held), (scores.T, held.T))
            hard = sum(ranking.max_of_hinges(s, own, margin=0.2).sum() for s, _ in both)
            return hard + sum(distillation.mutual_learning(s, own, anchor_scores=a).sum() for s, a in both)

        want = optax.tree.add_scale(before.params, -0.1, jax.grad(loss)(before.params))
        chex.assert_trees_all_close(after.params, want, atol=1e-5)


# The scenarios from configs, through whole runs.


def boosted(config, scenario, run=None):
    target = {'rule': 'gradient', 'learn_from': ['anchor'], 'init_from': run if scenario == 'oas' else ''}
    anchors = {
        'oas': {'rule': 'frozen', 'init_from': run},
        'oss': {'rule': 'gradient', 'learn_from': [], 'init_from': ''},
        'mss': {'rule': 'ema', 'of': 'target', 'momentum': 0.9},
    }
    config['members'] = {'anchor': anchors[scenario], 'target': target}
    config['terms'] = config['terms'] | {'boost': BOOST | {'loss': 'anchored.absolute_max', 'alpha': 0.5}}
    config['model']['image']['mlp'] = 'residual'
    return config


@pytest.mark.slow
@pytest.mark.parametrize('scenario', ['oas', 'oss', 'mss'])
def test_a_stopped_run_of_branches_goes_on_to_the_same_end(tiny_config, finished, tmp_path, scenario):  # noqa: F811
    alone = shutil.copytree(finished[0], tmp_path / 'alone')
    config = boosted(tiny_config, scenario, str(alone))
    config['model']['image']['mlp'] = 'none' if scenario == 'oas' else 'residual'
    config['epochs'] = 2
    whole, stopped = tmp_path / 'whole', tmp_path / 'stopped'
    loop.train_and_evaluate(config, whole)
    shutil.copytree(whole, stopped)
    for step in Checkpoints(stopped).steps():
        if step > 16:
            shutil.rmtree(stopped / 'checkpoints' / str(step))
    shutil.rmtree(alone)  # all members are in the checkpoint
    loop.train_and_evaluate(config, stopped)
    assert_same_run(stopped, whole)
    line = read_metrics(whole)[1]
    assert {'anchor/gap', 'target/gap', 'target/terms/boost'} <= line.keys()
    assert ('anchor/loss' in line) == (scenario == 'oss')


def test_an_anchor_begins_as_the_run_it_is_from_and_can_be_evaluated(tiny_config, finished, tmp_path):  # noqa: F811
    config = boosted(tiny_config, 'oas', str(finished[0]))
    config['model']['image']['mlp'] = 'none'
    config['epochs'] = 1
    loop.train_and_evaluate(config, tmp_path / 'run')
    alone, anchor, target = (load_run(finished[0]), *(load_run(tmp_path / 'run', 10, m) for m in ('anchor', None)))
    assert_equal(alone.variables, anchor.variables)
    assert_changed(alone.variables, target.variables)
    out = run_script('eval.py', '--workdir', tmp_path / 'run', '--member', 'anchor')
    assert 'step' in out.stdout, out.stderr
    assert (tmp_path / 'run' / 'eval' / 'dev_anchor' / 'metrics.json').exists()
    with pytest.raises(UserError, match=r"has no member 'ancor', did you mean 'anchor'"):
        load_run(tmp_path / 'run', member='ancor')


def test_an_anchor_may_be_of_another_architecture(tiny_config, finished, tmp_path):  # noqa: F811
    config = boosted(tiny_config, 'oas', str(finished[0]))
    config['model']['embed_dim'] = 12
    config['members']['target']['init_from'] = ''
    with pytest.raises(UserError, match=r"'members.anchor.init_from': .* is of another model \(model.embed_dim: 16"):
        loop.set_up(config)
    config['members']['anchor']['model'] = load_run(finished[0]).config['model']
    setup = loop.set_up(config)
    state = setup.initial_state()
    sizes = {name: setup.members[name].model.embed_dim for name in state.members}
    assert sizes == {'anchor': 16, 'target': 12}
    _, metrics = setup.train_step(state, setup.make_batch(0))
    assert np.isfinite(metrics['target/terms/boost'])


def test_an_average_begins_as_its_target_wherever_that_begins(tiny_config, finished):  # noqa: F811
    config = boosted(tiny_config, 'mss')
    config['model']['image']['mlp'] = 'none'
    config['members']['target']['init_from'] = str(finished[0])
    members = loop.set_up(config).initial_state().members
    assert_equal(members['anchor'].params, load_run(finished[0]).variables['params'])


def test_branches_and_terms_that_do_not_go_together_are_refused(tiny_config, tmp_path):
    config = boosted(tiny_config, 'oss')
    boost = config['terms'].pop('boost')
    with pytest.raises(UserError, match=r"'members.target' has learn_from, but no term takes anchor_scores: add one"):
        loop.set_up(config)
    config['terms']['boost'] = boost
    config['evaluation']['member'] = 'x'
    with pytest.raises(UserError, match=r"'evaluation.member' is 'x', not one of \['anchor', 'target'\], which train"):
        loop.set_up(config)
    config['evaluation']['member'] = 'target'
    config['members']['target']['learn_from'] = []
    with pytest.raises(UserError, match=r"'terms.boost' needs anchor_scores: add an anchor member"):
        loop.set_up(config)
    config = boosted(config, 'oas', str(tmp_path / 'nowhere'))
    with pytest.raises(UserError, match=r'nowhere is not a run directory'):
        loop.set_up(config)


def test_a_run_does_not_go_on_with_another_anchor(tiny_config, finished, tmp_path):  # noqa: F811
    config = boosted(tiny_config, 'oas', str(finished[0]))
    config['model']['image']['mlp'] = 'none'
    config['epochs'] = 1
    loop.train_and_evaluate(config, tmp_path / 'run')
    config['members']['anchor']['init_from'] = 'another'
    with pytest.raises(UserError, match=r'another config \(members.anchor.init_from: .* -> another\)'):
        loop.train_and_evaluate(config, tmp_path / 'run')
