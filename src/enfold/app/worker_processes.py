"""The parent of the workers: it forks them, restarts a worker that has died, and forwards signals. It serves nothing itself."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ctypes import CDLL
from mmap import mmap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from enfold.errors import CallError, code_row
from enfold.observability.log import Log

HEALTHY: Final = 1.0  # seconds: a worker that dies sooner failed to start, and is restarted with a backoff
MAX_BACKOFF: Final = 30.0
ORPHANS_GRACE: Final = 2.0  # seconds that what a dead worker had started has to end
PR_SET_CHILD_SUBREAPER: Final = 36  # of Linux
HANDLED: Final = tuple(number for number in signal.Signals if number.name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGCHLD"))

_log: Final = Log("enfold.workers")


class Worker(msgspec.Struct, frozen=True):
    """One of the processes, as it knows itself."""

    number: int
    count: int
    folder: str  # where each has a socket that only its siblings reach
    parent: int  # a descriptor that can be read from when the parent is gone
    connections: ConnectionCounts
    ready: int  # a descriptor that the parent waits for at the first start of worker 0, which is loud; else -1

    @property
    def is_primary(self) -> bool:
        return self.ready >= 0

    def socket_of(self, number: int) -> str:
        return str(Path(self.folder, f"{number}.sock"))

    def notify_ready(self) -> None:
        if self.ready >= 0:
            os.write(self.ready, b".")
            os.close(self.ready)


def run_workers(count: int, work: Callable[[Worker], int]) -> int:
    """Run so many processes until a signal ends them; `work` is what each does, and its exit code."""
    if not hasattr(os, "fork"):
        raise CallError(
            "VALIDATION_ERROR",
            "--workers is not supported on this platform (it needs fork): run several servers instead",
        )
    with _signal_pipe() as signals, TemporaryDirectory(prefix="enfold-") as folder:
        if sys.platform == "linux":  # become the parent of what a worker started when that worker is killed
            with suppress(OSError, AttributeError):
                CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        return _Parent(count, work, folder, signals).run()


@contextmanager
def _signal_pipe() -> Iterator[int]:
    """Return a descriptor from which the numbers of arriving signals are read; none of them ends this process."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    for number in HANDLED:
        signal.signal(number, _ignore)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    try:
        yield read_end
    finally:
        signal.set_wakeup_fd(-1)
        os.close(read_end)
        os.close(write_end)


def _ignore(*_: object) -> None:
    """Do nothing: the number of the signal is read from the pipe."""


def _children() -> set[int]:
    """Return the child processes, where the system reports them."""
    with suppress(OSError):
        found = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()
        return {int(each) for each in found}
    return set()


def _kill(process: int, number: int) -> None:
    """Send a signal to a child and to all of its group, where it leads one."""
    try:
        os.killpg(process, number)
    except OSError:
        with suppress(OSError):  # it has ended meanwhile
            os.kill(process, number)


