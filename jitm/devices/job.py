"""The processes of a job: they join by `jax.distributed`, and one that fails alone does not keep the others waiting."""

import os
import sys
import threading

import jitm
from jitm.errors import EXIT_USER_ERROR, UserError

JOINING = 300  # seconds in which all processes have to start
HEARTBEAT = 30  # seconds without a heartbeat until a process counts as lost, which aborts the others
LEAVING = 45  # seconds that a failed process waits for the others: longer than jax needs to notice a lost one
LAUNCHERS = 'SLURM_STEP_NUM_TASKS', 'OMPI_COMM_WORLD_SIZE'  # the numbers of processes of srun and of mpirun


def _refuse() -> None:
    """Ends this process, whose main thread waits for others."""
    print(
        f'error: the processes of this job have not all joined within {JOINING} s; start each with its own number from '
        '0, with one number of processes and with one address of process 0',
        file=sys.stderr,
    )
    os._exit(EXIT_USER_ERROR)


def join(coordinator: str | None = None, num_processes: int | None = None, process_id: int | None = None) -> None:
    """Makes this process one of a job, with all devices visible to it; must come before any other use of jax.

    Without arguments jax finds the job of a SLURM task, an Open MPI rank, a TPU pod host or a pod in an indexed
    Kubernetes job. A process that is none of these is alone.

    Args:
      coordinator: The `host:port` of process 0.
      num_processes: The total number of processes.
      process_id: The number of this process, from 0.

    Raises:
      UserError: If jax does not find the others, or they have other versions.
    """
    import jax  # takes seconds

    from jitm.devices import agreement

    started = [int(number) for number in map(os.environ.get, LAUNCHERS) if number]
    on_pod = 'tpu' in (jax.config.jax_platforms or '') or 'JOB_COMPLETION_INDEX' in os.environ
    if coordinator is None and (max(started) == 1 if started else not on_pod):
        return
    jax.config.update('jax_enable_preemption_service', False)  # its handler of SIGTERM would replace jitm's
    late = threading.Timer(JOINING, _refuse)
    late.daemon = True
    late.start()
    try:
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            local_device_ids=[],  # under SLURM and Open MPI jax would use one device per process
            initialization_timeout=2 * JOINING,  # after which jax would abort with a stack trace
            heartbeat_timeout_seconds=HEARTBEAT,
        )
    except (OSError, RuntimeError, ValueError) as error:
        late.cancel()
        nothing_found = isinstance(error, OSError) or 'coordinator_address' in str(error)
        if coordinator is None and not started and nothing_found:
            return
        raise UserError(
            f'jax does not start the processes of this job: {" ".join(str(error).split())}; give all of them '
            '--coordinator, --num_processes and --process_id, or --num_processes 1 to let each work alone'
        ) from None
    agreement.check_same({'jitm': jitm.__version__, 'jax': jax.__version__, 'num_processes': num_processes})
    late.cancel()


def leave(code: int) -> None:
    """Ends this process soon, if it is one of several and has failed: jax would wait for the others for minutes."""
    jax = sys.modules.get('jax')
    if code and jax and jax.distributed.is_initialized():
        end = threading.Timer(LEAVING, os._exit, [code])
        end.daemon = True
        end.start()
