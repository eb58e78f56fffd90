"""Models that train together: the three scenarios of DBL (Diao et al., 2024) and mutual learning."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import traverse_util

from jitm.commands import cli
from jitm.devices import parallel
from jitm.errors import UserError
from jitm.evaluation.protocol import evaluate_runs
from jitm.layers import cnn
from jitm.losses import anchored, ranking
from jitm.report.groups import read_run_log
from jitm.report.training import read_points
from jitm.runs.log import read_metrics
from jitm.runs.run import load_run, read_split
from jitm.training import loop
from jitm.training.members import EMA, Frozen, Gradient, Member, MemberState, init_members
from jitm.training.step import TrainState
from tests.conftest import make_tiny_config
from tests.support.matchers import make_inputs
from tests.support.steps import HARDEST, compile_step, in_batch_source, make_pipeline, make_terms, small_vse

BOOST = HARDEST | {'loss': 'anchored.relative_max'}
EPOCHS = 2
PER_EPOCH = 5
OWN = np.eye(8, dtype=bool)


@pytest.fixture(scope='module')
def pipeline():
    return make_pipeline()


def start(pipeline, **members):
    """The compiled step of some members, and their initial state."""
    terms = {'ranking': HARDEST}
    if any(member.learn_from for member in members.values()):
        terms['boost'] = BOOST
    parts = {'members': members, 'terms': make_terms(terms), 'source': in_batch_source()}
    step = compile_step(**parts, seed=0, steps_per_epoch=PER_EPOCH, epochs=EPOCHS)
    batch = pipeline.batch(0)
    return step, TrainState(jnp.int32(0), init_members(members, 0, batch.images, batch.texts))


def train(pipeline, count=3, **members):
    """The states before, between and after some steps, and the metrics of each step."""
    step, state = start(pipeline, **members)
    states = [state]
    logged = []
    for n in range(count):
        state, metrics = step(state, pipeline.batch(n))
        assert metrics['finite']
        states.append(state)
        logged.append(jax.device_get(metrics))
    return states, logged


def trained(pipeline, learn_from=(), mlp='plain'):
    """A member that trains; its MLP has batch normalization."""
    model = small_vse(len(pipeline.vocabulary), mlp)
    return Member(rule=Gradient(), model=model, optimizer=optax.sgd(0.1), learn_from=learn_from)


def untrained(pipeline, rule):
    return Member(rule=rule, model=small_vse(len(pipeline.vocabulary), 'plain'))


@pytest.mark.slow
def test_no_gradient_is_computed_for_frozen_modules(pipeline):
    free = trained(pipeline)
    batch = pipeline.batch(0)
    results = []
    products = []
    for member in (dataclasses.replace(free, frozen=('image_fc',)), free):
        step, state = start(pipeline, target=member)
        products.append(str(jax.make_jaxpr(step.compiled)(state, parallel.split_rows(batch))).count('dot_general'))
        after, metrics = step(state, batch)
        results.append((after.members['target'].params, metrics))
    (frozen, metrics), (trained_params, _) = results
    initial = state.members['target'].params
    assert_equal(frozen['image']['image_fc'], initial['image']['image_fc'])
    assert_equal(frozen['text'], trained_params['text'])
    assert_changed(trained_params['image']['image_fc'], initial['image']['image_fc'])
    assert metrics['target/image_fc_gradient_norm'] == 0
    assert products[0] < products[1]


NETWORK = cnn.ResNet(depth=18, train_norm=True, pooled=True, dtype='float32', remat=False)
ADAPTERS = dict.fromkeys(('kernel', 'lora_a', 'lora_b', 'lora_scale'), np.zeros(1))
SCALE, MEAN = ({'norm': {name: np.zeros(1)}} for name in ('scale', 'mean'))
TOWER = {
    'params': {'text': {'encoder': {'block_0': SCALE | {'query': ADAPTERS}}}, 'mlp': SCALE},
    'batch_stats': {'text': {'encoder': {'block_0': MEAN}}, 'mlp': MEAN},
}


def zeros_of(module, *inputs):
    """Zeros of the shapes of a module's variables."""
    shapes = jax.eval_shape(module.init, jax.random.key(0), *inputs)
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes)


