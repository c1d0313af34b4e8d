"""Connections: an HTTP/1.1 exchange read by llhttp, the pool, name lookup and connect, proxies and certificates."""

from __future__ import annotations

import asyncio
import math
import os
import select
import socket
import ssl
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import lru_cache
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, Final, TypeAlias

import httptools

from enfold.http_client.errors import WebError
from enfold.http_client.urls import Endpoint, literal_address, read_endpoint, written_address

MAX_HEAD: Final = 64 * 1024  # bytes without any content: a head, early hints, trailers, extensions of chunks
MAX_HEADERS: Final = 256
MAX_BUFFERED: Final = 256 * 1024  # bytes that wait for their reader before the server has to

_BODILESS: Final = frozenset({204, 304})


class Connection(asyncio.Protocol):
    """A connection that its pool gets back when another exchange may begin."""

    def __init__(self, pool: Pool, key: Key) -> None:
        self._pool = pool
        self.key = key
        self._exchange: ResponseReader | None = None
        self.transport: Any = None
        self.peer = ""  # the address that is connected to
        self.descriptor = -1  # of its socket
        self.is_open = False
        self.is_used = False  # whether an exchange has been completed on it
        self.good_until = 0.0  # when the pool gives it up

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.is_open = True
        self.descriptor = int(transport.get_extra_info("socket").fileno())
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if isinstance(peer, tuple) else ""

    def send(self, exchange: ResponseReader, data: bytes) -> None:
        """Begin an exchange: write the request, and read its answer as it comes."""
        exchange.connection = self
        self._exchange = exchange
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:  # a server that speaks unasked cannot be understood any more
            self.close()
            return
        exchange.feed(data)
        if exchange.is_over:
            self._exchange = None
            self.is_used = True
            exchange.resume_reading()  # what waits in it is in memory; the connection is for others now
            if exchange.opens_tunnel:
                return
            # The next request must not wait for the rest of this one.
            is_written = self.transport.get_write_buffer_size() == 0
            if exchange.is_reusable and self.is_open and is_written:
                self._pool.release(self, exchange.idle_limit)
            else:
                self.close()

    def eof_received(self) -> None:
        """The server has ended: the transport closes by itself."""

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        exchange, self._exchange = self._exchange, None
        self._pool.discard(self)
        if exchange is not None:
            exchange.lose(error)

    def pause(self) -> None:
        if self.is_open:
            self.transport.pause_reading()

    def resume(self) -> None:
        if self.is_open:
            self.transport.resume_reading()

    def close(self) -> None:
        """End the connection at once, whatever is under way on it."""
        self.is_open = False
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.lose(ConnectionError("the connection was closed here"))
        if self.transport is not None:
            self.transport.abort()


