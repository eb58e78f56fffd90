"""The drills in a small form; `python -m tests.drills` runs the long one."""

import random
import shutil

import pytest
from absl import flags

from jitm.commands import cli
from jitm.commands.flags import PathParser
from jitm.errors import UserError
from tests.conftest import shared_folder
from tests.drills import disks, features, flips, foreign, inputs, kills, photos, processes, runs


@pytest.fixture(scope='session')
def base(tmp_path_factory):
    """A folder with data, a config file and a run, which is not changed."""
    return shared_folder(tmp_path_factory, 'drills', runs.write_base)


def refuse(rows, base, folder):
    problems = {row.name: inputs.check(row, base, folder) for row in rows}
    assert not {name: problem for name, problem in problems.items() if problem}


@pytest.mark.slow
def test_tables_are_long_and_without_repetition(base):
    for rows, least in ((inputs.rows(base), 1000), ([*photos.rows()], 70)):
        assert len({row.name for row in rows}) == len(rows) >= least


@pytest.mark.slow
def test_wrong_inputs_are_one_sentence(base, tmp_path):
    refuse((row for row in inputs.rows(base) if not row.job), base, tmp_path / 'copy')


@pytest.mark.slow
def test_wrong_photos_are_one_sentence(tmp_path):
    photos.write_base(tmp_path / 'base')
    refuse(photos.rows(), tmp_path / 'base', tmp_path / 'copy')


def test_every_flag_of_a_path_is_tried_on_foreign_files():
    tried = {*foreign.FOLDERS.values(), *foreign.FILES.values(), *foreign.READ.values()}
    for command in cli.COMMANDS:
        values = flags.FlagValues()
        for name, define in cli.load_usage(command).FLAGS.items():
            define(name, flag_values=values)
        for name in (name for name in values if isinstance(values[name].parser, PathParser)):
            with pytest.raises(UserError, match=f"--{name} is 'gs://bucket/x', but jitm reads and writes files"):
                values(['jitm', f'--{name}=gs://bucket/x'])
            assert any(
                argv[0] == command and argv[at] == f'--{name}' and argv[at + 1].startswith(foreign.FOLDER)
                for argv in tried
                for at in range(len(argv) - 1)
            ), f'jitm {command} --{name}'


@pytest.mark.slow
def test_processes_that_cannot_be_one_job_are_refused(base, tmp_path):
    refuse(inputs.job_rows(), base, tmp_path / 'copy')


@pytest.mark.slow
def test_wrong_uses_of_encoded_photos_are_one_sentence(tmp_path):
    features.write_base(tmp_path / 'base')
    refuse(features.rows(), tmp_path / 'base', tmp_path / 'copy')


@pytest.mark.slow
def test_killed_commands_resume_exactly(base, tmp_path):
    drill = kills.Drill(base, tmp_path / 'kills')
    rng = random.Random(0)
    for name in ('plain', 'aoq', 'mining', 'scoring', 'publishing', 'importing'):
        drill.survives(name, rng, max_kills=1)


@pytest.mark.slow
def test_damaged_runs_are_never_silently_wrong(base, tmp_path):
    drill = flips.Drill(base, tmp_path / 'flips')
    outcomes = {case: drill.outcome(*case) for case in flips.sample(base, random.Random(0), 20)}
    assert not {case: outcome for case, outcome in outcomes.items() if outcome.startswith(flips.WRONG)}


@pytest.mark.slow
def test_full_disk_is_one_sentence_and_resumes(base, tmp_path):
    with disks.small_disk(tmp_path / 'disk', 8192) as reason:
        if reason:
            pytest.skip(reason)
        for room, argv in ((0, runs.TRAIN), (300, runs.TRAIN), (0, runs.EVALUATE), (0, runs.MINE)):
            assert disks.check(base, tmp_path / 'disk', room, argv) is None
            shutil.rmtree(tmp_path / 'disk' / 'work')


@pytest.mark.slow
def test_processes_train_to_the_bytes_of_one(tmp_path):
    """`python -m tests.drills --only processes` tries all systems by 2, 3 and 4 processes of 1 and 2 devices."""
    processes.Drill(tmp_path / 'processes').check('AOQ', 2, 2)