@pytest.mark.parametrize(
    ('make', 'frozen', 'changed'),
    [
        (
            lambda: {part: {'network': x} for part, x in zeros_of(NETWORK, np.zeros((1, 32, 32, 3))).items()},
            'network',
            (),
        ),
        (lambda: zeros_of(small_vse(mlp='plain'), *make_inputs()), 'image_mlp', ()),
        (lambda: zeros_of(small_vse(mlp='plain'), *make_inputs()), 'image_fc', ('image',)),
        (lambda: TOWER, 'lower_100%', ('mlp',)),
        (lambda: TOWER, 'nothing', ('mlp',)),
    ],
)
def test_frozen_modules_keep_their_statistics(make, frozen, changed):
    """Those of a pattern, and those of a tower with adapters."""
    variables = make()
    optimizer = optax.sgd(0.1)
    params = variables['params']
    statistics = variables['batch_stats']
    member = Member(rule=Gradient(), optimizer=optimizer, frozen=(frozen,))
    state = MemberState(params, statistics, optimizer.init(params))
    after = member.take_gradient_step(state, params, jax.tree.map(lambda x: x + 1, statistics))
    unchanged = {path[0] for path, leaf in traverse_util.flatten_dict(after.batch_stats).items() if not leaf.any()}
    assert unchanged == statistics.keys() - {*changed}


def assert_equal(tree, want):
    jax.tree.map(np.testing.assert_array_equal, tree, want)


def assert_changed(tree, former):
    assert any((a != b).any() for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(former), strict=True))


def scores_of(model, state, batch, train=False):
    variables = {'params': state.params, 'batch_stats': state.batch_stats}
    scores, _ = model.apply(variables, batch.images, batch.texts, train=train, mutable=['batch_stats'])
    return scores


@pytest.mark.slow
def test_anchor_of_oss_trains_as_it_would_alone(pipeline):
    """Bitwise: its own objective and random key, and no gradient from the model that learns from it."""
    states, _ = train(pipeline, target=trained(pipeline))
    pair, metrics = train(pipeline, anchor=trained(pipeline), target=trained(pipeline, ('anchor',)))
    for state, state_of_pair in zip(states, pair, strict=True):
        assert_equal(state.members['target'], state_of_pair.members['anchor'])
    assert_changed(pair[0].members['anchor'].params, pair[0].members['target'].params)
    assert {'anchor/terms/ranking', 'target/terms/ranking', 'target/terms/boost'} <= metrics[0].keys()
    assert 'anchor/terms/boost' not in metrics[0]


def boost(scores, *anchors):
    """The term of a model that learns from anchors, of the scores of all."""
    values = []
    for anchor in anchors:
        for way, anchor_way in ((scores, anchor), (scores.T, anchor.T)):
            values.append(anchored.relative_max(way, OWN, anchor_scores=anchor_way, margin=0.2).sum())
    return sum(values) / len(anchors)


@pytest.fixture(scope='module')
def oas(pipeline):
    return train(pipeline, anchor=untrained(pipeline, Frozen()), target=trained(pipeline, ('anchor',)))


@pytest.mark.slow
def test_frozen_anchor_is_constant(oas):
    states, _ = oas
    for state in states[1:]:
        assert_equal(states[0].members['anchor'], state.members['anchor'])
    assert states[0].members['anchor'].optimizer == ()
    assert_changed(states[0].members['target'].params, states[1].members['target'].params)


