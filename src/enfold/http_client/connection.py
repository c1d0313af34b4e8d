"""Connections: HTTP/1.1 exchanges parsed by llhttp, the pool, name resolution, proxies and certificates."""

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

MAX_HEAD: Final = 64 * 1024  # bytes other than content: head, early hints, trailers, chunk extensions
MAX_HEADERS: Final = 256
MAX_BUFFERED: Final = 256 * 1024  # bytes buffered before reading is paused

_BODILESS: Final = frozenset({204, 304})


class Connection(asyncio.Protocol):
    """A connection that returns to its pool after an exchange."""

    def __init__(self, pool: Pool, key: Key) -> None:
        self._pool = pool
        self.key = key
        self._exchange: ResponseReader | None = None
        self.transport: Any = None
        self.peer = ""  # the remote address
        self.descriptor = -1  # of its socket
        self.is_open = False
        self.is_used = False  # whether it has completed an exchange
        self.good_until = 0.0  # when the pool discards it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.is_open = True
        self.descriptor = int(transport.get_extra_info("socket").fileno())
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if isinstance(peer, tuple) else ""

    def send(self, exchange: ResponseReader, data: bytes) -> None:
        """Start an exchange: write the request and read the response."""
        exchange.connection = self
        self._exchange = exchange
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:  # unsolicited data
            self.close()
            return
        exchange.feed(data)
        if exchange.is_over:
            self._exchange = None
            self.is_used = True
            exchange.resume_reading()  # the buffered data is in memory; the connection is free
            if exchange.opens_tunnel:
                return
            # The next request must not wait for the rest of this response.
            is_written = self.transport.get_write_buffer_size() == 0
            if exchange.is_reusable and self.is_open and is_written:
                self._pool.release(self, exchange.idle_limit)
            else:
                self.close()

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
        """Abort the connection and any exchange on it."""
        self.is_open = False
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.lose(ConnectionError("the connection was closed here"))
        if self.transport is not None:
            self.transport.abort()


class ResponseReader:
    """The response to one request while it arrives: callbacks for llhttp, and methods for the reader."""

    connection: Connection | None = None
    status = 0
    reason = b""
    is_begun = False  # whether any data has arrived
    is_over = False  # whether the response is complete
    is_reusable = False
    idle_limit = math.inf  # seconds after which the server closes the connection, if announced
    error: WebError | None = None
    _has_head = False
    _has_length = False
    _is_chunked = False
    _ends_itself = False  # whether the end is known without closing the connection
    _is_paused = False
    _overhead = 0
    _buffered = 0
    _waiter: asyncio.Future[None] | None = None

    def __init__(self, method: str) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self._method = method
        self._parser: Any = httptools.HttpResponseParser(self)
        # Old servers end lines with LF. A length with chunked encoding is ignored; such a connection is not reused.
        self._parser.set_dangerous_leniencies(lenient_chunked_length=True, lenient_optional_cr_before_lf=True)
        self._chunks: list[bytes] = []

    # --- who waits

    async def head(self) -> None:
        """Wait for the head of the response."""
        while not self._has_head:
            if self.error is not None:
                raise self.error
            await self._wait()

    @property
    def opens_tunnel(self) -> bool:
        return self._method == "CONNECT" and 200 <= self.status < 300

    async def chunk(self) -> bytes:
        """Return the next chunk of the body; empty at its end."""
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
        """Abandon the response; an incomplete one closes the connection."""
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
            if self.is_over:  # data after the response
                self.is_reusable = False
            else:
                self._fail(_failure(error))
        else:
            if self._overhead > MAX_HEAD and not self.is_over:
                self._fail(WebError("too_large", f"The response has over {MAX_HEAD} bytes of headers"))
        if self.is_over:
            self._parser = None  # break the reference cycle
        self._wake()

    def lose(self, error: Exception | None) -> None:
        """Handle a closed connection; a response that ends with it is complete."""
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
        if self.is_over:  # an unsolicited response
            self.is_reusable = False

    def on_status(self, reason: bytes) -> None:
        if not self._has_head:
            self.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._has_head:
            return  # a trailer
        if len(self.headers) >= MAX_HEADERS:
            raise WebError("too_large", f"The response has more than {MAX_HEADERS} headers")
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
                    raise WebError("broken", "unsupported transfer coding")
            elif name == b"keep-alive":
                self.idle_limit = _idle_limit(value)
        self._ends_itself = self._has_length or self._is_chunked or status in _BODILESS
        if self._method in ("HEAD", "CONNECT"):  # without a body, whatever the headers say
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
    """Return the seconds of `Keep-Alive: timeout=5, max=100`."""
    for part in value.split(b","):
        name, _, number = part.partition(b"=")
        if name.strip().lower() == b"timeout" and number.strip().isdigit():
            return float(number)
    return math.inf


def _failure(error: Exception) -> WebError:
    """Return the error that stopped the parser: one of ours, or invalid HTTP."""
    if isinstance(error.__context__, WebError):
        return error.__context__
    is_upgrade = isinstance(error, httptools.HttpParserUpgrade)
    return WebError("broken", f"invalid HTTP response ({'another protocol' if is_upgrade else error})")


# Whether an IP address of an endpoint may be contacted.
Allows: TypeAlias = Callable[[Endpoint, str], bool]
MakeConnection: TypeAlias = Callable[[], Connection]

