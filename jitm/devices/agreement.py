"""Agreement between the processes of a job before they start."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from jitm.errors import UserError

T = TypeVar('T')
VISIBLE = 60  # upper bound in seconds until a file written by another host is visible in a shared folder
SHOWN = 3  # differences


def gather(value: Any) -> list[Any]:
    """Returns the values of all processes, as JSON; all of them must call this."""
    if jax.process_count() == 1:
        return [value]
    data = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(data.size))
    rows = multihost_utils.process_allgather(np.pad(data, (0, sizes.max() - data.size)))
    return [json.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def in_all(function: Callable[[], T]) -> T:
    """Calls a function in all processes, which must all call this.

    Returns:
      The result in this process.

    Raises:
      UserError: If the function raises one in any process.
    """
    result = error = None
    try:
        result = function()
    except UserError as caught:
        error = caught
    for process, message in enumerate(gather(error and str(error))):
        if message:
            raise error or UserError(f'process {process} cannot start: {message}')
    return result


def in_first(function: Callable[[], T]) -> T:
    """Calls a function, whose result is JSON, in process 0; all processes must call this.

    Returns:
      The result, in all processes.

    Raises:
      UserError: In all processes, if the function raises one.
    """
    return gather(in_all(function if jax.process_index() == 0 else lambda: None))[0]


def check_same(values: Mapping[str, Any]) -> None:
    """Raises a UserError in all processes if these values, as JSON, are not the same in all of them."""
    first, *values_of_processes = gather(values)
    for process, second in enumerate(values_of_processes, 1):
        different = [
            f"'{key}' is {first.get(key, 'absent')} in process 0 and {second.get(key, 'absent')} in process {process}"
            for key in sorted(first.keys() | second.keys())
            if key not in first or key not in second or first[key] != second[key]
        ]
        if different:
            more = f', and {len(different) - SHOWN} more' if len(different) > SHOWN else ''
            raise UserError(
                f'{"; ".join(different[:SHOWN])}{more}: start all processes with the same versions, config and data'
            )


def sees(condition: Callable[[], bool]) -> bool:
    """Waits until a condition on files that another process has written holds; returns whether it does.

    A network file system may show a file to other hosts with a delay.
    """
    end = time.monotonic() + VISIBLE
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.2)
    return condition()