class ResponseReader:
    """The answer to one request, as it comes: the callbacks are llhttp's, the rest is for who waits for it."""

    connection: Connection | None = None
    status = 0
    reason = b""
    is_begun = False  # whether anything has come
    is_over = False  # whether all of it has come
    is_reusable = False
    idle_limit = math.inf  # seconds after which the server ends the connection, where it says so
    error: WebError | None = None
    _has_head = False
    _has_length = False
    _is_chunked = False
    _ends_itself = False  # or else with its connection
    _is_paused = False
    _overhead = 0
    _buffered = 0
    _waiter: asyncio.Future[None] | None = None

    def __init__(self, method: str) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self._method = method
        self._parser: Any = httptools.HttpResponseParser(self)
        # Old servers end lines with LF alone. A length beside chunks says nothing; such a connection is not used again.
        self._parser.set_dangerous_leniencies(lenient_chunked_length=True, lenient_optional_cr_before_lf=True)
        self._chunks: list[bytes] = []

    # --- who waits

    async def head(self) -> None:
        """Wait for the head of the answer."""
        while not self._has_head:
            if self.error is not None:
                raise self.error
            await self._wait()

    @property
    def opens_tunnel(self) -> bool:
        return self._method == "CONNECT" and 200 <= self.status < 300

    async def chunk(self) -> bytes:
        """The next piece of the body; empty at its end."""
        while not self._chunks:
            if self.error is not None:
                raise self.error
            if self.is_over:
                return b""
            await self._wait()
        chunks, self._chunks, self._buffered = self._chunks, [], 0
        self.resume_reading()
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def resume_reading(self) -> None:
        if self._is_paused and self.connection is not None:
            self._is_paused = False
            self.connection.resume()

    async def close(self) -> None:
        """Nobody waits any more: what is not over costs its connection."""
        if not self.is_over and self.connection is not None:
            self.connection.close()
        self._chunks, self._parser = [], None

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # --- what comes

    def feed(self, data: bytes) -> None:
        self.is_begun = True
        self._overhead += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self.is_over:  # only something behind the answer, which is nobody's
                self.is_reusable = False
            else:
                self._fail(_failure(error))
        else:
            if self._overhead > MAX_HEAD and not self.is_over:
                self._fail(WebError("too_large", f"The answer has over {MAX_HEAD} bytes of headers"))
        if self.is_over:
            self._parser = None  # it knows us as we know it: neither would be freed without the garbage collector
        self._wake()

    def lose(self, error: Exception | None) -> None:
        """The connection is gone; an answer that ends with it is complete."""
        self._parser = None
        ends_here = self._has_head and not self._ends_itself and error is None
        if ends_here:
            self.is_over = True
        elif not self.is_over:
            self.error = WebError("broken", str(error) if error is not None else "the connection was closed")
        self._wake()

    def _fail(self, error: WebError) -> None:
        self.error, self.is_over, self.is_reusable = error, True, False

    # --- llhttp

    def on_message_begin(self) -> None:
        if self.is_over:  # a response that nobody asked for
            self.is_reusable = False

    def on_status(self, reason: bytes) -> None:
        if not self._has_head:
            self.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._has_head:
            return  # a trailer
        if len(self.headers) >= MAX_HEADERS:
            raise WebError("too_large", f"The answer has more than {MAX_HEADERS} headers")
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._has_head:
            return
        status: int = self._parser.get_status_code()
        if status < 200:  # an interim response, such as early hints
            self.headers, self.reason = [], b""
            return
        self.status = status
        self._has_head = True
        for name, value in self.headers:
            if name == b"content-length":
                self._has_length = True
            elif name == b"transfer-encoding":
                self._is_chunked = value.strip().lower() == b"chunked"
                if not self._is_chunked:
                    raise WebError("broken", "it answers with a transfer coding that was not asked for")
            elif name == b"keep-alive":
                self.idle_limit = _idle_limit(value)
        self._ends_itself = self._has_length or self._is_chunked or status in _BODILESS
        if self._method in ("HEAD", "CONNECT"):  # what else it says of a body is about another request
            self.is_over = True
            self.is_reusable = False

    def on_body(self, data: bytes) -> None:
        if self.is_over:
            return
        self._overhead = 0
        self._chunks.append(data)
        self._buffered += len(data)
        if self._buffered > MAX_BUFFERED and not self._is_paused and self.connection is not None:
            self._is_paused = True
            self.connection.pause()

    def on_message_complete(self) -> None:
        if self._has_head and not self.is_over:
            self.is_over = True
            self.is_reusable = bool(self._parser.should_keep_alive()) and not (self._has_length and self._is_chunked)


def _idle_limit(value: bytes) -> float:
    """The seconds of `Keep-Alive: timeout=5, max=100`."""
    for part in value.split(b","):
        name, _, number = part.partition(b"=")
        if name.strip().lower() == b"timeout" and number.strip().isdigit():
            return float(number)
    return math.inf


def _failure(error: Exception) -> WebError:
    """What the parser stopped at: our own objection, or what is no HTTP."""
    if isinstance(error.__context__, WebError):
        return error.__context__
    is_upgrade = isinstance(error, httptools.HttpParserUpgrade)
    return WebError("broken", f"it answers with what is no HTTP ({'another protocol' if is_upgrade else error})")


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


