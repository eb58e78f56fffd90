import dataclasses
import json

import chex
import jax
import numpy as np
import pytest

from jitm.commands.cli import main
from jitm.errors import UserError
from jitm.runs.checkpoint import Checkpoints
from jitm.runs.run import describe_run, load_run
from jitm.training import averages
from jitm.training.weights import write_weights


def changed(run, seed, scale=0.02, **values):
    """A run with noise in its variables."""
    rng = np.random.default_rng(seed)
    noisy = jax.tree.map(lambda leaf: leaf + scale * rng.normal(size=leaf.shape).astype(np.float32), run.variables)
    return dataclasses.replace(run, variables=noisy, **values)


@pytest.fixture(scope='module')
def runs(finished, tmp_path_factory):
    """A finished run, and the folders of two that differ in their weights."""
    run = load_run(finished)
    folder = tmp_path_factory.mktemp('averaged')
    for seed in (1, 2):
        noisy = changed(run, seed)
        write_weights(describe_run(noisy), noisy.variables, folder / f'seed{seed}', 'an averaged run')
    return [str(finished), str(folder / 'seed1'), str(folder / 'seed2')]


@pytest.mark.slow
def test_wise_ft_interpolates_all_variables(runs, tmp_path, capsys):
    assert main(['average', *runs[:2], '--weights', '0.25,0.75', '--out', str(tmp_path / 'run')]) == 0
    first, second = (load_run(run).variables for run in runs[:2])
    got = load_run(tmp_path / 'run')
    assert got.variables.keys() == {'params', 'batch_stats'}
    want = jax.tree.map(lambda a, b: 0.25 * np.float64(a) + 0.75 * np.float64(b), first, second)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9), got.variables, want)
    assert f'0.75         {runs[1]}' in capsys.readouterr().out
    assert main(['eval', '--workdir', str(tmp_path / 'run')]) == 0
    assert json.loads((tmp_path / 'run' / 'eval' / 'dev' / 'metrics.json').read_text())['metrics']['rsum'] > 0


def test_a_step_is_averaged(finished, tmp_path, capsys):
    last = Checkpoints(finished).steps()[-1]
    flags = '--member', 'target', '--step', str(last), '--out', str(tmp_path / 'run')
    assert main(['average', str(finished), str(finished), *flags]) == 0
    assert f'{finished}, step {last}, target' in capsys.readouterr().out
    chex.assert_trees_all_equal(load_run(tmp_path / 'run').variables, load_run(finished, last).variables)


def test_the_average_of_another_member_is_evaluated(finished, tmp_path):
    run = load_run(finished)
    members = run.config['members'] | {'mean': {'rule': 'ema', 'of': 'target', 'momentum': 0.9}}
    second = changed(run, 1, member='mean', config=run.config | {'members': members})
    averages.write_average([run, second], [0.0, 1.0], tmp_path / 'run')
    got = load_run(tmp_path / 'run')
    assert got.member == 'mean'
    chex.assert_trees_all_equal(got.variables, second.variables)


def test_the_average_of_equal_runs_is_the_run(finished):
    run = load_run(finished)
    mean = averages.average([run, run], [3.0, 1.0])
    jax.tree.map(np.testing.assert_array_equal, mean.variables, run.variables)


def test_a_greedy_soup_keeps_only_runs_that_raise_the_score():
    """A run is a number, and the score of a mean is minus its distance to 2."""

    def score(run):
        return -abs(float(run.variables['params']['w']) - 2)

    runs = [Number({'params': {'w': np.float32(value)}}) for value in (5, 1, 2.5, 1.7, 2.1)]
    chosen, best = averages.choose_greedily(runs, score)
    # 2.1 is the best; with 1.7 the mean is 1.9, no better; with 2.5 worse; with 1 worse; with 5 worse.
    assert [float(run.variables['params']['w']) for run in chosen] == [pytest.approx(2.1)]
    np.testing.assert_allclose(best, -0.1, rtol=1e-5)
    runs[3] = Number({'params': {'w': np.float32(1.8)}})
    chosen, best = averages.choose_greedily(runs, score)
    assert [float(run.variables['params']['w']) for run in chosen] == [pytest.approx(2.1), pytest.approx(1.8)]
    np.testing.assert_allclose(best, -0.05, rtol=1e-5)


@dataclasses.dataclass
class Number:
    """A run of one parameter."""

    variables: dict


def test_a_greedy_soup_is_written(runs, tmp_path, capsys):
    assert main(['average', *runs, '--greedy', '--split', 'dev', '--out', str(tmp_path / 'run')]) == 0
    assert ' of 3 runs, rsum ' in capsys.readouterr().out
    assert load_run(tmp_path / 'run').step == 0


def test_other_models_and_vocabularies_are_refused(finished, tmp_path, capsys):
    run = load_run(finished)
    config = run.config | {'model': run.config['model'] | {'embed_dim': 8}}
    params = jax.tree.map(lambda leaf: leaf[..., :1], run.variables)
    vocabulary = type(run.vocabulary).build(['a red ring'], 1)
    for name, second, message in (
        ('model', changed(run, 0, config=config), 'has another model than .* (model.embed_dim: 16 -> 8): average runs'),
        ('shapes', dataclasses.replace(run, variables=params), 'has another model than .* (its parameters have other'),
        ('words', changed(run, 0, vocabulary=vocabulary), 'has another vocabulary than'),
    ):
        described = describe_run(second)
        write_weights(described, second.variables, tmp_path / name, 'an averaged run')
        assert main(['average', str(finished), str(tmp_path / name), '--out', str(tmp_path / 'run')]) == 2, name
        error = capsys.readouterr().err
        assert all(part in error for part in message.split('.*')), error


def test_heads_of_other_encoders_are_refused_and_other_data_warned_of(finished, caplog):
    """An encoder is another one by its parameters, not by its folder; unknown data may be the same."""
    run = load_run(finished)
    encoded_by = {'network': 'CLIP()', 'parameters': 'a', 'origin': {'workdir': '/a'}, 'texts': {'vocabulary': 'b'}}
    head = dataclasses.replace(run, encoded_by=encoded_by)
    moved = dataclasses.replace(run, encoded_by=encoded_by | {'origin': {'workdir': '/b'}})
    averages.check_alike([head, moved, run])
    for change in ({'parameters': 'c'}, {'texts': {'vocabulary': 'c'}}):
        with pytest.raises(UserError, match=r'was trained on features or tokens of another network than .*encoded_by'):
            averages.check_alike([head, dataclasses.replace(run, encoded_by=encoded_by | change)])
    averages.check_alike([run, dataclasses.replace(run, data_hash='')])
    assert not caplog.text
    averages.check_alike([run, dataclasses.replace(run, data_hash='0')])
    assert caplog.text.count('was trained on other data than') == 1
