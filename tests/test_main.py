"""The allocator keeps what it is told to keep."""

import resource

import numpy as np
import pytest

from jitm import __main__ as program


@pytest.mark.skipif(not hasattr(program.ctypes.CDLL(None), 'mallopt'), reason='needs glibc')
def test_freed_memory_is_not_taken_anew():
    program.keep_freed_memory()

    def faults_of_a_large_array() -> int:
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        np.ones(2**24, np.uint8)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults

    faults_of_a_large_array()
    assert faults_of_a_large_array() < 100  # its pages are those of the array before
