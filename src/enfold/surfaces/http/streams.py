"""A subscription as a streaming response: server-sent events or JSON lines, each with a marked end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias

import msgspec

from enfold.auth.challenges import refused_token
from enfold.envelope import HTTPResponseMeta, ResponseEnvelope
from enfold.errors import CallError
from enfold.observability.observers import Observers
from enfold.operations import Context
from enfold.operations.access import check_access
from enfold.surfaces.asgi import Exchange
from enfold.surfaces.authentication import Authentication
from enfold.surfaces.endpoints import NO_STORE, Functions, Route
from enfold.surfaces.http.stack import HTTPRequest
from enfold.surfaces.request import id_header, stream_type
from enfold.surfaces.responses import encode_result, not_acceptable

RETRY_MS: Final = 2_000
# Seconds before the headers are sent: an error that comes sooner is answered with its own status.
STATUS_DELAY: Final = 0.25

Envelopes: TypeAlias = AsyncGenerator[ResponseEnvelope[Any]]


class Framing(msgspec.Struct, frozen=True):
    """How the parts of a stream are written."""

    opening: bytes
    item: Callable[[bytes, str | None], bytes]
    complete: bytes
    failure: Callable[[bytes], bytes]
    heartbeat: bytes


def _event(data: bytes, event_id: str | None) -> bytes:
    return (
        b"data: %b\n\n" % data
        if event_id is None
        else b"id: %b\ndata: %b\n\n" % (event_id.encode("utf-8", "replace"), data)
    )


def _without_error_field(data: bytes) -> bytes:
    """Return a format's error without the field `error` in which some formats wrap it."""
    wire = msgspec.json.decode(data)
    is_alone = isinstance(wire, dict) and wire.keys() == {"error"}
    return msgspec.json.encode(wire["error"]) if is_alone else data


FRAMINGS: Final = {
    "text/event-stream": Framing(
        opening=b"retry: %d\n\n" % RETRY_MS,
        item=_event,
        complete=b'event: complete\ndata: {"complete":true}\n\n',
        failure=lambda data: b"event: error\ndata: %b\n\n" % data,
        heartbeat=b":\n\n",
    ),
    "application/x-ndjson": Framing(
        opening=b"",
        item=lambda data, _: data + b"\n",
        complete=b'{"complete":true}\n',
        failure=lambda data: b'{"complete":false,"error":%b}\n' % _without_error_field(data),
        heartbeat=b"",
    ),
}


# The error for a stream that the server has ended.
_ERRORS: Final[dict[str, Callable[[], CallError]]] = {
    "stopped": lambda: CallError("UNAVAILABLE", "The server is shutting down"),
    "refused": refused_token,
}


class Streams:
    """The open streams of one app, which `stop` ends."""

    def __init__(self, authentication: Authentication, observers: Observers, heartbeat: float) -> None:
        self.is_stopping = False
        self._authentication = authentication
        self._observers = observers
        self._heartbeat = heartbeat
        self._open: set[Exchange] = set()

    def stop(self) -> None:
        """End every stream with an error that says why."""
        self.is_stopping = True
        for exchange in list(self._open):
            exchange.stop()

    async def subscribe(self, functions: Functions, route: Route, request: HTTPRequest) -> None:
        """Send the items of a subscription."""
        media_type = stream_type(request.headers.get(b"accept"))
        if media_type is None:
            raise not_acceptable("text/event-stream or application/x-ndjson")
        if self.is_stopping:
            raise CallError("UNAVAILABLE", "The server is shutting down")
        route, given = await functions.arguments(route, request)
        context = functions.context(route, request)
        if request.method == "HEAD":
            check_access(route.spec, request.identity, given)
            head = [(b"content-type", media_type.encode()), NO_STORE, id_header(request)]
            await request.exchange.answer_empty(200, head)
            return
        await self.send(functions, request, context, media_type, route.prepared.subscribe(given, context))

    async def send(
        self, functions: Functions, request: HTTPRequest, context: Context, media_type: str, items: Envelopes
    ) -> None:
        """Send envelopes until they end, the client disconnects or its token becomes invalid."""
        exchange = request.exchange
        stream = SubscriptionStream(request, functions, media_type, context, self._heartbeat)
        self._open.add(exchange)
        self._observers.streams += 1
        try:
            with self._authentication.while_admitted(request.headers, request.identity, exchange.refuse):
                await stream.run(items)
        finally:
            self._observers.streams -= 1
            self._open.discard(exchange)
            request.sent, request.items = stream.sent, stream.items


