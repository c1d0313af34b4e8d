"""Streams: server-sent events, JSON lines and JSON sequences, each item in its own envelope; resumed where it is safe."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import Any, Final

import msgspec

from enfold.envelope import ResponseEnvelope, ResultWarning, http_envelope
from enfold.errors import CallError
from enfold.operation import Context
from enfold.sources.mending import read_json
from enfold.sources.openapi import media
from enfold.sources.openapi.requests import Outgoing
from enfold.sources.openapi.responses import ReceivedResponse, to_envelope, to_error
from enfold.sources.openapi.service_client import ServiceClient
from enfold.sources.sse import EventDecoder, EventTooLargeError, ServerSentEvent
from enfold.sources.web import Response, WebError

END_MARK: Final = "[DONE]"  # how streams in the manner of OpenAI end; it is no JSON
FIRST_PAUSE: Final = 0.5
MAX_PAUSE: Final = 30.0

_RECORD_SEPARATOR: Final = b"\x1e"


class ResponseStream(msgspec.Struct, frozen=True, eq=False):
    """The stream of one operation: opened, read item by item, resumed after a cut, closed with its consumer."""

    client: ServiceClient
    is_text: bool  # whether the schema wants an item's text as it is, though it may look like JSON
    private_headers: tuple[str, ...] = ()

    async def items(
        self, ready: Callable[[], Awaitable[Outgoing]], context: Context
    ) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """An envelope for each item; `ready` gives the request anew for every connection."""
        resume = context.last_event_id or ""
        pause, cuts, given = FIRST_PAUSE, 0, 0
        while True:
            request = await ready()
            if resume:
                _ask_to_resume(request, resume)
            connection = _StreamConnection(self.client, request, resume)
            try:
                async with aclosing(self._one_connection(connection, is_first=cuts == 0)) as envelopes:
                    async for envelope in envelopes:
                        given += 1
                        context.event_id = connection.last_event_id or None
                        yield envelope
            except _CutError as cut:
                resume = connection.last_event_id or resume
                cuts += 1
                if not _may_resume(request, resume, given, cuts, self.client.limits.reconnects):
                    raise _lost(cut, given) from cut.cause
                pause = connection.retry / 1000 if connection.retry is not None else pause
            else:
                return
            await asyncio.sleep(min(pause, MAX_PAUSE))
            pause *= 2

    async def _one_connection(
        self, connection: _StreamConnection, *, is_first: bool
    ) -> AsyncGenerator[ResponseEnvelope[Any]]:
        try:
            response = await connection.open(is_first=is_first)
            if response is None:
                return
            if media.is_stream(connection.content_type):
                async with aclosing(connection.items()) as items:
                    async for item in items:
                        if item.data == END_MARK:
                            return
                        yield self._envelope(item, connection)
            else:
                yield await self._whole(connection)
        finally:
            await connection.close()

    async def _whole(self, connection: _StreamConnection) -> ResponseEnvelope[Any]:
        """Some servers answer a short result at once: one JSON value is a stream of one item."""
        if not media.is_json(connection.content_type):
            details = {"content_type": connection.content_type, "reason": "content_type"}
            raise CallError("EXECUTION_ERROR", f"Not a stream: {connection.content_type or 'no content type'}", details)
        answer = await connection.read()
        return to_envelope(answer, expects_json=True, private_headers=self.private_headers)

    def _envelope(self, item: ServerSentEvent, connection: _StreamConnection) -> ResponseEnvelope[Any]:
        data, warnings = self._data(item)
        meta: dict[str, Any] = {"event_type": item.event, "last_event_id": item.id} if item.event else {}
        envelope = http_envelope(
            data,
            status_code=connection.status,
            headers=connection.headers,
            content_type=media.bare(connection.content_type),
            private_headers=self.private_headers,
            **meta,
        )
        return msgspec.structs.replace(envelope, warnings=warnings) if warnings else envelope

    def _data(self, item: ServerSentEvent) -> tuple[Any, tuple[ResultWarning, ...]]:
        if self.is_text and item.event:
            return item.data, ()
        try:
            return read_json(item.data)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            if item.event:  # the data of an event is text by right
                return item.data, ()
            return item.data, (ResultWarning("invalid_json", "", new=str(error), type="string", size=len(item.data)),)


class _CutError(Exception):
    """The connection broke before the stream's end."""

    def __init__(self, cause: CallError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class _StreamConnection:
    """One connection of a stream."""

    def __init__(self, client: ServiceClient, request: Outgoing, last_event_id: str) -> None:
        self._client = client
        self._request = request
        self._response: Any = None
        self._reader: EventDecoder | _RecordReader | None = None
        self._began_at = last_event_id
        self.content_type = ""
        self.status = 0
        self.headers: list[tuple[str, str]] = []

    @property
    def last_event_id(self) -> str:
        return self._reader.last_event_id if self._reader is not None else self._began_at

    @property
    def retry(self) -> int | None:
        return self._reader.retry if self._reader is not None else None

    async def open(self, *, is_first: bool) -> Response | None:
        """The open response; None where the server says that there is no more."""
        try:
            response = self._response = await self._client.open(self._request)
        except CallError as error:
            if is_first or not error.retryable:
                raise
            raise _CutError(error) from error
        if response.status >= 400:
            raise to_error(await self.read())
        if response.status in (204, 205):
            return None
        self.status = response.status
        self.headers = response.headers
        self.content_type = response.header("content-type") or ""
        return response

    async def read(self) -> ReceivedResponse:
        return await self._client.read(self._response, self._request)

    async def items(self) -> AsyncGenerator[ServerSentEvent]:
        """The items of the body, as they come."""
        self._reader = reader = _reader(self.content_type, self._began_at, self._client.limits.event_bytes)
        async with aclosing(self._chunks()) as chunks:
            async for chunk in chunks:
                for item in _bounded(reader.feed(chunk)):
                    yield item
        if isinstance(reader, _RecordReader):  # the last record needs no separator; an event without its end is none
            for item in reader.end():
                yield item

    async def _chunks(self) -> AsyncGenerator[bytes]:
        try:
            async with aclosing(self._response.chunks()) as chunks:
                async for chunk in chunks:
                    yield chunk
        except WebError as error:
            raise _CutError(self._client.failure(error, self._request)) from error

    async def close(self) -> None:
        if self._response is not None:
            await self._response.close()


def _bounded(items: Iterator[ServerSentEvent]) -> Iterator[ServerSentEvent]:
    try:
        yield from items
    except EventTooLargeError as error:
        raise CallError("PAYLOAD_TOO_LARGE", str(error)) from error


def _ask_to_resume(request: Outgoing, last_event_id: str) -> None:
    request.headers = [(name, value) for name, value in request.headers if name.lower() != "last-event-id"]
    request.headers.append(("Last-Event-ID", last_event_id))


def _may_resume(request: Outgoing, last_event_id: str, given: int, cuts: int, most: int) -> bool:
    """Only a GET is repeated, and only where no item would come twice: ids tell where to go on, or nothing came yet."""
    return request.method == "GET" and cuts <= most and (bool(last_event_id) or given == 0)


def _lost(cut: _CutError, given: int) -> CallError:
    return CallError("DATA_LOSS", f"The stream broke off after {given} items: {cut.cause.message}", {"items": given})


# --- readers ------------------------------------------------------------------------------------------------------


def _reader(content_type: str, last_event_id: str, limit: int) -> EventDecoder | _RecordReader:
    kind = media.bare(content_type)
    if kind == media.EVENT_STREAM:
        return EventDecoder(last_event_id=last_event_id, max_event=limit)
    return _RecordReader(_RECORD_SEPARATOR if kind in media.SEQUENCE_STREAMS else b"\n", limit)


class _RecordReader:
    """JSON texts with a separator, given as events without a name: lines, or the record separator of RFC 7464."""

    last_event_id: str = ""
    retry: int | None = None

    def __init__(self, separator: bytes, limit: int) -> None:
        self._separator = separator
        self._limit = limit
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> Iterator[ServerSentEvent]:
        self._rest += chunk
        if self._separator in chunk:
            *records, rest = bytes(self._rest).split(self._separator)
            self._rest = bytearray(rest)
            for record in records:
                yield from _record(record)
        if len(self._rest) > self._limit:
            raise EventTooLargeError(f"A record is over the limit of {self._limit} bytes")

    def end(self) -> Iterator[ServerSentEvent]:
        yield from _record(bytes(self._rest))


def _record(record: bytes) -> Iterator[ServerSentEvent]:
    text = record.decode("utf-8", "replace").strip("\ufeff \t\r\n")
    if text:
        yield ServerSentEvent(text, event="")
