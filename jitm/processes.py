"""The processes of a job: they join, and all of them end when one is lost.

Process 0 listens at the address of the job, and every other process keeps a connection to it. A process that ends well
says so; a connection that ends without this belongs to a process that has failed or was killed. The clients of jax's
coordination service reach it through the same port, by a tunnel that begins in their own process: a client whose
service disappears aborts its process with a stack trace, before anything can be explained.
"""

import asyncio
import contextlib
import os
import re
import socket
import sys
import threading
import time
import traceback
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, NoReturn

from jitm.errors import EXIT_INTERRUPTED, UserError
from jitm.place import JOINING, Place

LOOPBACK = '127.0.0.1'
GRACE = 5  # seconds in which a process may end by itself after another one was lost
SILENCE = {'TCP_KEEPIDLE': 15, 'TCP_KEEPINTVL': 5, 'TCP_KEEPCNT': 3}  # after these 30 seconds a silent host is lost
SENDING = 1  # seconds in which what this process has sent arrives
RETRY = 0.2  # seconds

TUNNEL, WAITING, JOINED, FINISHED = 'jitm: tunnel', 'jitm: waiting', 'jitm: joined', 'jitm: finished'


def _exit(code: int) -> NoReturn:
    """Ends this process at once: the usual end of Python would wait for the others."""
    with contextlib.suppress(OSError):  # of a closed pipe
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _stop(message: str) -> None:
    with contextlib.suppress(OSError):
        print(message, file=sys.stderr)
    _exit(EXIT_INTERRUPTED)