class SubscriptionStream:
    """One stream on its way to one client."""

    def __init__(
        self, request: HTTPRequest, functions: Functions, media_type: str, context: Context, heartbeat: float
    ) -> None:
        self._request = request
        self._exchange = request.exchange
        self._functions = functions
        self._media_type = media_type
        self._framing = FRAMINGS[media_type]
        self._context = context
        self._heartbeat = heartbeat
        self._writing = asyncio.Lock()
        self._is_silent = True
        self.items = 0
        self.sent = 0  # bytes

    async def run(self, items: Envelopes) -> None:
        """Send every item; an error before the first is raised, a later one is sent in the stream."""
        beating = asyncio.create_task(self._send_heartbeats())
        try:
            await self._send_all(items)
        except CallError as error:
            await self._fail(error, beating)
        except asyncio.CancelledError:
            told = _ERRORS.get(self._exchange.ended or "")
            if told is None or self._exchange.end() is None:
                raise
            await self._fail(told(), beating)
        except OSError:
            pass  # some servers say so when a client has gone; what the handler raises comes as a CallError
        finally:
            beating.cancel()
            await items.aclose()

    async def _fail(self, error: CallError, beating: asyncio.Task[None]) -> None:
        async with self._writing:  # so that a heartbeat is not cut off in its middle
            beating.cancel()
        if not self._exchange.is_started:
            raise error
        text = self._functions.failure_text(self._request, error)
        await self._send(self._framing.failure(text), more=False)

    async def _send_all(self, items: Envelopes) -> None:
        request = self._request
        operation = request.spec
        is_resumable = operation is not None and operation.resumable
        async for envelope in items:
            event_id = self._event_id(envelope) if is_resumable else None
            text = encode_result(request.format.write, envelope, operation)
            await self._send(self._framing.item(text, event_id))
            self.items += 1
        await self._send(self._framing.complete, more=False)

    def _event_id(self, envelope: ResponseEnvelope[Any]) -> str | None:
        """Return the id that the handler set for this item, and clear it for the next."""
        given, self._context.event_id = self._context.event_id, None
        if given is None and isinstance(envelope.meta, HTTPResponseMeta):
            given = envelope.meta.last_event_id or None  # it may be unset
        return None if given is None else _one_line(str(given))

    async def _send_heartbeats(self) -> None:
        """Open the stream when its first item takes long, then send heartbeats while nothing else is sent."""
        await asyncio.sleep(STATUS_DELAY)
        with suppress(OSError):  # the client has disconnected, which the exchange notices
            await self._send(b"")
            while self._framing.heartbeat:
                self._is_silent = True
                await asyncio.sleep(self._heartbeat)
                if self._is_silent:
                    await self._send(self._framing.heartbeat)

    async def _send(self, chunk: bytes, *, more: bool = True) -> None:
        """Send one piece; the server makes us wait here when the client reads slowly, and so the handler waits too."""
        async with self._writing:
            if not self._exchange.is_started:
                await self._exchange.begin_stream(self._media_type, [id_header(self._request)])
                chunk = self._framing.opening + chunk
            self._is_silent = False
            if chunk or not more:
                self.sent += len(chunk)
                await self._exchange.send_part(chunk, more=more)


def _one_line(text: str) -> str:
    """Remove characters that would end the line or that a client must ignore from an id."""
    return "".join(character for character in text if character not in "\r\n\0")
