"""`jitm train` as two processes: signals, ends, and what they refuse to start with."""

import os
import signal
import subprocess
import sys

import pytest

from jitm.errors import EXIT_INTERRUPTED, EXIT_USER_ERROR
from jitm.runs.checkpoint import Checkpoints
from jitm.runs.log import read_metrics
from tests.conftest import environment
from tests.same import assert_same_training
from tests.support.processes import ends, started

pytestmark = pytest.mark.slow
SCRIPT = """
import os, sys
from jitm.devices import agreement, job
from jitm.__main__ import main
from jitm.errors import UserError
from jitm.runs import checkpoint
from jitm.training import loop

def signal_at(step, number):
    log = loop._Loop._log
    def log_and_signal(self, state, done, values):
        log(self, state, done, values)
        if done == step:
            os.kill(os.getpid(), number)
    loop._Loop._log = log_and_signal

def fail(folder):
    raise UserError('there is no room')

{patch}
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def train(tiny_config_file, tmp_path):
    """The arguments of a run of 30 steps, of which each is logged."""
    return 'train', '--config', tiny_config_file, '--workdir', tmp_path / 'run'


def patched(patch, words):
    return '-c', SCRIPT.format(patch=patch), *words


def test_processes_stop_together_and_resume_to_the_bits_of_one(train, tmp_path):
    """SIGTERM to one process is a stop of all; SIGKILL aborts the others; srun and flags start the same job."""
    workdir = tmp_path / 'run'
    signalled = patched(f'signal_at(5, {signal.SIGTERM:d})', train)
    with started(('train.py', *train[1:]), signalled) as job:
        codes, _, errors = ends(job)
    assert codes == [EXIT_INTERRUPTED] * 2, errors
    assert errors[0].startswith('stopped and saved at step')
    assert errors[0] == errors[1].partition('\n')[2]
    assert 5 <= read_metrics(workdir)[-1]['step'] < 30

    killed = patched(f'signal_at(20, {signal.SIGKILL:d})', train)
    with started(('train.py', *train[1:]), killed) as job:
        codes, _, errors = ends(job)
    assert codes == [-signal.SIGABRT, -signal.SIGKILL], errors
    assert 'heartbeat' in errors[0]

    variables = {'SLURM_STEP_NODELIST': 'localhost', 'SLURM_JOB_ID': str(os.getpid()), 'SLURM_NTASKS': '2'}
    variables |= {'SLURM_STEP_NUM_TASKS': '2', 'SLURM_LOCALID': '0'}
    command = [sys.executable, '-m', 'jitm', *map(str, train)]
    pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE, 'text': True}
    job = [subprocess.Popen(command, env=environment(**variables, SLURM_PROCID=n), **pipes) for n in '01']
    codes, outputs, errors = ends(job)
    assert codes == [0, 0], errors
    assert ['rsum' in output for output in outputs] == [True, False]

    command[-1] = str(tmp_path / 'one')
    subprocess.run(command, env=environment(JAX_NUM_CPU_DEVICES='2'), check=True)
    assert_same_training(workdir, tmp_path / 'one')


def test_processes_without_a_shared_workdir_are_refused(train, tmp_path):
    first = patched('agreement.VISIBLE = 1', train)
    with started(first, (*first, '--workdir', tmp_path / 'elsewhere')) as job:
        codes, _, errors = ends(job)
    assert codes == [EXIT_USER_ERROR] * 2
    refusal = f'{tmp_path / "elsewhere"} is not the workdir of process 0; give all processes one shared folder\n'
    assert errors == [f'error: process 1 cannot start: {refusal}', f'error: {refusal}']
    assert not (tmp_path / 'run').exists()
    assert not (tmp_path / 'elsewhere').exists()


def test_process_that_fails_alone_ends_the_other(train, tmp_path):
    """While the other waits for it to save a checkpoint."""
    first = patched('job.LEAVING, checkpoint.write_manifest = 1, fail', train)
    with started(first, ('train.py', *train[1:])) as job:
        codes, _, errors = ends(job)
    assert codes == [EXIT_USER_ERROR, -signal.SIGABRT]
    assert errors[0].startswith('error: there is no room\n')
    assert not Checkpoints(tmp_path / 'run').whole_steps()