class _Parent:
    """Starts the workers, and waits for their ends and for signals."""

    def __init__(self, count: int, work: Callable[[Worker], int], folder: str, signals: int) -> None:
        self._count = count
        self._work = work
        self._folder = folder
        self._signals = signals
        self._alive, self._alive_writer = os.pipe()  # the writing end is ours alone: it is closed when we end
        self._running: dict[int, tuple[int, float]] = {}  # by process id, the worker's number and its start
        self._restart_at: dict[int, float] = {}  # by worker's number
        self._orphans: dict[int, float] = {}  # what a dead worker had started: by process id, when it is killed
        self._failures: dict[int, int] = {}
        self._is_serving = False
        self._is_ending = False
        self._exit_code = 0
        self._connections = ConnectionCounts(count)
        self._unrelated = _children()  # what our program has started before

    def run(self) -> int:
        ready, ready_writer = os.pipe()
        self._start(0, ready_writer)  # the others wait, so that an error is reported once
        os.close(ready_writer)
        self._is_serving = self._wait_for(ready)
        os.close(ready)
        if self._is_serving:
            for number in range(1, self._count):
                self._start(number)
        self._is_ending = self._is_ending or not self._is_serving
        while self._running or not self._is_ending:
            self._wait()
        for process in self._orphans | dict.fromkeys(self._adopted()):
            _kill(process, signal.SIGKILL)
        return self._exit_code

    def _wait_for(self, ready: int) -> bool:
        """Whether the first worker came to serve; else it has told why not."""
        while not self._is_ending:
            found, _, _ = select.select([ready, self._signals], [], [])
            if ready in found:
                return os.read(ready, 1) == b"."
            self._handle_signals()
        return False

    def _wait(self) -> None:
        """Wait for a signal, the time to restart a worker, or the end of an orphan's time."""
        moments = [*self._restart_at.values(), *self._orphans.values()]
        pause = max(0.0, min(moments) - time.monotonic()) if moments else None
        if select.select([self._signals], [], [], pause)[0]:
            self._handle_signals()
        for process, moment in list(self._orphans.items()):
            if moment <= time.monotonic():
                del self._orphans[process]
                _kill(process, signal.SIGKILL)
        for number, moment in list(self._restart_at.items()):
            if moment <= time.monotonic() and not self._is_ending:
                del self._restart_at[number]
                self._start(number)

    def _handle_signals(self) -> None:
        for number in os.read(self._signals, 64):
            if number == signal.SIGCHLD:
                self._reap()
            elif number in (signal.SIGTERM, signal.SIGINT):
                self._is_ending = True
                self._pass_on(signal.SIGTERM)
            else:
                self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        for process in self._running:
            os.kill(process, number)

    def _reap(self) -> None:
        while self._running:
            process, status = os.waitpid(-1, os.WNOHANG)
            if process == 0:
                return
            self._orphans.pop(process, None)
            if process in self._running:
                self._handle_exit(*self._running.pop(process), os.waitstatus_to_exitcode(status))
                self._end_orphans()

    def _end_orphans(self) -> None:
        """Terminate what a dead worker had started; what does not end is killed a little later."""
        for process in self._adopted() - self._orphans.keys():
            self._orphans[process] = time.monotonic() + ORPHANS_GRACE
            _kill(process, signal.SIGTERM)

    def _adopted(self) -> set[int]:
        """Return processes that we inherited because their parent died."""
        return _children() - self._running.keys() - self._unrelated

    def _handle_exit(self, number: int, started: float, code: int) -> None:
        if self._is_ending or not self._is_serving:
            is_asked = code == -signal.SIGTERM  # so early that it had nothing to close yet
            failed = code if code >= 0 else code_row("UNKNOWN_ERROR").exit_code
            self._exit_code = self._exit_code or (0 if is_asked else failed)
            return
        is_young = time.monotonic() - started < HEALTHY
        failures = self._failures[number] = self._failures.get(number, 0) + 1 if is_young else 0
        pause = min(MAX_BACKOFF, 0.5 * 2**failures) if is_young else 0.0
        fate = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
        _log.warning("Worker %d %s; restarting it", number, fate)
        self._restart_at[number] = time.monotonic() + pause

    def _start(self, number: int, ready: int = -1) -> None:
        started = time.monotonic()
        # A signal that comes now must not be handled in the child as the parent handles it.
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        process = os.fork()
        if process:
            self._running[process] = (number, started)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
            return
        code = code_row("UNKNOWN_ERROR").exit_code
        try:
            self._become_worker()
            code = self._work(Worker(number, self._count, self._folder, self._alive, self._connections, ready))
        finally:
            os._exit(code)  # what the parent has opened is the parent's to close

    def _become_worker(self) -> None:
        os.setpgid(0, 0)  # a Ctrl-C is for the parent, who passes it on
        os.close(self._alive_writer)
        signal.set_wakeup_fd(-1)
        for number in HANDLED:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, _ignore)  # nothing can be read again yet, and it must not end us
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)


YIELD: Final = 0.002  # seconds that a sibling has to accept a connection before we do
FULL: Final = 1.0  # seconds before we accept again where the system has no descriptor left
WIDTH: Final = 4  # bytes of a count


class ConnectionCounts:
    """How many connections each worker has: memory that all of them see, made before they are forked."""

    def __init__(self, workers: int) -> None:
        self._counts = memoryview(mmap(-1, WIDTH * workers)).cast("I")

    def put(self, number: int, connections: int) -> None:
        self._counts[number] = connections

    def is_ahead(self, number: int, connections: int) -> bool:
        """Whether another worker has fewer."""
        return any(other != number and count < connections for other, count in enumerate(self._counts))


class Accepting:
    """Accepts connections from a socket that siblings have, too: one at a time, since each may be another's."""

    def __init__(
        self,
        listening: socket.socket,
        make_protocol: Callable[[], Any],
        tls: Any,
        worker: Worker,
        connections: Callable[[], int],
    ) -> None:
        """`tls` is a context or None; `connections` returns their current number."""
        self._listening = listening
        self._make_protocol = make_protocol
        self._tls = tls
        self._counts = worker.connections
        self._number = worker.number
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._has_yielded = False
        self._pausing: asyncio.TimerHandle | None = None
        self._starting: set[asyncio.Task[Any]] = set()
        listening.setblocking(False)
        self.publish()
        self._resume()

    def close(self) -> None:
        if self._pausing is not None:
            self._pausing.cancel()
        self._loop.remove_reader(self._listening)

    def publish(self) -> None:
        """Tell the siblings how many connections there are; the server calls it whenever one has ended."""
        self._counts.put(self._number, self._connections() + len(self._starting))

    def _resume(self) -> None:
        self._pausing = None
        self._loop.add_reader(self._listening, self._accept)

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listening)
        self._pausing = self._loop.call_later(seconds, self._resume)

    def _accept(self) -> None:
        count = self._connections() + len(self._starting)
        if not self._has_yielded and self._counts.is_ahead(self._number, count):
            self._has_yielded = True
            self._pause(YIELD)
            return
        self._has_yielded = False
        try:
            connection, _ = self._listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # a sibling was faster, or the client has gone
        except OSError as error:
            _log.warning("Cannot accept connections: %s", error.strerror or error)
            self._pause(FULL)
            return
        connection.setblocking(False)
        connecting = self._loop.connect_accepted_socket(self._make_protocol, connection, ssl=self._tls)
        task = self._loop.create_task(connecting)
        self._starting.add(task)
        task.add_done_callback(self._started)
        self._counts.put(self._number, count + 1)

    def _started(self, task: asyncio.Task[Any]) -> None:
        self._starting.discard(task)
        self.publish()
        if not task.cancelled() and task.exception() is not None:
            _log.debug("A connection failed: %s", task.exception())
