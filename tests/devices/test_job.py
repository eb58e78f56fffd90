"""Which processes are those of a job, and what ends one that waits in vain."""

import os
import threading

import jax
import pytest
from jax._src import xla_bridge

from jitm.devices import job
from jitm.errors import EXIT_USER_ERROR, UserError

SRUN = {'SLURM_JOB_ID': '4097', 'SLURM_STEP_NODELIST': 'a[1-2]', 'SLURM_PROCID': '0', 'SLURM_LOCALID': '0'}
MPIRUN = {'OMPI_COMM_WORLD_SIZE': '2', 'OMPI_COMM_WORLD_RANK': '0', 'OMPI_COMM_WORLD_LOCAL_RANK': '0'}
KUBERNETES = {'JOB_COMPLETION_INDEX': '0'}
LONE = {
    'no launcher': {},
    'the script of sbatch': {'SLURM_JOB_ID': '1', 'SLURM_NTASKS': '4', 'SLURM_PROCID': '0', 'SLURM_LOCALID': '0'},
    'a shell of salloc': SRUN | {'SLURM_NTASKS': '4', 'SLURM_STEP_NUM_TASKS': '1'},
    'a variable that is empty': {'SLURM_STEP_NUM_TASKS': ''},
    'mpirun -n 1': MPIRUN | {'OMPI_COMM_WORLD_SIZE': '1'},
}
SEVERAL = {
    'srun -n 2': SRUN | {'SLURM_NTASKS': '2', 'SLURM_STEP_NUM_TASKS': '2'},
    'mpirun -n 2': MPIRUN,
    'mpirun on nodes that SLURM has started': MPIRUN | {'SLURM_STEP_NUM_TASKS': '1'},
    'an indexed job of Kubernetes': KUBERNETES,
}


@pytest.fixture
def started(monkeypatch):
    """A function that sets the variables of a launcher, and returns the arguments with which jax is started then."""
    calls = []

    def initialize(*words, local_device_ids, **options):
        assert local_device_ids == []  # all that the process sees
        calls.append(words)

    monkeypatch.setattr(jax.distributed, 'initialize', initialize)
    monkeypatch.setattr(jax.config, 'update', lambda *words: None)

    def join(variables, *words):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        job.join(*words)
        return calls

    return join


@pytest.mark.parametrize('variables', LONE.values(), ids=LONE)
def test_lone_process_does_not_wait(started, variables):
    assert started(variables) == []
    assert started(variables, 'host:1', 2, 0) == [('host:1', 2, 0)]


@pytest.mark.parametrize('variables', SEVERAL.values(), ids=SEVERAL)
def test_jax_finds_the_processes_of_launchers(started, variables):
    assert started(variables) == [(None, None, None)]


@pytest.mark.parametrize('error', [None, ConnectionError('metadata.google.internal')])
def test_machine_that_belongs_to_no_pod_is_alone(monkeypatch, error):
    """As jax finds none; TPUs in no cloud have no server to ask."""

    def fail(*words, **options):
        raise error

    if error:
        monkeypatch.setattr(jax.distributed, 'initialize', fail)
    monkeypatch.setattr(xla_bridge, 'backends_are_initialized', lambda: False)
    monkeypatch.setenv('JOB_COMPLETION_INDEX', '0')
    job.join()
    assert not jax.distributed.is_initialized()


def test_launcher_that_jax_does_not_know_is_refused(monkeypatch):
    """Open MPI 5, which jax 0.10 does not know, and later versions by a package that is not installed."""
    monkeypatch.setattr(xla_bridge, 'backends_are_initialized', lambda: False)
    for name, value in MPIRUN.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=r'jax does not start the processes of this job: .*; give all of them --coord'):
        job.join()


def test_process_that_waits_in_vain_is_ended(monkeypatch, capsys):
    ended = threading.Event()
    codes = []
    monkeypatch.setattr(os, '_exit', lambda code: (codes.append(code), ended.set()))
    monkeypatch.setattr(jax.distributed, 'initialize', lambda *words, **options: ended.wait())
    monkeypatch.setattr(job, 'JOINING', 0)
    job.join('host:1', 2, 0)
    assert codes == [EXIT_USER_ERROR]
    assert capsys.readouterr().err.startswith('error: the processes of this job have not all joined within 0 s; start')
