"""Uvicorn's HTTP protocol with limits on headers, time, waiting requests, and connections.

It is the only file that knows uvicorn's protocol class; `enfold serve` gives it to uvicorn.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Final

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from enfold.observability.log import Log
from enfold.surfaces.limits import Limits

_SLICE: Final = 512  # bytes that are parsed at a time where many requests have come at once
_ANSWER: Final = (
    b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n%b\r\n%b"
)
_BODY: Final = b'{"error":"%b"}'
_RETRY: Final = b"retry-after: 1\r\n"
_NOT_HTTP: Final = (400, b"Bad Request", "", b"VALIDATION_ERROR", b"This is not HTTP")
_NO_TUNNEL: Final = b"CONNECT, and a body in a request to upgrade the connection, are not supported"
_WRONG_AUTHORITY: Final = b"The host of the request target and the Host header differ"
_FRAMING: Final = (b"content-length", b"transfer-encoding")

# Every request calls these three: by name they cost less than by `super()`.
_on_headers_complete: Final = HttpToolsProtocol.on_headers_complete
_on_message_complete: Final = HttpToolsProtocol.on_message_complete
_on_response_complete: Final = HttpToolsProtocol.on_response_complete

_log: Final = Log("enfold.connections")


def limited_protocol(limits: Limits) -> type[HttpToolsProtocol]:
    """Return a protocol class for one server, whose connections are counted together."""
    return type(
        "BoundedProtocol",
        (_BoundedProtocol,),
        {"__slots__": (), "limits": limits, "connection_limits": _ConnectionLimits(limits)},
    )


class _ConnectionLimits:
    """The connections of a server, by the address they come from."""

    def __init__(self, limits: Limits) -> None:
        self._most = limits.connections
        self._most_of_one = limits.connections_per_address
        self._all: dict[_BoundedProtocol, None] = {}
        self._by_address: dict[str, dict[_BoundedProtocol, None]] = {}
        self._logged: dict[str, float] = {}

    def add(self, connection: _BoundedProtocol, address: str) -> str | None:
        """Count a connection; where there are too many, an idle one is closed for it, or the limit that refuses it is given."""
        own = self._by_address.get(address, {})
        if len(own) >= self._most_of_one and not _close_idle(own):
            return "connections_per_address"
        if len(self._all) >= self._most and not _close_idle(self._all):
            return "connections"
        self._all[connection] = None
        self._by_address.setdefault(address, own)[connection] = None
        return None

    def remove(self, connection: _BoundedProtocol, address: str) -> None:
        self._all.pop(connection, None)
        own = self._by_address.get(address)
        if own is not None:
            own.pop(connection, None)
            if not own:
                del self._by_address[address]

    def log_reached(self, limit: str, address: str) -> None:
        """Write to the log that a limit was reached, at most once a second for each limit."""
        now = time.monotonic()
        if now - self._logged.get(limit, -1.0) >= 1.0:
            self._logged[limit] = now
            _log.warning("The limit %s was reached by a connection from %s", limit, address or "an unknown address")


def _close_idle(connections: dict[_BoundedProtocol, None]) -> bool:
    """Close one of some connections, the oldest that never sent a request or else has none now; False if all have one."""
    found = next((each for each in connections if not each.has_asked), None)
    if found is None:
        found = next((each for each in connections if each.is_idle), None)
    if found is not None:
        found.close_for_another()
    return found is not None


class _HoldableFlow(FlowControl):
    """Flow control that cannot be resumed while too many pipelined requests wait."""

    is_paused = False

    def resume_reading(self) -> None:
        if not self.is_paused:
            super().resume_reading()


class _BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    # Beside uvicorn's own fields, of which there are so many that Python would look up all of them more slowly.
    __slots__ = (
        "_address",
        "_flow",
        "_head_bytes",
        "_head_timer",
        "_held",
        "_is_closing",
        "_is_in_head",
        "_piece_bytes",
        "_stall_timer",
        "has_asked",
    )

    limits: ClassVar[Limits]
    connection_limits: ClassVar[_ConnectionLimits]

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.headers = []
        self.has_asked = False  # a whole head has come
        self._address = ""
        self._is_in_head = True
        self._head_bytes = 0  # of pieces that ended inside of a head, or that held nothing of the body they came in
        self._piece_bytes = 0
        self._held: bytes | bytearray = b""
        self._is_closing = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no request of the connection is being answered."""
        return not self.has_asked or self.cycle.response_complete

    # the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self.flow = self._flow = _HoldableFlow(transport)
        self._address = self.client[0] if self.client else ""
        limit = self.connection_limits.add(self, self._address)
        if limit is None:
            self._start_head_timer()
        else:
            self._refuse(503, b"Service Unavailable", limit, b"RESOURCE_EXHAUSTED", b"There are too many connections")

    def connection_lost(self, exc: Exception | None) -> None:
        self.connection_limits.remove(self, self._address)
        self._is_closing, self._held = True, b""
        self._stop_head_timer()
        self._stop_stall_timer()
        super().connection_lost(exc)

    def close_for_another(self) -> None:
        """Close this idle connection, so that another can be accepted."""
        self.connection_limits.remove(self, self._address)
        self._close()

    # reading

    def data_received(self, data: bytes) -> None:
        if self._is_closing:
            return
        if self._held or len(self.pipeline) >= self.limits.pipelined:
            self._hold(data)
        elif len(data) > _SLICE and (
            data.count(b"HTTP/1.") > self.limits.pipelined or data.count(b"\n") > self.limits.headers
        ):
            self._feed_in_slices(data)
        else:
            self._feed(data)

    def _feed(self, data: bytes | bytearray) -> None:
        self._piece_bytes = size = len(data)
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        cycle, body = (None, 0) if self._is_in_head else (self.cycle, len(self.cycle.body))
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:  # there is nothing to upgrade to: it is a request like others
            if rest := data[upgrade.args[0] :]:
                self._feed(rest)
                return
        except httptools.HttpParserError:
            if not self._is_closing:
                self._refuse_malformed()
            return
        if self._is_in_head:
            self._head_bytes += size
        elif cycle is self.cycle and not cycle.response_complete:  # a trailer, or what stands around a chunk
            self._head_bytes = self._head_bytes + size if len(cycle.body) == body else 0
        if self._head_bytes > 0 or not self._is_in_head:
            self._check_progress()
        elif self._head_timer is not None:
            self._stop_head_timer()

    def _check_progress(self) -> None:
        """Start the timer for an incomplete head, or for the rest of a body whose request has been answered; check the limits."""
        if self._head_bytes > self.limits.header_bytes:
            self._refuse_head("header_bytes")
        elif len(self.headers) > self.limits.headers:
            self._refuse_head("headers")
        elif not self._is_in_head and not self.is_idle:
            self._stop_head_timer()  # the app waits for the body
        elif self._head_timer is None:
            self._start_head_timer()

    def _feed_in_slices(self, data: bytes | bytearray) -> None:
        """Parse piece by piece, so that a limit is met early; of requests only as many as may wait, the rest is kept."""
        for start in range(0, len(data), _SLICE):
            if len(self.pipeline) >= self.limits.pipelined:
                self._hold(data[start:])
                return
            self._feed(data[start : start + _SLICE])
            if self._is_closing:
                return

    def _hold(self, data: bytes | bytearray) -> None:
        """Keep what came, and read no more, until the requests that wait are answered."""
        if not self._held:
            self.connection_limits.log_reached("pipelined", self._address)
            self._held = bytearray()
        self._held += data
        self._flow.pause_reading()
        self._flow.is_paused = True

    def on_response_complete(self) -> None:
        _on_response_complete(self)
        if (self._held or not self._is_in_head) and not self._is_closing and not self.transport.is_closing():
            self._resume()

    def _resume(self) -> None:
        if self._held and not self.pipeline:
            held, self._held = self._held, b""
            self._flow.is_paused = False
            self._flow.resume_reading()
            self._feed_in_slices(held)
        elif self.is_idle:  # the rest of an unread body must arrive in time, too
            self._start_head_timer()

    # what the parser has found

    def on_headers_complete(self) -> None:
        if len(self.headers) > self.limits.headers:
            self._refuse_head("headers")
        elif self._head_bytes + self._piece_bytes > self.limits.header_bytes and self._is_head_too_large():
            self._refuse_head("header_bytes")
        elif self.parser.should_upgrade() and self._has_unread_body():
            self._refuse(400, b"Bad Request", "", b"VALIDATION_ERROR", _NO_TUNNEL)
        elif self.url[:1] not in b"/*" and not self._is_for_its_host():
            self._refuse(400, b"Bad Request", "", b"VALIDATION_ERROR", _WRONG_AUTHORITY)
        else:
            self._head_bytes = 0
            _on_headers_complete(self)
            self.has_asked = True
            self._is_in_head = False
            self.headers = []  # for trailers, which are no headers
            if not self.cycle.keep_alive and self.scope["http_version"] != "1.1":
                self.cycle.waiting_for_100_continue = False
                _send_without_chunks(self.cycle)
            return
        raise ConnectionAbortedError  # which ends the parsing

    def on_message_complete(self) -> None:
        self._is_in_head = True
        # What follows in the same piece is not counted again with the next one.
        self._head_bytes = -self._piece_bytes
        _on_message_complete(self)

    def _has_unread_body(self) -> bool:
        """Whether bytes follow that httptools would parse as the next request: it reads no body where `should_upgrade()`."""
        return self.parser.get_method() == b"CONNECT" or any(
            name in _FRAMING and value != b"0" for name, value in self.headers
        )

    def _is_for_its_host(self) -> bool:
        """Whether a target in absolute form (RFC 9112, 3.2.2) names the host that the Host header names."""
        _, _, rest = self.url.partition(b"://")
        authority = rest.partition(b"/")[0].lower()
        return all(value.lower() == authority for name, value in self.headers if name == b"host")

    def _is_head_too_large(self) -> bool:
        lines = sum(len(name) + len(value) + 4 for name, value in self.headers)
        return len(self.url) + lines > self.limits.header_bytes

    # time

    def _start_head_timer(self) -> None:
        self._stop_head_timer()
        self._head_timer = self.loop.call_later(self.limits.header_seconds, self._give_up_on_head)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up_on_head(self) -> None:
        self._head_timer = None
        if self._head_bytes > 0 and self.is_idle and self._is_in_head:
            self._refuse(408, b"Request Timeout", "header_seconds", b"TIMEOUT", b"The head did not arrive in time")
        elif self.is_idle:
            self._close()

    # writing

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_stall_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_stall_timer()

    def _start_stall_timer(self) -> None:
        waiting = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(self.limits.stalled_seconds, self._check_stalled, waiting)

    def _check_stalled(self, before: int) -> None:
        """Give up on a client that has read nothing for a while, though an answer waits for it."""
        if self.transport.get_write_buffer_size() < before:
            self._start_stall_timer()
            return
        self.connection_limits.log_reached("stalled_seconds", self._address)
        self._is_closing = True
        self.transport.abort()

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    # refusing

    def _refuse_head(self, limit: str) -> None:
        if not self._is_in_head:
            self.connection_limits.log_reached(limit, self._address)
            self._refuse_malformed()
            return
        message = b"The head of a request is at most %d bytes in %d headers" % (
            self.limits.header_bytes,
            self.limits.headers,
        )
        self._refuse(431, b"Request Header Fields Too Large", limit, b"PAYLOAD_TOO_LARGE", message)

    def _refuse_malformed(self) -> None:
        """Refuse what cannot be parsed: in a body it is that request's fault, in a head the requests before it are answered first."""
        if self._is_in_head:
            self._refuse(*_NOT_HTTP)
        elif self.pipeline:
            self.pipeline[0] = (self.cycle, _refuse_body)
            self._close_after_answers()
        elif self.cycle.response_started:
            self._close()
        else:
            # To its app the client has gone, and so nothing else is answered.
            self.cycle.disconnected = self.cycle.response_complete = True
            self.cycle.message_event.set()
            self._refuse(*_NOT_HTTP)

    def _refuse(self, status: int, phrase: bytes, limit: str, code: bytes, message: bytes) -> None:
        """Answer instead of the app, unless earlier responses are pending, and close the connection."""
        if limit:
            self.connection_limits.log_reached(limit, self._address)
        if not self.is_idle:
            self._close_after_answers()
            return
        body = _BODY % message
        extra = b"enfold-code: %b\r\n%b" % (code, _RETRY if status == 503 else b"")
        self.transport.write(_ANSWER % (status, phrase, len(body), extra, body))
        self._close()

    def _close_after_answers(self) -> None:
        """Read no more, and close the connection with the answer to the last request."""
        self._is_closing, self._held = True, b""
        self._stop_head_timer()
        self.cycle.keep_alive = False

    def _close(self) -> None:
        self._is_closing = True
        self._stop_head_timer()
        self.transport.close()


def _send_without_chunks(cycle: RequestResponseCycle) -> None:
    """Let the end of the connection end the body of an answer without a length, as HTTP/1.0 has it."""
    send: Callable[[Any], Awaitable[None]] = cycle.send

    async def send_whole(message: Any) -> None:
        cycle.chunked_encoding = False
        cycle.expected_content_length = len(message.get("body", b""))  # else uvicorn misses what it was not told of
        await send(message)

    cycle.send = send_whole  # type: ignore[method-assign]  # the only way to have a say in it


async def _refuse_body(_scope: object, _receive: object, send: Callable[[Any], Awaitable[None]]) -> None:
    """Answer a request with a malformed body when its turn has come."""
    status, _, _, code, message = _NOT_HTTP
    body = _BODY % message
    told = (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), (b"enfold-code", code)
    await send({"type": "http.response.start", "status": status, "headers": told})
    await send({"type": "http.response.body", "body": body})
