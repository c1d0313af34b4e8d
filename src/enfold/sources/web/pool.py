"""The connections of a client on one event loop: kept for the next request, and given up when they are old."""

from __future__ import annotations

import select
import time
from typing import Final, TypeAlias

from enfold.sources.web.connection import Connection
from enfold.sources.web.dialing import Allows, dial
from enfold.sources.web.urls import Endpoint

Key: TypeAlias = tuple[Endpoint, Endpoint | None]  # where it leads, and the proxy through which it does

MAX_IDLE: Final = 100
LIFE: Final = 60.0  # seconds that a connection is kept without work
MARGIN: Final = 1.0  # seconds that a request may need to reach a server before it ends the connection
CONNECT: Final = 10.0  # seconds for a connection to be made


class Pool:
    """Connections by where they lead."""

    def __init__(self, allows: Allows | None = None) -> None:
        self._allows = allows
        self._idle: dict[Key, list[Connection]] = {}
        self._count = 0
        self._open: set[Connection] = set()

    def acquire(self, key: Key) -> Connection | None:
        """A connection that is still good, if there is one."""
        idle = self._idle.get(key)
        while idle:
            connection = idle.pop()  # the youngest: the others may grow old
            self._count -= 1
            if connection.is_open and time.monotonic() < connection.good_until and not _has_news(connection):
                return connection
            connection.close()
        return None

    async def open(self, key: Key) -> Connection:
        """A new connection."""
        endpoint, proxy = key
        connection = await dial(endpoint, proxy, lambda: Connection(self, key), self._allows, CONNECT)
        self._open.add(connection)
        return connection

    def release(self, connection: Connection, idle_limit: float) -> None:
        """Take back a connection whose exchange is over; its server ends it after so many idle seconds."""
        if connection not in self._open or self._count >= MAX_IDLE:
            connection.close()
            return
        connection.good_until = time.monotonic() + min(LIFE, idle_limit - MARGIN)
        self._idle.setdefault(connection.key, []).append(connection)
        self._count += 1

    def discard(self, connection: Connection) -> None:
        """Forget a connection that is gone."""
        self._open.discard(connection)
        idle = self._idle.get(connection.key, [])
        if connection in idle:
            idle.remove(connection)
            self._count -= 1

    def close(self) -> None:
        connections, self._open, self._idle, self._count = self._open, set(), {}, 0
        for connection in connections:
            connection.close()


def _has_news(connection: Connection) -> bool:
    """Whether something has come that the loop has not read yet: on a connection without work it can only be the end."""
    if not hasattr(select, "poll"):  # where there is none, select takes any number of descriptors
        return bool(select.select([connection.descriptor], [], [], 0)[0])
    poll = select.poll()
    poll.register(connection.descriptor, select.POLLIN)
    return bool(poll.poll(0))
