import concurrent.futures
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jitm.errors import EXIT_INTERRUPTED
from jitm.runs import interrupt
from tests.conftest import ROOT, environment

# Waits in C code, where no handler of Python runs, as if XLA compiled.
WAITING = """
import ctypes, pathlib
from jitm.runs import interrupt

with interrupt.watched():
    with {block}:
        print('waiting', flush=True)
        while True:
            ctypes.CDLL(None).sleep(1000)
"""


def start(block):
    pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE}
    command = [sys.executable, '-c', WAITING.format(block=block)]
    worker = subprocess.Popen(command, env=environment(), cwd=ROOT, text=True, **pipes)
    assert worker.stdout.readline() == 'waiting\n', worker.stderr.read()
    return worker


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ('block', 'message'),
    [
        ('interrupt.contextlib.nullcontext()', 'interrupted before anything was saved\n'),
        ('interrupt.interruptible(pathlib.Path("blocks"))', 'stopped; the same command resumes from blocks\n'),
    ],
)
def test_program_ends_at_once(block, message, number):
    worker = start(block)
    worker.send_signal(number)
    output, error = worker.communicate()
    assert (worker.returncode, output, error) == (EXIT_INTERRUPTED, '', message)


def test_first_signal_is_answered_and_the_second_ends_the_program():
    worker = start('interrupt.StopRequest()')
    worker.send_signal(signal.SIGTERM)
    assert worker.stderr.readline().startswith('SIGTERM: the current step is finished and saved, which may take')
    assert worker.poll() is None
    worker.send_signal(signal.SIGINT)
    _, error = worker.communicate()
    assert worker.returncode == EXIT_INTERRUPTED
    assert error == 'stopped at once; the same command resumes from the last checkpoint\n'


def test_a_message_has_a_line_of_its_own_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, 'isatty', lambda: True)
    interrupt._say('stopped')
    assert capsys.readouterr().err == '\nstopped\n'


@pytest.mark.parametrize('make', [interrupt.StopRequest, lambda: interrupt.interruptible(Path('blocks'))])
def test_threads_have_no_handlers(make):
    """The Python API trains in a thread, too; signals then have the effect that the main thread gives them."""

    def use():
        with make():
            return signal.getsignal(signal.SIGTERM)

    handler = signal.getsignal(signal.SIGTERM)
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        assert threads.submit(use).result() == handler
    assert use() != handler
    assert signal.getsignal(signal.SIGTERM) == handler
