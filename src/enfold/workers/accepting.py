"""Connections shared fairly: a worker that has more of them than a sibling lets the sibling go first."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from mmap import mmap
from typing import Any, Final

from enfold.log import Log

YIELD: Final = 0.002  # seconds that a sibling has to accept a connection before we do
FULL: Final = 1.0  # seconds before we accept again where the system has no descriptor left
WIDTH: Final = 4  # bytes of a count

_log: Final = Log("enfold.workers")


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
        counts: ConnectionCounts,
        number: int,
        connections: Callable[[], int],
    ) -> None:
        """`tls` is a context, or None; `connections` says how many there are just now."""
        self._listening = listening
        self._make_protocol = make_protocol
        self._tls = tls
        self._counts = counts
        self._number = number
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
        """Tell the siblings how many connections there are; the server calls it now and then, because some end."""
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
            _log.warning("No connection can be taken: %s", error.strerror or error)
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
        if not task.cancelled() and task.exception() is not None:
            _log.debug("A connection did not begin: %s", task.exception())
