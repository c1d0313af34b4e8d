"""One connection to a server: an exchange at a time, its answer read by llhttp, and nothing kept without a bound."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, Final

import httptools

from enfold.sources.web.web_error import WebError

if TYPE_CHECKING:
    from enfold.sources.web.pool import Key, Pool

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
