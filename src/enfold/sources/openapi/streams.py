"""Streams: server-sent events, JSON lines and JSON sequences, each item in its own envelope; resumed where it is safe."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import Any, Final

import msgspec

from enfold.envelope import BODILESS, ResponseEnvelope, ResultWarning, http_envelope
from enfold.errors import CallError
from enfold.operation import Context
from enfold.sources.lenient_json import read_json
from enfold.sources.openapi import media
from enfold.sources.openapi.requests import Outgoing
from enfold.sources.openapi.responses import to_envelope, to_error
from enfold.sources.openapi.service_client import ServiceClient
from enfold.sources.sse import EventDecoder, EventTooLargeError, ServerSentEvent
from enfold.sources.web import Response, WebError
from enfold.sources.web.http_messages import Headers

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
                request.set_header("Last-Event-ID", resume)
            try:
                async with aclosing(self._one_connection(request, resume, is_first=cuts == 0)) as envelopes:
                    async for envelope, event_id in envelopes:
                        given += 1
                        context.event_id = event_id or None
                        yield envelope
            except _CutError as cut:
                resume = cut.last_event_id or resume
                cuts += 1
                if not _may_resume(request, resume, given, cuts, self.client.limits.reconnects):
                    message = f"The stream broke off after {given} items: {cut.cause.message}"
                    raise CallError("DATA_LOSS", message, {"items": given}) from cut.cause
                pause = cut.retry / 1000 if cut.retry is not None else pause
            else:
                return
            await asyncio.sleep(min(pause, MAX_PAUSE))
            pause *= 2

    async def _one_connection(
        self, request: Outgoing, resume: str, *, is_first: bool
    ) -> AsyncGenerator[tuple[ResponseEnvelope[Any], str]]:
        """The envelopes that come over one connection, with the last event id; a _CutError where it breaks."""
        response = await self._open(request, resume, is_first=is_first)
        reader: EventDecoder | _RecordReader | None = None
        try:
            if response.status >= 400:
                raise to_error(await self.client.read(response, request))
            if response.status in BODILESS:  # the server says that there is no more
                return
            content_type = response.header("content-type") or ""
            if not media.is_stream(content_type):
                yield await self._whole(response, request, content_type), resume
                return
            reader = _reader(content_type, resume, self.client.limits.event_bytes)
            headers = self.client.secrets.redact_headers(response.headers)
            async with aclosing(_items(response, reader)) as items:
                async for item in items:
                    if item.data == END_MARK:
                        return
                    yield self._envelope(item, response.status, headers, content_type), reader.last_event_id
        except EventTooLargeError as error:
            raise CallError("PAYLOAD_TOO_LARGE", str(error)) from error
        except WebError as error:
            last_event_id, retry = (reader.last_event_id, reader.retry) if reader is not None else (resume, None)
            raise _CutError(self.client.failure(error, request), last_event_id, retry) from error
        finally:
            await response.close()

    async def _open(self, request: Outgoing, resume: str, *, is_first: bool) -> Response:
        try:
            return await self.client.open(request)
        except CallError as error:
            if is_first or not error.retryable:
                raise
            raise _CutError(error, resume) from error

    async def _whole(self, response: Response, request: Outgoing, content_type: str) -> ResponseEnvelope[Any]:
        """Some servers answer a short result at once: one JSON value is a stream of one item."""
        if not media.is_json(content_type):
            details = {"content_type": content_type, "reason": "content_type"}
            raise CallError("EXECUTION_ERROR", f"Not a stream: {content_type or 'no content type'}", details)
        answer = await self.client.read(response, request)
        return to_envelope(answer, expects_json=True, private_headers=self.private_headers)

    def _envelope(
        self, item: ServerSentEvent, status: int, headers: Headers, content_type: str
    ) -> ResponseEnvelope[Any]:
        data, warnings = self._data(item)
        redact = self.client.secrets.redact
        meta: dict[str, Any] = (
            {"event_type": redact(item.event), "last_event_id": redact(item.id)} if item.event else {}
        )
        envelope = http_envelope(
            data,
            status_code=status,
            headers=headers,
            content_type=media.bare(content_type),
            private_headers=self.private_headers,
            **meta,
        )
        return msgspec.structs.replace(envelope, warnings=warnings) if warnings else envelope

    def _data(self, item: ServerSentEvent) -> tuple[Any, tuple[ResultWarning, ...]]:
        text = self.client.secrets.redact_bytes(item.data.encode()).decode()
        if self.is_text and item.event:
            return text, ()
        try:
            return read_json(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            if item.event:  # the data of an event is text by right
                return text, ()
            return text, (ResultWarning("invalid_json", "", new=str(error), type="string", size=len(text)),)


class _CutError(Exception):
    """The connection broke before the stream's end; `retry` is the milliseconds the server asks for before the next."""

    def __init__(self, cause: CallError, last_event_id: str, retry: int | None = None) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.last_event_id = last_event_id
        self.retry = retry


def _may_resume(request: Outgoing, last_event_id: str, given: int, cuts: int, most: int) -> bool:
    """Only a GET is repeated, and only where no item would come twice: ids tell where to go on, or nothing came yet."""
    return request.method == "GET" and cuts <= most and (bool(last_event_id) or given == 0)


async def _items(response: Response, reader: EventDecoder | _RecordReader) -> AsyncGenerator[ServerSentEvent]:
    """The items of a body, as they come."""
    async with aclosing(response.chunks()) as chunks:
        async for chunk in chunks:
            for item in reader.feed(chunk):
                yield item
    if isinstance(reader, _RecordReader):  # the last record needs no separator; an event without its end is none
        for item in reader.end():
            yield item


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