def test_frozen_anchor_is_scored_in_evaluation_mode(oas, pipeline):
    states, metrics = oas
    batch = pipeline.batch(0)
    model = small_vse(len(pipeline.vocabulary), 'plain')
    scores = scores_of(model, states[0].members['target'], batch, train=True)
    anchor = scores_of(model, states[0].members['anchor'], batch)
    np.testing.assert_allclose(metrics[0]['target/terms/boost'], boost(scores, anchor), rtol=1e-5)
    gap = np.mean([a.diagonal() - ranking.hardest_negative(a, ~OWN) for a in (anchor, anchor.T)])
    np.testing.assert_allclose(metrics[0]['anchor/gap'], gap, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize('scenario', ['oas', 'mss'])
def test_no_gradient_flows_through_anchor_scores(request, pipeline, scenario):
    states, _ = request.getfixturevalue(scenario)
    initial = states[0].members['target']
    batch = pipeline.batch(0)
    model = small_vse(len(pipeline.vocabulary), 'plain')
    anchor = scores_of(model, states[0].members['anchor'], batch)

    def loss(params):
        scores = scores_of(model, initial.replace(params=params), batch, train=True)
        return boost(scores, anchor) + sum(ranking.max_of_hinges(s, OWN, margin=0.2).sum() for s in (scores, scores.T))

    want = optax.tree.add_scale(initial.params, -0.1, jax.jit(jax.grad(loss))(initial.params))
    chex.assert_trees_all_close(states[1].members['target'].params, want, atol=1e-5)


@pytest.fixture(scope='module')
def mss(pipeline):
    anchor = untrained(pipeline, EMA(of='target', momentum=0.5))
    assert anchor.copy_of == 'target'
    return train(pipeline, 4, target=trained(pipeline, ('anchor',)), anchor=anchor)


@pytest.mark.slow
def test_averaged_anchor_equals_its_closed_form(mss):
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


def test_average_of_a_constant_rate_does_not_depend_on_the_progress():
    old, new = (MemberState({'w': np.float32(value)}, {'mean': np.float32(2 * value)}) for value in (1, 3))
    for progress in (0.0, 0.5, 1.0):
        got = EMA(of='target', momentum=0.75, constant=True)(old, {'target': new}, progress)
        assert (got.params['w'], got.batch_stats['mean']) == (1.5, 3.0)


@pytest.fixture(scope='module')
def averaged(tmp_path_factory):
    """A run that evaluates a moving average."""
    config = make_tiny_config()
    workdir = tmp_path_factory.mktemp('averaged') / 'run'
    config['members']['average'] = {'rule': 'ema', 'of': 'target', 'momentum': 0.5, 'constant': True}
    config['evaluation'] |= {'member': 'average', 'every_steps': None}
    result = loop.train_and_evaluate(config | {'epochs': 1}, workdir)
    return workdir, result


@pytest.mark.slow
def test_an_average_and_its_target_are_evaluated_beside_each_other(averaged):
    workdir, result = averaged
    lines = [line for line in read_metrics(workdir) if line['part'] == 'dev']
    assert lines[0]['rsum'] == lines[0]['target/rsum']
    assert lines[1]['mean_distance'] != lines[1]['target/mean_distance']
    assert result['best']['rsum'] == max(line['rsum'] for line in lines)
    for member, prefix in (('average', ''), ('target', 'target/')):
        run = load_run(workdir, 10, member)
        report, _ = evaluate_runs([run], read_split([run], 'dev'))
        np.testing.assert_allclose(report['metrics']['rsum'], lines[1][f'{prefix}rsum'], atol=1e-3)
    assert load_run(workdir).member == 'average'


@pytest.mark.slow
def test_reports_read_the_loss_of_the_member_that_trains(averaged):
    log = read_run_log(averaged[0])
    assert len(read_points(log)['loss']) == 10


@pytest.mark.slow
def test_loss_is_the_mean_over_two_anchors(pipeline):
    members = {
        'anchor': trained(pipeline),
        'anchor_2': trained(pipeline, ('anchor',)),
        'target': trained(pipeline, ('anchor', 'anchor_2')),
    }
    states, (metrics,) = train(pipeline, 1, **members)
    batch = pipeline.batch(0)
    first, second, target = (scores_of(m.model, states[0].members[name], batch, True) for name, m in members.items())
    np.testing.assert_allclose(metrics['anchor_2/terms/boost'], boost(second, first), rtol=1e-5)
    np.testing.assert_allclose(metrics['target/terms/boost'], boost(target, first, second), rtol=1e-5)


# The scenarios, from configs and through whole runs.


def boosted(config, scenario, run=None):
    anchors = {
        'oas': {'rule': 'frozen', 'init_from': run},
        'oss': {'rule': 'gradient', 'learn_from': [], 'init_from': ''},
        'mss': {'rule': 'ema', 'of': 'target', 'momentum': 0.9},
    }
    target = {'rule': 'gradient', 'learn_from': ['anchor'], 'init_from': run or ''}
    config['members'] = {'anchor': anchors[scenario], 'target': target}
    config['terms']['boost'] = BOOST | {'loss': 'anchored.absolute_max', 'alpha': 0.5}
    return config


@pytest.mark.slow
def test_anchor_is_initialized_from_a_run_and_evaluated(tiny_config, finished, tmp_path, capsys):
    config = boosted(tiny_config, 'oas', str(finished)) | {'epochs': 1}
    loop.train_and_evaluate(config, tmp_path / 'run')
    initial = load_run(finished).variables
    assert_equal(initial, load_run(tmp_path / 'run', 10, 'anchor').variables)
    assert_changed(initial, load_run(tmp_path / 'run', 10).variables)
    assert cli.main(['eval', '--workdir', str(tmp_path / 'run'), '--member', 'anchor']) == 0
    assert 'step' in capsys.readouterr().out
    assert (tmp_path / 'run' / 'eval' / 'dev_anchor' / 'metrics.json').exists()
    with pytest.raises(UserError, match=r"has no member 'ancor', did you mean 'anchor'"):
        load_run(tmp_path / 'run', member='ancor')


@pytest.mark.slow
def test_anchor_of_another_architecture(tiny_config, finished, tmp_path):
    config = boosted(tiny_config, 'oas', str(finished))
    config['model']['embed_dim'] = 12
    config['members']['target']['init_from'] = ''
    with pytest.raises(UserError, match=r"'members.anchor.init_from': .* has another model \(model.embed_dim: 16"):
        loop.set_up(config)
    config['members']['anchor']['model'] = load_run(finished).config['model']
    setup = loop.set_up(config)
    state = parallel.put_state(setup.initial_state())
    sizes = {name: setup.members[name].model.embed_dim for name in state.members}
    assert sizes == {'anchor': 16, 'target': 12}
    _, metrics = setup.train_step(state, parallel.put_batch(setup.make_batch(0)))
    assert np.isfinite(metrics['target/terms/boost'])


@pytest.mark.slow
def test_average_is_initialized_as_its_target(tiny_config, finished):
    members = loop.set_up(boosted(tiny_config, 'mss', str(finished))).initial_state().members
    assert_equal(members['anchor'].params, load_run(finished).variables['params'])


@pytest.mark.parametrize(
    ('section', 'changes', 'removed', 'message'),
    [
        ('terms', {}, 'boost', "'members.target' has learn_from, but no term uses anchor_scores: add one"),
        (
            'evaluation',
            {'member': 'x'},
            '',
            r"'evaluation.member' is 'x', not one of \['anchor', 'target'\], which chang",
        ),
        ('members', {'target': {}}, '', "'terms.boost' needs anchor_scores: add an anchor model"),
        (
            'members',
            {'other': {'rule': 'frozen', 'init_from': 'run'}},
            '',
            "'members.other' is set but unused: it does",
        ),
        ('members', {'anchor': {'rule': 'frozen', 'init_from': 'nowhere'}}, '', 'nowhere is not a run directory'),
    ],
)
def test_members_without_a_fitting_term_are_refused(tiny_config, section, changes, removed, message):
    config = boosted(tiny_config, 'oss')
    config[section] |= changes
    config[section].pop(removed, None)
    with pytest.raises(UserError, match=message):
        loop.set_up(config)
