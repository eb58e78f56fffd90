"""`jitm train --dry_run`: what it says, and that it writes nothing."""

import jax
import pytest

from jitm.commands import cli
from jitm.config import schema
from jitm.errors import UserError
from jitm.training import stages
from jitm.training.setup import set_up


def lines_of(output):
    """Returns the lines of the only stage, by their first word."""
    _, described = output.split('\nstage 1 of 1\n')
    return dict(line.split(maxsplit=1) for line in described.splitlines())


@pytest.mark.slow
def test_a_dry_run_counts_data_and_parameters_and_writes_nothing(tiny_config, tiny_config_file, tmp_path, capsys):
    workdir = tmp_path / 'run'
    argv = ['train', '--config', str(tiny_config_file), '--workdir', str(workdir), '--dry_run', '--config.epochs=4']
    assert cli.main(argv) == 0
    output = capsys.readouterr().out
    setup = set_up(tiny_config)
    params = setup.random_state().members['target'].params
    said = lines_of(output)
    assert '\nepochs: 4\n' in output
    assert said['training'] == '16 images, 80 captions (scenes/train)'
    assert said['steps'] == '4 epochs of 10, 40 in all'
    assert said['parameters'] == f'{sum(x.size for x in jax.tree.leaves(params)):,} of target'
    assert float(said['memory'].split()[0]) > 0
    assert not workdir.exists()


@pytest.mark.slow
def test_a_dry_run_describes_both_stages(tiny_config, tmp_path):
    first = {key: value for key, value in tiny_config.items() if key not in (*schema.SHARED, 'stages')}
    config = tiny_config | {'stages': {'first': first, 'top_h_texts': 0, 'top_h_images': 0, 'fine_tune': True}}
    setups = stages.check(config | {'epochs': 7}, tmp_path / 'run')
    assert [setup.plan.epochs for setup in setups] == [tiny_config['epochs'], 7]
    assert not (tmp_path / 'run').exists()


def test_a_dry_run_refuses_what_training_refuses(tiny_config, tmp_path):
    with pytest.raises(UserError, match='fewer than batch_size 1000'):
        stages.check(tiny_config | {'batch_size': 1000}, tmp_path)