STAGGER: Final = 0.25  # seconds before the next address is tried concurrently


async def dial(
    endpoint: Endpoint, proxy: Endpoint | None, make: MakeConnection, allows: Allows | None, seconds: float
) -> Connection:
    """Open a connection, encrypted for https; raise WebError if that fails or takes too long."""
    try:
        async with asyncio.timeout(seconds):
            if proxy is None:
                return await _connect(endpoint, make, allows)
            # A proxy resolves names itself, so only literal addresses can be checked here.
            _check_written(endpoint, allows)
            return await _through(proxy, endpoint, make)
    except TimeoutError:
        raise WebError("unreachable", f"could not connect within {seconds:g} seconds") from None
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
    except UnicodeError:  # an empty or too long label
        raise OSError("invalid host name") from None
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def _interleaved(addresses: list[str]) -> list[str]:
    """Interleave IPv4 and IPv6 addresses in the system's order of preference."""
    first = [each for each in addresses if (":" in each) == (":" in addresses[0])]
    other = [each for each in addresses if (":" in each) != (":" in addresses[0])]
    mixed = [each for pair in zip(first, other, strict=False) for each in pair]
    return mixed + first[len(other) :] + other[len(first) :]


async def _first(attempt: Callable[[str], Coroutine[Any, Any, Connection]], addresses: Iterable[str]) -> Connection:
    """Return the first connection to succeed; attempts start staggered and run concurrently."""
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
    """Connect to the proxy; for an encrypted endpoint, open a tunnel."""
    connection = await _connect(proxy, make, None)
    connection.peer = ""  # unknown behind a proxy
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
        raise OSError(f"no response from the proxy: {error.sentence}") from None
    if not 200 <= exchange.status < 300:
        raise OSError(f"the proxy rejected the request: HTTP {exchange.status}")


def _forbidden(endpoint: Endpoint) -> WebError:
    return WebError("refused", f"{endpoint.host} resolves to an address that may not be contacted")


def _sentence(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


Key: TypeAlias = tuple[Endpoint, Endpoint | None]  # the endpoint and its proxy

MAX_IDLE: Final = 100
LIFE: Final = 60.0  # seconds that an idle connection is kept
MARGIN: Final = 1.0  # seconds before the server's idle limit at which a connection is discarded
CONNECT: Final = 10.0  # seconds to connect


class Pool:
    """Connections by endpoint and proxy."""

    def __init__(self, allows: Allows | None = None) -> None:
        self._allows = allows
        self._idle: dict[Key, list[Connection]] = {}
        self._count = 0
        self._open: set[Connection] = set()

    def acquire(self, key: Key) -> Connection | None:
        """Return an idle connection that is still open, if any."""
        idle = self._idle.get(key)
        while idle:
            connection = idle.pop()  # the most recent, so that the others can expire
            self._count -= 1
            if connection.is_open and time.monotonic() < connection.good_until and not _has_news(connection):
                return connection
            connection.close()
        return None

    async def open(self, key: Key) -> Connection:
        """Open a new connection."""
        endpoint, proxy = key
        connection = await dial(endpoint, proxy, lambda: Connection(self, key), self._allows, CONNECT)
        self._open.add(connection)
        return connection

    def release(self, connection: Connection, idle_limit: float) -> None:
        """Take back a connection after an exchange; the server closes it after `idle` seconds."""
        if connection not in self._open or self._count >= MAX_IDLE:
            connection.close()
            return
        connection.good_until = time.monotonic() + min(LIFE, idle_limit - MARGIN)
        self._idle.setdefault(connection.key, []).append(connection)
        self._count += 1

    def discard(self, connection: Connection) -> None:
        """Remove a closed connection."""
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
    """Whether unread data is available, which on an idle connection can only be its end."""
    if not hasattr(select, "poll"):  # Windows, where `select` has no limit on descriptors
        return bool(select.select([connection.descriptor], [], [], 0)[0])
    poll = select.poll()
    poll.register(connection.descriptor, select.POLLIN)
    return bool(poll.poll(0))


# Certificate bundles of distributions, for a Python built elsewhere.
_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


def proxy_for(endpoint: Endpoint, variables: Mapping[str, str] = os.environ) -> Endpoint | None:
    """Return the proxy for an endpoint by HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, if any."""
    url = _variable(f"{endpoint.scheme}_proxy", variables) or _variable("all_proxy", variables)
    exceptions = [each.strip().lower() for each in _variable("no_proxy", variables).split(",")]
    if not url or any(_matches(endpoint, each) for each in exceptions if each):
        return None
    return _read_proxy(url)


def _variable(name: str, variables: Mapping[str, str]) -> str:
    """Return a variable in upper or lower case; under CGI, HTTP_PROXY is a request header and ignored."""
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
    """Return the cached SSL context, which honours SSL_CERT_FILE and SSL_CERT_DIR."""
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
    """Return a context with the system's trust store, if the package truststore is installed."""
    try:
        import truststore
    except ImportError:
        return ssl.create_default_context()
    context: ssl.SSLContext = truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return context


def _bundle() -> str | None:
    """Return the system's bundle, unless OpenSSL finds certificates itself."""
    paths = ssl.get_default_verify_paths()
    if paths.capath and any(Path(paths.capath).glob("*.0")):
        return None
    return next((each for each in _BUNDLES if Path(each).is_file()), None)