# Where distributions keep what they trust, for a Python that was built on another one.
_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


def proxy_for(endpoint: Endpoint, variables: Mapping[str, str] = os.environ) -> Endpoint | None:
    """The proxy for an endpoint, by HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY; None where there is none."""
    url = _variable(f"{endpoint.scheme}_proxy", variables) or _variable("all_proxy", variables)
    if not url or _bypasses_proxy(endpoint, _variable("no_proxy", variables)):
        return None
    return _read_proxy(url)


def _variable(name: str, variables: Mapping[str, str]) -> str:
    """A variable in either spelling; in a CGI program HTTP_PROXY is a header of the request, and anybody's."""
    if name == "http_proxy" and "REQUEST_METHOD" in variables:
        return variables.get(name, "")
    return variables.get(name) or variables.get(name.upper(), "")


@lru_cache(maxsize=32)
def _read_proxy(url: str) -> Endpoint:
    written = url if "://" in url else f"http://{url}"
    scheme, _, rest = written.partition("://")
    if scheme not in ("http", "https"):
        raise WebError("unsendable", f"A proxy with {scheme} is not supported: pass an httpx2 client that supports it")
    return read_endpoint(f"{scheme}://{rest.partition('/')[0]}")


def _bypasses_proxy(endpoint: Endpoint, exceptions: str) -> bool:
    return any(_matches(endpoint, each.strip().lower()) for each in exceptions.split(",") if each.strip())


def _matches(endpoint: Endpoint, exception: str) -> bool:
    if exception == "*":
        return True
    if exception in (endpoint.with_port, endpoint.host, f"[{endpoint.host}]"):
        return True
    name, _, port = exception.rpartition(":") if exception.count(":") == 1 else (exception, "", "")
    if port and port != str(endpoint.port):
        return False
    name = (name or exception).removeprefix("*").lstrip(".")
    return endpoint.host == name or endpoint.host.endswith(f".{name}") or _is_in_network(endpoint.host, name)


def _is_in_network(host: str, network: str) -> bool:
    address = literal_address(host)
    try:
        return address is not None and "/" in network and ip_address(address) in ip_network(network, strict=False)
    except ValueError:
        return False


# --- encryption ---------------------------------------------------------------------------------------------------


def tls_context() -> ssl.SSLContext:
    """The context for encrypted connections, as SSL_CERT_FILE and SSL_CERT_DIR have it, made once."""
    return _context(os.environ.get("SSL_CERT_FILE", ""), os.environ.get("SSL_CERT_DIR", ""))


@lru_cache(maxsize=8)
def _context(file: str, folder: str) -> ssl.SSLContext:
    if file or folder:
        try:
            context = ssl.create_default_context(cafile=file or None, capath=folder or None)
        except OSError as error:
            raise WebError("unsendable", f"SSL_CERT_FILE or SSL_CERT_DIR cannot be read: {error}") from None
    elif sys.platform in ("win32", "darwin"):
        context = _system_context()
    else:
        context = ssl.create_default_context()
        if not context.get_ca_certs() and (bundle := _bundle()) is not None:
            context.load_verify_locations(bundle)
    context.set_alpn_protocols(["http/1.1"])
    return context


def _system_context() -> ssl.SSLContext:
    """A context that asks the trust store of the system, where the package truststore is installed."""
    try:
        import truststore
    except ImportError:
        return ssl.create_default_context()
    context: ssl.SSLContext = truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return context


def _bundle() -> str | None:
    """The system's bundle, unless OpenSSL finds its certificates in a folder by itself."""
    paths = ssl.get_default_verify_paths()
    if paths.capath and any(Path(paths.capath).glob("*.0")):
        return None
    return next((each for each in _BUNDLES if Path(each).is_file()), None)