class Job:
    """The connections of this process to the others of its job, served by a thread.

    Attributes:
      service: The port of this machine at which jax's coordination service is reached.
      loss: The message with which this process ends; None while no process is lost.
    """

    def __init__(self, place: Place, versions: str, stop: Callable[[str], None] = _stop):
        """Waits until all processes have joined.

        Args:
          place: The place of this process.
          versions: The versions and numbers that must be the same in all processes.
          stop: The function that ends this process with a message.

        Raises:
          UserError: If they do not join in time, or do not belong together.
        """
        self._place, self._versions, self._stop = place, versions, stop
        self.service, self.loss, self._finished = 0, None, False
        self._others: dict[int, StreamWriter] = {}
        self._lost, self._loop = threading.Event(), asyncio.new_event_loop()
        self._joined = self._loop.create_future()
        host, _, port = place.coordinator.rpartition(':')
        self._address = host.strip('[]'), int(port)
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._run(self._join_others() if place.index else self._gather_others())

    def _run(self, coroutine: Coroutine) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    # Process 0.

    async def _gather_others(self) -> None:
        with socket.socket() as free:
            free.bind((LOOPBACK, 0))
            self.service = free.getsockname()[1]
        try:
            await asyncio.start_server(self._accept, port=self._address[1])
        except OSError as error:
            reason = os.strerror(error.errno)
            raise UserError(
                f'process 0 cannot listen at port {self._address[1]}: {reason}; choose another port'
            ) from None
        self._loop.call_later(JOINING, self._give_up)
        await self._joined

    def _give_up(self) -> None:
        missing = [str(n) for n in range(1, self._place.count) if n not in self._others]
        self._refuse(
            f'process {", ".join(missing)} of {self._place.count} did not join process 0 within {JOINING} s; start all '
            f'processes, numbered from 0, with one address of process 0'
        )

    def _refuse(self, message: str) -> None:
        """Ends the start in every process, unless all have joined."""
        if self._joined.done():
            return
        for writer in self._others.values():
            _write_line(writer, message)
        self._joined.set_exception(UserError(message))

    def _problem(self, count: int, index: int, versions: str) -> str | None:
        """Returns why a process is not one of those that process 0 waits for."""
        place = self._place
        if count != place.count:
            return f'process 0 waits for {place.count} processes, and process {index} for {count}; give all one number'
        if versions != self._versions:
            return f'process 0 has {self._versions}, and process {index} has {versions}; install the same versions'
        if self._joined.done():
            return f'all {count} processes of the job at {place.coordinator} have joined it already; wait for its end'
        if index in self._others:
            return f'two processes have number {index}; number them from 0 to {count - 1}'
        return None

    async def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Serves a connection to process 0: a tunnel to the service, or another process until its end."""
        line = await _read_line(reader)
        if line == TUNNEL:
            await _tunnel(reader, writer, (LOOPBACK, self.service))
            return
        hello = re.fullmatch(r'jitm: (\d+) (\d+) (.*)', line)
        if not hello:
            writer.close()
            return
        count, index, versions = int(hello[1]), int(hello[2]), hello[3]
        if problem := self._problem(count, index, versions):
            _write_line(writer, problem)
            writer.close()
            self._refuse(problem)
            return
        _keep_alive(writer)
        self._others[index] = writer
        _write_line(writer, WAITING)
        if len(self._others) == self._place.count - 1:
            for other in self._others.values():
                _write_line(other, JOINED)
            self._joined.set_result(None)
        line = await _read_line(reader)
        writer.close()
        del self._others[index]
        if line != FINISHED and self._joined.done():
            self._lose(index)

    # The other processes.

    async def _join_others(self) -> None:
        place = self._place
        try:
            async with asyncio.timeout(JOINING):
                reader, self._others[0] = await _connect(self._address)
                _keep_alive(self._others[0])
                _write_line(self._others[0], f'jitm: {place.count} {place.index} {self._versions}')
                answer = await _read_line(reader)
            if answer == WAITING:
                answer = await _read_line(reader)
        except TimeoutError:
            answer = (
                f'process 0 does not answer at {place.coordinator} within {JOINING} s; start it on that host, or '
                'correct the address'
            )
        if answer != JOINED:
            for writer in self._others.values():
                writer.close()
            raise UserError(answer or f'process 0 at {place.coordinator} has ended; see its message')
        server = await asyncio.start_server(
            lambda reader, writer: _tunnel(reader, writer, self._address, TUNNEL), LOOPBACK, 0
        )
        self.service = server.sockets[0].getsockname()[1]
        self._watching = self._loop.create_task(self._watch(reader))  # asyncio itself keeps no reference

    async def _watch(self, reader: StreamReader) -> None:
        """Waits for the end of process 0, or for the message with which it announces that of another one."""
        self._lose(0, await _read_line(reader))

    # All processes.

    def _lose(self, index: int, message: str = '') -> None:
        """Ends this process after a while, and process 0 tells the others."""
        if self._finished or self.loss:
            return
        self.loss = message or (
            f'process {index} of {self._place.count} is lost: it printed why it ended, was killed or is out of reach; '
            'so this process ends too, and the same command in all of them resumes'
        )
        for writer in self._others.values():
            _write_line(writer, self.loss)
        self._lost.set()
        self._loop.call_later(GRACE, self._stop_unless_finished)

    def _stop_unless_finished(self) -> None:
        if not self._finished:
            self._stop(self.loss)

    def stop_if_lost(self) -> None:
        """Ends this process if another one is lost within some seconds, which may be why this one fails."""
        if self._lost.wait(GRACE):
            self._stop(self.loss)

    def finish(self) -> None:
        """Tells the others that this process ends well; process 0 waits for all others to end."""
        self._run(self._finish())

    async def _finish(self) -> None:
        self._finished = True
        if self._place.index:
            _write_line(self._others[0], FINISHED)
            await self._others[0].drain()
        while self._place.index == 0 and self._others:
            await asyncio.sleep(RETRY / 10)


async def _connect(address: tuple[str, int]) -> tuple[StreamReader, StreamWriter]:
    """Connects as soon as the address answers."""
    while True:
        try:
            return await asyncio.open_connection(*address)
        except OSError:
            await asyncio.sleep(RETRY)


async def _read_line(reader: StreamReader) -> str:
    """Reads a line; returns an incomplete one, such as '', if the connection ends."""
    try:
        return (await reader.readline()).decode(errors='replace').strip()
    except (OSError, ValueError):  # the latter of a line without an end
        return ''


def _write_line(writer: StreamWriter, line: str) -> None:
    writer.write(f'{line}\n'.encode())


def _keep_alive(writer: StreamWriter) -> None:
    """Lets a connection end some time after the other host has vanished."""
    connection = writer.get_extra_info('socket')
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in SILENCE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def _copy(reader: StreamReader, writer: StreamWriter) -> None:
    """Copies until the reader ends, also after the other side has closed."""
    with contextlib.suppress(OSError):
        while data := await reader.read(2**16):
            if not writer.is_closing():
                writer.write(data)
            with contextlib.suppress(OSError):
                await writer.drain()


async def _tunnel(
    reader: StreamReader, writer: StreamWriter, address: tuple[str, int], first: str | None = None
) -> None:
    """Connects a client to an address until the client ends; the end of the other side is kept from it."""
    far_reader, far_writer = await _connect(address)
    if first:
        _write_line(far_writer, first)
    backward = asyncio.create_task(_copy(far_reader, writer))
    await _copy(reader, far_writer)
    backward.cancel()
    far_writer.close()
    writer.close()


_job: Job | None = None


def _end_by_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Ends this process with a stack trace, unless another one is lost."""
    _job.stop_if_lost()
    traceback.print_exception(kind, error, trace)
    _exit(1)


def join(place: Place, versions: str) -> Job:
    """Makes this process one of a job, see `Job`; an error that nothing catches then ends all of its processes."""
    global _job
    _job = Job(place, versions)
    sys.excepthook = _end_by_error
    return _job


def leave(code: int) -> None:
    """Ends this process with an exit code, if it is one of several and the code is not 0."""
    if _job and code:
        time.sleep(SENDING)  # others may be about to end for the same reason, of which they learn by a collective
        _exit(code)
