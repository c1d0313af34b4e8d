"""Getting a connection: look a name up once, choose from the addresses that may be contacted, and connect to those."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, TypeAlias

from enfold.sources.web.connection import Connection, ResponseReader
from enfold.sources.web.proxies import tls_context
from enfold.sources.web.urls import Endpoint, literal_address, written_address
from enfold.sources.web.web_error import WebError

# Whether an IP address that an endpoint leads to may be connected to.
Allows: TypeAlias = Callable[[Endpoint, str], bool]
MakeConnection: TypeAlias = Callable[[], Connection]

STAGGER: Final = 0.25  # seconds before the next address is tried beside one that does not answer


async def dial(
    endpoint: Endpoint, proxy: Endpoint | None, make: MakeConnection, allows: Allows | None, seconds: float
) -> Connection:
    """An open connection, encrypted where the scheme says so; a WebError where there is none in time."""
    try:
        async with asyncio.timeout(seconds):
            if proxy is None:
                return await _connect(endpoint, make, allows)
            # Whom a proxy connects to it decides itself: what can be told from here is what is written.
            _check_written(endpoint, allows)
            return await _through(proxy, endpoint, make)
    except TimeoutError:
        raise WebError("unreachable", f"no connection within {seconds:g} seconds") from None
    except (OSError, EOFError) as error:
        raise WebError("unreachable", _sentence(error)) from None


async def _connect(endpoint: Endpoint, make: MakeConnection, allows: Allows | None) -> Connection:
    addresses = await _addresses(endpoint)
    allowed = [each for each in addresses if allows is None or allows(endpoint, each)]
    if not allowed:
        raise _forbidden(endpoint)
    context = tls_context() if endpoint.scheme == "https" else None
    name = endpoint.host.removesuffix(".") if context is not None else None

    async def attempt(address: str) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(make, address, endpoint.port, ssl=context, server_hostname=name)
        return connection

    return await (attempt(allowed[0]) if len(allowed) == 1 else _first(attempt, _interleaved(allowed)))


async def _addresses(endpoint: Endpoint) -> list[str]:
    written = literal_address(endpoint.host)
    if written is not None:
        return [endpoint.host if "%" in endpoint.host else written]
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except UnicodeError:  # a label that is empty or too long
        raise OSError("no name that can be looked up") from None
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def _interleaved(addresses: list[str]) -> list[str]:
    """Both kinds of addresses in turn, in the order of the system's preference."""
    first = [each for each in addresses if (":" in each) == (":" in addresses[0])]
    other = [each for each in addresses if (":" in each) != (":" in addresses[0])]
    mixed = [each for pair in zip(first, other, strict=False) for each in pair]
    return mixed + first[len(other) :] + other[len(first) :]


async def _first(attempt: Callable[[str], Coroutine[Any, Any, Connection]], addresses: Iterable[str]) -> Connection:
    """The first connection that is made: each address has a head start before the next, and none waits for another."""
    left = iter(addresses)
    running: set[asyncio.Task[Connection]] = set()
    error: BaseException = OSError("no address")
    try:
        while True:
            address = next(left, None)
            if address is not None:
                running.add(asyncio.ensure_future(attempt(address)))
            elif not running:
                raise error
            wait = STAGGER if address is not None else None
            done, running = await asyncio.wait(running, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if task.exception() is None:
                    running |= done - {task}
                    return task.result()
                error = task.exception() or error
    finally:
        await _discard(running)


async def _discard(attempts: set[asyncio.Task[Connection]]) -> None:
    for task in attempts:
        task.cancel()
    for made in await asyncio.gather(*attempts, return_exceptions=True):
        if isinstance(made, Connection):
            made.close()


# --- proxies ------------------------------------------------------------------------------------------------------


def _check_written(endpoint: Endpoint, allows: Allows | None) -> None:
    address = written_address(endpoint.host)
    if allows is not None and address is not None and not allows(endpoint, address):
        raise _forbidden(endpoint)


async def _through(proxy: Endpoint, endpoint: Endpoint, make: MakeConnection) -> Connection:
    """A connection to the proxy; for an encrypted endpoint, a tunnel through it."""
    connection = await _connect(proxy, make, None)
    connection.peer = ""  # nobody here knows the address behind the proxy
    if endpoint.scheme == "http":
        return connection
    try:
        await _open_tunnel(connection, proxy, endpoint)
        loop = asyncio.get_running_loop()
        transport = await loop.start_tls(
            connection.transport, connection, tls_context(), server_hostname=endpoint.host.removesuffix(".")
        )
    except BaseException:
        connection.close()
        raise
    if transport is None:
        raise OSError("the tunnel was closed")
    connection.transport = transport
    return connection


async def _open_tunnel(connection: Connection, proxy: Endpoint, endpoint: Endpoint) -> None:
    lines = [f"CONNECT {endpoint.with_port} HTTP/1.1", f"Host: {endpoint.with_port}"]
    if proxy.authorization:
        lines.append(f"Proxy-Authorization: {proxy.authorization}")
    exchange = ResponseReader("CONNECT")
    connection.send(exchange, "\r\n".join([*lines, "", ""]).encode())
    try:
        await exchange.head()
    except WebError as error:
        raise OSError(f"the proxy does not answer: {error.sentence}") from None
    if not 200 <= exchange.status < 300:
        raise OSError(f"the proxy refuses: HTTP {exchange.status}")


def _forbidden(endpoint: Endpoint) -> WebError:
    return WebError("refused", f"{endpoint.host} leads to an address that may not be contacted from here")


def _sentence(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
