"""`jitm train` as several processes: signals, ends, and what they refuse to start with."""

import signal
import time

import pytest

from jitm.errors import EXIT_INTERRUPTED, EXIT_USER_ERROR
from jitm.runs.checkpoint import Checkpoints
from jitm.runs.log import read_metrics
from tests.conftest import TINY, TINY_FILE
from tests.test_parallel import ends, started

pytestmark = pytest.mark.slow
LOST = 'is lost: it printed why it ended, was killed or is out of reach; so this process ends too, and the same'
SCRIPT = """
import sys
from jitm.__main__ import main
{patch}
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def train(tmp_path):
    """The command of a run of 5,000 steps, of which each is logged."""
    path = tmp_path / 'config.py'
    path.write_text(TINY_FILE.format(tiny=TINY | {'epochs': 500}))
    return 'train.py', '--config', path, '--workdir', tmp_path / 'run'


def wait_for_steps(job, workdir, count):
    while not (workdir / 'metrics.jsonl').exists() or len(read_metrics(workdir)) < count:
        assert all(process.poll() is None for process in job), ends(job)
        time.sleep(0.05)


def test_processes_stop_together_and_resume(train, tmp_path):
    """SIGTERM to one process is a stop of all; SIGKILL of any ends the others in one line. Each time they resume."""
    workdir = tmp_path / 'run'
    for count, number, target, message in (
        (5, signal.SIGTERM, 1, 'stopped and saved at step'),
        (10, signal.SIGKILL, 0, f'process 0 of 4 {LOST}'),
        (15, signal.SIGKILL, 2, f'process 2 of 4 {LOST}'),
    ):
        with started(*[train] * 4) as job:
            wait_for_steps(job, workdir, count)
            job[target].send_signal(number)
            codes, _, errors = ends(job)
        assert codes.pop(target) == (EXIT_INTERRUPTED if number == signal.SIGTERM else -signal.SIGKILL)
        del errors[target]
        assert codes == [EXIT_INTERRUPTED] * 3, errors
        assert all(error.startswith(message) for error in errors)
        assert [len(error.splitlines()) for error in errors] == [1] * 3
    steps = [line['step'] for line in read_metrics(workdir) if line['part'] == 'train']
    assert steps == list(range(1, len(steps) + 1))


def test_second_signal_ends_all_processes(train, tmp_path):
    with started(train, train) as job:
        wait_for_steps(job, tmp_path / 'run', 5)
        job[1].send_signal(signal.SIGSTOP)  # so that no process can finish its step
        job[0].send_signal(signal.SIGINT)
        assert job[0].stderr.readline().startswith('SIGINT: the current step is finished and saved')
        job[0].send_signal(signal.SIGINT)
        assert job[0].wait() == EXIT_INTERRUPTED
        job[1].send_signal(signal.SIGCONT)
        codes, _, errors = ends(job)
    assert codes == [EXIT_INTERRUPTED] * 2
    assert errors[0] == 'stopped at once; the same command resumes from the last checkpoint\n'
    assert errors[1].startswith(f'process 0 of 2 {LOST}')
    assert len(errors[1].splitlines()) == 1


def test_processes_of_different_runs_are_refused(train, tmp_path):
    with started(train, (*train, '--config.seed=3', '--config.terms.ranking.margin=0.5')) as job:
        codes, _, errors = ends(job)
    assert codes == [EXIT_USER_ERROR] * 2
    assert (
        errors
        == [
            "error: 'seed' is 0 in process 0 and 3 in process 1; 'terms.ranking.margin' is 0.2 in process 0 and 0.5 in "
            'process 1: start all processes with the same config and data\n'
        ]
        * 2
    )
    assert not (tmp_path / 'run').exists()


def test_processes_without_a_shared_workdir_are_refused(train, tmp_path):
    script = '-c', SCRIPT.format(patch='from jitm import agreement; agreement.VISIBLE = 1')
    first = *script, 'train', *train[1:]
    with started(first, (*first, '--workdir', tmp_path / 'elsewhere')) as job:
        codes, _, errors = ends(job)
    assert codes == [EXIT_USER_ERROR] * 2
    refusal = f'{tmp_path / "elsewhere"} is not the workdir of process 0; give all processes one shared folder\n'
    assert errors == [f'error: process 1 cannot start: {refusal}', f'error: {refusal}']
    assert not (tmp_path / 'run').exists()
    assert not (tmp_path / 'elsewhere').exists()


@pytest.mark.parametrize(
    ('error', 'code', 'message'),
    [
        ("UserError('there is no room')", EXIT_USER_ERROR, 'error: there is no room\n'),
        ("ValueError('a mistake')", 1, 'ValueError: a mistake\n'),
    ],
)
def test_process_that_fails_alone_ends_the_other(train, tmp_path, error, code, message):
    """While the other waits for it to save a checkpoint."""
    patch = f"""
from jitm.errors import UserError
from jitm.runs import checkpoint

def fail(folder):
    raise {error}

checkpoint.write_manifest = fail
"""
    with started(('-c', SCRIPT.format(patch=patch), 'train', *train[1:]), train) as job:
        codes, _, errors = ends(job)
    assert codes == [code, EXIT_INTERRUPTED]
    assert errors[0].endswith(message)
    assert errors[1].startswith(f'process 0 of 2 {LOST}')
    assert len(errors[1].splitlines()) == 1
    assert not Checkpoints(tmp_path / 'run').whole_steps()
