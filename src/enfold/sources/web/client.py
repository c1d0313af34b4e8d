"""Our HTTP client: pooled connections, and retries on a stale one where the method is idempotent."""

from __future__ import annotations

import asyncio
from typing import Final

from enfold.sources.web.connection import Connection, ResponseReader
from enfold.sources.web.dialing import Allows
from enfold.sources.web.http_messages import Request, Response, write
from enfold.sources.web.pool import Key, Pool
from enfold.sources.web.proxies import proxy_for
from enfold.sources.web.urls import read_endpoint
from enfold.sources.web.web_error import IDEMPOTENT_METHODS, WebError

MAX_ROUTES: Final = 1000


class WebClient:
    """HTTP/1.1, without cookies and without a cache."""

    def __init__(self, allows: Allows | None = None) -> None:
        """`allows` tells of an endpoint and an IP address whether it may be connected to; without it all may."""
        self._allows = allows
        self._pools: dict[asyncio.AbstractEventLoop, Pool] = {}
        self._routes: dict[str, Key] = {}

    async def send(self, request: Request, *, is_own: bool = True) -> Response:
        """An open response, whatever its status; `is_own` matters to clients that add something for their own server."""
        del is_own
        key = self._routes.get(request.origin) or self._route(request.origin)
        data = write(request, *key)
        pool = self._pools.get(asyncio.get_running_loop()) or self._new_pool()
        while (connection := pool.acquire(key)) is not None:
            try:
                return await _exchange(connection, request, data)
            except _StaleError:
                # The server has ended a connection that waited; whether it has read the request nobody knows.
                if request.method not in IDEMPOTENT_METHODS:
                    raise
        return await _exchange(await pool.open(key), request, data)

    def _route(self, origin: str) -> Key:
        """Where an origin leads, and through which proxy; found out once, for as long as there are few of them."""
        endpoint = read_endpoint(origin)
        if len(self._routes) >= MAX_ROUTES:
            self._routes.clear()
        key = self._routes[origin] = endpoint, proxy_for(endpoint)
        return key

    def _new_pool(self) -> Pool:
        """The connections of the running loop; a source may be called from several, and those of closed ones are dead."""
        pool = Pool(self._allows)
        alive = {loop: each for loop, each in self._pools.copy().items() if not loop.is_closed()}
        self._pools = {**alive, asyncio.get_running_loop(): pool}
        return pool

    async def aclose(self) -> None:
        """Close all connections; who waits for an answer learns of it."""
        pools, self._pools = self._pools, {}
        for loop, pool in pools.items():
            if loop is asyncio.get_running_loop():
                pool.close()
            elif not loop.is_closed():
                loop.call_soon_threadsafe(pool.close)


class _StaleError(WebError):
    """A connection that had been kept ended without a word."""


async def _exchange(connection: Connection, request: Request, data: bytes) -> Response:
    exchange = ResponseReader(request.method)
    is_kept = connection.is_used
    try:
        connection.send(exchange, data)
        await exchange.head()
    except WebError as error:
        connection.close()
        if is_kept and error.kind == "broken" and not exchange.is_begun:
            raise _StaleError(error.kind, error.sentence) from None
        raise
    except BaseException:
        connection.close()
        raise
    headers = [(name.decode("latin-1"), _text(value)) for name, value in exchange.headers]
    return Response(request, exchange.status, _text(exchange.reason), headers, exchange, connection.peer)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
