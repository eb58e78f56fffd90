"""Processes of a job join, and end together."""

import asyncio
import concurrent.futures
import queue
import signal
import socket
import subprocess
import sys
import threading

import pytest
from jax._src.clusters import cloud_tpu_cluster

from jitm import place, processes
from jitm.errors import EXIT_INTERRUPTED, UserError
from jitm.place import Place, slurm_place, tpu_place
from jitm.processes import Job
from tests.conftest import environment
from tests.test_parallel import ends, free_port

STEP = {'SLURM_JOB_ID': '4097', 'SLURM_STEP_ID': '0', 'SLURM_STEP_NUM_TASKS': '4', 'SLURM_PROCID': '2'}


@pytest.mark.parametrize(
    ('nodes', 'host'),
    [
        ('node7', 'node7'),
        ('a,b', 'a'),
        ('node[001-004]', 'node001'),
        ('node[007,010-012],m1', 'node007'),
        ('r[2-3]n[5,7]-ib,m1', 'r2n5-ib'),
    ],
)
def test_tasks_of_a_step_of_slurm_form_a_job(nodes, host):
    assert slurm_place(STEP | {'SLURM_STEP_NODELIST': nodes}) == Place(f'{host}:61441', 4, 2)


@pytest.mark.parametrize(
    'variables',
    [
        {},
        {'SLURM_JOB_ID': '1', 'SLURM_NTASKS': '4', 'SLURM_PROCID': '0'},  # the script of sbatch, or a shell of salloc
        {'SLURM_JOB_ID': '1', 'SLURM_NTASKS': '4', 'SLURM_STEP_NUM_TASKS': '1', 'SLURM_STEP_NODELIST': 'a'},
    ],
)
def test_other_processes_of_slurm_are_alone(variables):
    assert slurm_place(variables) is None


def test_first_task_of_slurm_that_is_not_on_the_first_node_says_so():
    """As in a job whose first component has a later node; the variables are those of SLURM 22.05."""
    step = STEP | {'SLURM_STEP_NODELIST': 'a[01-02],b7', 'SLURMD_NODENAME': 'b7'}
    assert slurm_place(step) == Place('a01:61441', 4, 2)
    with pytest.raises(UserError, match=r'is on b7, not on the first node of a\[01-02\],b7; give all .*=b7:61441'):
        slurm_place(step | {'SLURM_PROCID': '0'})


@pytest.fixture
def pod(monkeypatch):
    """Makes this machine a host with TPUs, of a Google cloud whose names all have addresses.

    Returns:
      A function that sets the variables of a host, and what the server of the cloud knows of it.
    """
    monkeypatch.setattr(cloud_tpu_cluster, 'running_in_cloud_tpu_vm', True)
    monkeypatch.setattr(cloud_tpu_cluster.socket, 'gethostbyname', lambda host: host)
    monkeypatch.delenv('TPU_SKIP_MDS_QUERY', raising=False)

    def be(variables, known):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(cloud_tpu_cluster, 'get_metadata', lambda key: known.get(key, ('', 404)))

    return be


@pytest.mark.parametrize(
    ('variables', 'place'),
    [
        ({'TPU_WORKER_HOSTNAMES': 'a,b,c'}, Place('a:8482', 3, 1)),
        ({'TPU_PROCESS_ADDRESSES': 'a:8471,b:8471', 'JAX_COORDINATOR_PORT': '6400'}, Place('a:6400', 2, 1)),
        ({'TPU_WORKER_HOSTNAMES': 'a'}, None),
        (  # the second of two slices
            {
                'TPU_WORKER_HOSTNAMES': 'c,d',
                'MEGASCALE_NUM_SLICES': '2',
                'MEGASCALE_SLICE_ID': '1',
                'MEGASCALE_COORDINATOR_ADDRESS': 'a:8080',
            },
            Place('a:8482', 4, 3),
        ),
    ],
)
def test_hosts_of_a_pod_of_kubernetes_form_a_job(pod, monkeypatch, variables, place):
    pod(variables | {'TPU_WORKER_ID': '1'}, {})
    assert tpu_place() == place
    monkeypatch.setattr(cloud_tpu_cluster, 'running_in_cloud_tpu_vm', False)
    assert tpu_place() is None


