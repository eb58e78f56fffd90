import threading

import pytest

from jitm.runs.progress import Pace, repeated


class RunConstants:
    """A clock that is moved by hand."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return RunConstants()


def step(pace, clock, seconds):
    clock.now += seconds
    pace.step += 1


def test_a_line_names_what_is_done_and_since_when(clock):
    pace = Pace(0, 100, clock)
    assert pace.line() == 'step 0 of 100'
    with pace.doing('compiling the training step', compiles=True):
        clock.now += 75
        assert pace.line() == 'step 0 of 100: compiling the training step for 0:01:15'
    pace.step += 1
    assert pace.line() == 'step 1 of 100'
    assert pace.left() == ''


def test_compiling_counts_neither_for_the_rate_nor_for_the_time_left(clock):
    pace = Pace(0, 100, clock)
    with pace.doing('evaluating dev'):  # the first validation compiles, too
        clock.now += 50
    for _ in range(2):
        with pace.doing('compiling', compiles=True):
            clock.now += 300
        pace.step += 1
        for _ in range(4):
            step(pace, clock, 0.5)
    assert pace.line() == 'step 10 of 100, 2 steps/s, 0:00:45 left'
    assert pace.left() == '0:00:45 left'


def test_later_validations_count_for_the_time_left(clock):
    pace = Pace(40, 100, clock)  # resumed
    for _ in range(20):
        step(pace, clock, 0.5)
    with pace.doing('evaluating dev'):
        clock.now += 10
    assert pace.line() == 'step 60 of 100, 2 steps/s, 0:00:40 left'


def test_a_function_is_repeated_until_the_block_ends():
    called = threading.Semaphore(0)

    def function():
        called.release()
        raise BrokenPipeError  # of a reader that has gone

    with repeated(1e-3, function):
        assert all(called.acquire(timeout=60) for _ in range(3))
    threads = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    assert not any(thread.name.endswith('(run)') for thread in threads)
