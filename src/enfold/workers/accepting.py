"""Connections shared fairly: a worker that has more of them than a sibling lets the sibling go first."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from mmap import mmap
from typing import Any, Final

from enfold.log import Log

YIELD: Final = 0.002  # seconds that a sibling has to take a connection before we do
FULL: Final = 1.0  # seconds before we try again where no more connections can be had
WIDTH: Final = 4  # bytes of a number

_log: Final = Log("enfold.workers")


class Shares:
    """How many connections each worker has: memory that all of them see, made before they are forked."""

    def __init__(self, count: int) -> None:
        self._memory = mmap(-1, WIDTH * count)
        self._count = count

    def put(self, number: int, connections: int) -> None:
        self._memory[number * WIDTH : (number + 1) * WIDTH] = connections.to_bytes(WIDTH, "little")

    def is_ahead(self, number: int, connections: int) -> bool:
        """Whether another has fewer."""
        numbers = memoryview(self._memory).cast("I")
        return any(other != number and numbers[other] < connections for other in range(self._count))


class Accepting:
    """Takes connections from a socket that siblings have, too: one at a time, since each may be another's."""

    def __init__(
        self,
        listening: socket.socket,
        make_protocol: Callable[[], Any],
        tls: Any,
        shares: Shares,
        number: int,
        connections: Callable[[], int],
    ) -> None:
        """`tls` is a context, or None; `connections` says how many there are just now."""
        self._listening = listening
        self._make_protocol = make_protocol
        self._tls = tls
        self._shares = shares
        self._number = number
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._has_yielded = False
        self._waiting: asyncio.TimerHandle | None = None
        self._starting: set[asyncio.Task[Any]] = set()
        listening.setblocking(False)
        self.tell()
        self._begin()

    def close(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        self._loop.remove_reader(self._listening)

    def tell(self) -> None:
        """Say how many connections there are, from time to time, because some end."""
        self._shares.put(self._number, self._connections() + len(self._starting))

    def _begin(self) -> None:
        self._waiting = None
        self._loop.add_reader(self._listening, self._accept)

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listening)
        self._waiting = self._loop.call_later(seconds, self._begin)

    def _accept(self) -> None:
        count = self._connections() + len(self._starting)
        if not self._has_yielded and self._shares.is_ahead(self._number, count):
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
        self._shares.put(self._number, count + 1)

    def _started(self, task: asyncio.Task[Any]) -> None:
        self._starting.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.debug("A connection did not begin: %s", task.exception())