@pytest.mark.parametrize(
    ('endpoints', 'place'),
    [('x:y:10.0.0.2,x:y:10.0.0.3', Place('10.0.0.2:8482', 2, 1)), ('a,b,c,d', Place('a:8482', 4, 1)), ('a', None)],
)
def test_hosts_of_a_pod_of_virtual_machines_form_a_job(pod, endpoints, place):
    pod({}, {'agent-worker-number': ('1', 200), 'worker-network-endpoints': (endpoints, 200)})
    assert tpu_place() == place


def test_pod_without_the_address_of_its_first_host_is_refused(pod, monkeypatch):
    def unknown(host):
        raise socket.gaierror

    pod({'TPU_WORKER_HOSTNAMES': 'a,b', 'TPU_WORKER_ID': '1'}, {})
    monkeypatch.setattr(cloud_tpu_cluster.socket, 'gethostbyname', unknown)
    monkeypatch.setattr(cloud_tpu_cluster.time, 'sleep', lambda seconds: None)
    monkeypatch.setattr(place, 'JOINING', 0.1)
    with pytest.raises(UserError, match=r'address a of host 0 of the TPU pod within 0.1 s; start the hosts'):
        tpu_place()


def test_machine_with_tpus_in_no_cloud_is_alone(monkeypatch):
    monkeypatch.setattr(cloud_tpu_cluster, 'running_in_cloud_tpu_vm', True)
    monkeypatch.delenv('TPU_SKIP_MDS_QUERY', raising=False)
    monkeypatch.setenv('GCE_METADATA_IP', f'localhost:{free_port()}')
    assert tpu_place() is None


@pytest.fixture
def start(monkeypatch):
    """Starts processes of a job in threads: their number, whose results or errors are given in order.

    Yields:
      A function of the places and, if they differ, the versions.
    """
    monkeypatch.setattr(processes, 'GRACE', 0.2)
    with concurrent.futures.ThreadPoolExecutor() as pool:

        def run(*places, versions=None):
            stopped = [queue.Queue() for _ in places]
            versions = versions or ['jitm 1'] * len(places)
            jobs = [
                pool.submit(Job, place, version, sentences.put)
                for place, version, sentences in zip(places, versions, stopped, strict=True)
            ]
            return [job.exception() or job.result() for job in jobs], stopped

        yield run


def places(count):
    coordinator = f'localhost:{free_port()}'
    return [Place(coordinator, count, index) for index in range(count)]


def echo(port):
    """Answers one connection with the bytes that it sends, and closes it after ten."""
    server = socket.create_server((processes.LOOPBACK, port))

    def serve():
        with server, server.accept()[0] as connection:
            received = b''
            while len(received) < 10:
                received += connection.recv(10)
            connection.sendall(received[::-1])

    threading.Thread(target=serve, daemon=True).start()


def test_service_is_reached_through_process_0(start):
    jobs, stopped = start(*places(2))
    echo(jobs[0].service)
    with socket.create_connection((processes.LOOPBACK, jobs[1].service)) as client:
        client.sendall(b'0123456789')
        assert client.recv(10) == b'9876543210'
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):  # the end of the service is kept from it
            client.recv(1)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(Job.finish, jobs))
    assert all(sentences.empty() for sentences in stopped)


def disconnect(job):
    """Ends all connections of a process at once, as its end would."""

    async def abort():
        for writer in job._others.values():
            writer.transport.abort()

    job._run(abort())


@pytest.mark.parametrize('lost', [0, 2])
def test_lost_process_ends_the_others(start, lost):
    jobs, stopped = start(*places(3))
    disconnect(jobs[lost])
    for number in {0, 1, 2} - {lost}:
        assert stopped[number].get(timeout=60).startswith(f'process {lost} of 3 is lost: it printed')


def test_process_that_has_finished_is_not_lost(start):
    jobs, stopped = start(*places(2))
    jobs[1].finish()
    disconnect(jobs[1])
    jobs[0].finish()
    disconnect(jobs[0])
    assert [job.loss for job in jobs] == [None, None]
    assert all(sentences.empty() for sentences in stopped)


