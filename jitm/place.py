"""The place of a process in a job, as SLURM or a TPU pod states it."""

import contextlib
import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from jitm.errors import UserError

JOINING = 300  # seconds in which all processes have to start
FIRST_PORT = 61440  # of those that Linux does not give to outgoing connections


class Place(NamedTuple):
    """The place of a process in a job.

    Attributes:
      coordinator: `host:port` of process 0.
      count: The number of processes.
      index: The number of this process, from 0.
    """

    coordinator: str
    count: int
    index: int


def slurm_place(variables: Mapping[str, str]) -> Place | None:
    """Returns the place of a task that `srun` has started; None for other processes and for a single task.

    A shell within an allocation is not one of several tasks of a step, although SLURM_NTASKS may be larger than 1.

    Args:
      variables: The environment.

    Raises:
      UserError: In task 0, if it is not on the first node, where the others look for it: SLURM sorts the list of nodes.
    """
    count = int(variables.get('SLURM_STEP_NUM_TASKS', 1))
    if count == 1:
        return None
    nodes = re.match(r'(?:[^,\[]|\[[^]]*\])+', variables['SLURM_STEP_NODELIST'])[0]  # the first of n[1-3,7]-a,m2
    host = re.sub(r'\[([^],-]+)[^]]*\]', r'\1', nodes)
    port = FIRST_PORT + (int(variables['SLURM_JOB_ID']) + int(variables['SLURM_STEP_ID'])) % (2**16 - FIRST_PORT)
    place = Place(f'{host}:{port}', count, int(variables['SLURM_PROCID']))
    node = variables.get('SLURMD_NODENAME', host)
    if place.index == 0 and node != host:
        raise UserError(
            f'task 0 of the SLURM step is on {node}, not on the first node of {variables["SLURM_STEP_NODELIST"]}; '
            f'give all tasks --coordinator={node}:{port} --num_processes=$SLURM_NTASKS --process_id=$SLURM_PROCID'
        )
    return place


def tpu_place() -> Place | None:
    """Returns the place of a host of a TPU pod; None elsewhere and for a single host.

    Raises:
      UserError: If the name of host 0 has no address within five minutes.
    """
    from jax._src import clusters  # only jax knows where the hosts of each kind of pod are listed

    with contextlib.suppress(OSError):  # a machine with TPUs in no cloud has no server to ask
        for pod in (clusters.GkeTpuCluster, clusters.GceTpuCluster):
            if pod.is_env_present() and (count := pod.get_process_count()) > 1:
                port = os.environ.get('JAX_COORDINATOR_PORT')
                try:
                    return Place(pod.get_coordinator_address(JOINING, port), count, pod.get_process_id())
                except RuntimeError as error:
                    remedy = 'start the hosts of the pod together, or give all of them --coordinator'
                    raise UserError(f'{error} of host 0 of the TPU pod within {JOINING} s; {remedy}') from None
    return None
