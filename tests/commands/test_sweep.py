"""Sweeps: their runs, the runs they skip, how they stop and what they refuse."""

import itertools
import json
import shutil

import pytest

from jitm.commands import cli, sweep
from jitm.errors import EXIT_INTERRUPTED, NotFiniteError, UserError
from jitm.runs.interrupt import StopRequest
from jitm.training import stages


def read_config(*argv):
    return cli._parse(cli.load_usage('sweep'), [*argv, '--workdir=x'])[0].config


def test_settings_are_the_product_of_the_values(tiny_config_file):
    config = read_config('--seeds', '0,1', f'--config={tiny_config_file}', '--config.epochs=9')
    sweeps = ['terms.ranking.margin=.1,2', 'model.image_pooling=mean,max', 'vocabulary.path=a/b', 'seed=7']
    configs = sweep.settings(config, sweeps)
    assert config['seed'] == 0
    assert [*configs] == [
        f'terms.ranking.margin={margin}_model.image_pooling={name}_vocabulary.path=a%2Fb_seed=7'
        for margin in ('0.1', '2.0')
        for name in ('mean', 'max')
    ]
    for config, (margin, name) in zip(
        configs.values(), [(0.1, 'mean'), (0.1, 'max'), (2.0, 'mean'), (2.0, 'max')], strict=True
    ):
        assert (config['terms']['ranking']['margin'], config['model']['image_pooling']) == (margin, name)
        assert (config['vocabulary']['path'], config['seed'], config['epochs']) == ('a/b', 7, 9)
        assert config['batch_size'] == 8


def test_all_runs_are_checked_before_the_first_starts(tiny_config, tmp_path):
    wrong = tiny_config | {'batch_size': 1000}
    with pytest.raises(UserError, match='seed=1: scenes/train has 80 texts, fewer than batch_size 1000'):
        sweep.check({'seed=0': tiny_config, 'seed=1': wrong}, tmp_path)
    assert not list(tmp_path.iterdir())
    (tmp_path / 'config.json').write_text('{}')
    with pytest.raises(UserError, match='is a run directory'):
        sweep.check({'seed=0': tiny_config}, tmp_path)


def test_a_finished_run_has_its_last_checkpoint(finished, tiny_config, tmp_path):
    workdir = finished
    assert sweep.is_finished(tiny_config, workdir)
    assert not sweep.is_finished(tiny_config | {'epochs': 4}, workdir)
    assert not sweep.is_finished(tiny_config, tmp_path)
    lines = (workdir / 'metrics.jsonl').read_text()
    (tmp_path / 'metrics.jsonl').write_text(lines)
    (tmp_path / 'checkpoints').mkdir()
    assert not sweep.is_finished(tiny_config, tmp_path)  # killed before the checkpoint was whole
    (tmp_path / 'metrics.jsonl').write_text(lines + '{"step": 3')
    assert not sweep.is_finished(tiny_config, tmp_path)


def test_other_runs_continue_when_one_is_not_finite(tiny_config, tmp_path, monkeypatch, capsys):
    trained = []

    def train(config, workdir, report, accept_changed_code):
        trained.append(workdir.name)
        if config['seed'] == 1:
            raise NotFiniteError('the loss was not finite')

    monkeypatch.setattr(stages, 'train', train)
    assert sweep.train({f'seed={n}': tiny_config | {'seed': n} for n in range(3)}, tmp_path) == ['seed=1']
    assert trained == ['seed=0', 'seed=1', 'seed=2']
    assert 'seed=1: the loss was not finite' in capsys.readouterr().err


@pytest.mark.slow
def test_a_stopped_sweep_resumes_and_ends_with_a_table(finished, tiny_config_file, tmp_path, monkeypatch, capsys):
    """Stopped in its second run; the first is the run of the same config that was never stopped."""
    folder = tmp_path / 'sweep'
    start = ['sweep', '--config', str(tiny_config_file), '--workdir', str(folder), '--sweep', 'data.seed=0,1']
    first, second = (folder / f'data.seed={n}_seed=0' for n in (0, 1))
    shutil.copytree(finished, first)
    read = itertools.count(1)
    fifth = property(lambda _: next(read) == 5, lambda *_: None)
    with monkeypatch.context() as patch:
        patch.setattr(StopRequest, 'requested', fifth, raising=False)
        assert cli.main(start) == EXIT_INTERRUPTED
    output, error = capsys.readouterr()
    assert error.splitlines()[-1].startswith('stopped and saved at step')
    assert 'rsum after epoch' not in output
    begun = (first / 'metrics.jsonl').stat().st_mtime_ns

    assert cli.main(start) == 0
    output = capsys.readouterr().out
    assert 'run 1 of 2: data.seed=0_seed=0, finished before\nrun 2 of 2: data.seed=1_seed=0\n' in output
    assert (first / 'metrics.jsonl').stat().st_mtime_ns == begun
    assert json.loads((second / 'config.json').read_text())['data']['seed'] == 1
    for words in ('| seed=0 | ', '| seed=1 | ', '| rsum | difference | MD |', '| rsum after epoch | 0 | 1 |'):
        assert words in output