def test_another_number_of_processes_is_refused(start):
    first, second = places(2)
    errors, _ = start(first, second._replace(count=3))
    assert {str(error) for error in errors} == {
        'process 0 waits for 2 processes, and process 1 for 3; give all one number'
    }


def test_other_versions_are_refused(start):
    errors, _ = start(*places(2), versions=['jitm 1 with jax 2', 'jitm 1 with jax 3'])
    assert {str(error) for error in errors} == {
        'process 0 has jitm 1 with jax 2, and process 1 has jitm 1 with jax 3; install the same versions'
    }


def test_two_processes_of_one_number_are_refused(start):
    first, second, _ = places(3)
    errors, _ = start(first, second, second)
    assert {str(error) for error in errors} == {'two processes have number 1; number them from 0 to 2'}


def test_missing_processes_are_named_in_all_others(start, monkeypatch):
    async def accept(job, *streams):
        task = asyncio.create_task(accept_other(job, *streams))
        while 1 not in job._others:
            await asyncio.sleep(0)
        job._give_up()  # as if the time were over
        await task

    accept_other = Job._accept
    monkeypatch.setattr(Job, '_accept', accept)
    first, second, _, _ = places(4)
    errors, _ = start(first, second)
    assert len(set(map(str, errors))) == 1
    assert str(errors[0]).startswith('process 2, 3 of 4 did not join process 0 within 300 s; start all')


def test_coordinator_that_does_not_answer_is_named(start, monkeypatch):
    monkeypatch.setattr(processes, 'JOINING', 0.5)
    _, second = places(2)
    (error,), _ = start(second)
    assert str(error).startswith(f'process 0 does not answer at {second.coordinator} within 0.5 s')
    with socket.create_server(('localhost', 0)) as silent:
        (error,), _ = start(Place(f'localhost:{silent.getsockname()[1]}', 2, 1))
        assert 'does not answer' in str(error)


def test_port_of_another_program_is_refused(start):
    with socket.create_server(('', 0)) as used:
        (error,), _ = start(Place(f'localhost:{used.getsockname()[1]}', 2, 0))
    assert isinstance(error, UserError)
    assert 'Address already in use; choose another port' in str(error)


def test_late_process_is_refused_alone(start):
    members = places(2)
    jobs, _ = start(*members)
    (error,), _ = start(members[1])
    assert 'have joined it already' in str(error)
    assert [job.loss for job in jobs] == [None, None]


PROCESS = """
import sys, threading
from jitm import place, processes
from jitm.place import Place

processes.GRACE = 0.2
processes.join(Place(sys.argv[1], 2, int(sys.argv[2])), 'jitm 1')
print('joined', flush=True)
{then}
"""


@pytest.mark.parametrize(
    ('then', 'number', 'code', 'error'),
    [
        ('threading.Event().wait()', signal.SIGKILL, -signal.SIGKILL, ''),
        ('threading.Event().wait(.1); raise ValueError("a mistake")', None, 1, 'ValueError: a mistake'),
        ('print("error: no room"); processes.leave(2)', None, 2, ''),
    ],
)
@pytest.mark.parametrize('lost', [0, 1])
def test_process_that_ends_alone_ends_the_other(then, number, code, error, lost):
    codes = [PROCESS.format(then='threading.Event().wait()')] * 2
    codes[lost] = PROCESS.format(then=then)
    (coordinator, _, _), _ = places(2)
    pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE, 'text': True}
    commands = [[sys.executable, '-c', source, coordinator, str(n)] for n, source in enumerate(codes)]
    job = [subprocess.Popen(command, env=environment(), **pipes) for command in commands]
    for process in job:
        assert process.stdout.readline() == 'joined\n', process.stderr.read()
    if number:
        job[lost].send_signal(number)
    got, _, errors = ends(job)
    assert (got[lost], got[1 - lost]) == (code, EXIT_INTERRUPTED)
    assert error in errors[lost]
    assert errors[1 - lost].startswith(f'process {lost} of 2 is lost: it printed why')
    assert len(errors[1 - lost].splitlines()) == 1
