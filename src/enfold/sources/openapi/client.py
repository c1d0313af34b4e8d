"""The client of one service: retries, redirects, and streams of events or JSON texts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import msgspec

from enfold.envelope import BODILESS, ResponseEnvelope, ResultWarning, http_envelope
from enfold.errors import CallError
from enfold.http_client import Request, Response, WebError, open_client
from enfold.http_client.client import follow
from enfold.http_client.errors import IDEMPOTENT_METHODS, read_retry_after
from enfold.http_client.messages import Headers
from enfold.observability import spans
from enfold.operations import Context
from enfold.sources.decoders import EventDecoder, EventTooLargeError, RecordDecoder, ServerSentEvent, read_json
from enfold.sources.openapi.media_types import EVENT_STREAM, SEQUENCE_STREAMS, bare, is_json, is_stream
from enfold.sources.openapi.responses import ReceivedResponse, to_envelope, to_error
from enfold.sources.openapi.servers import Reach
from enfold.sources.options import Service
from enfold.sources.secrets import KnownSecrets

if TYPE_CHECKING:
    from enfold.http_client import AnyClient


RETRIED_STATUSES: Final = frozenset({429, 502, 503, 504})

_FIRST_WAIT: Final = 0.1


class ServiceClient:
    """The client of one source: ours by default, or the user's own httpx or httpx2 client."""

    def __init__(self, reach: Reach, service: Service, headers: Mapping[str, str] | None = None) -> None:
        """`headers`, and those that the user's client adds, are sent only to the user's own server."""
        self.reach = reach
        self.limits = service.limits
        self.private_headers = tuple(service.private_headers)  # which callers never see
        self.secrets = KnownSecrets()  # which answers must not repeat to callers
        self._own_headers = list((headers or {}).items())
        self._given = service.client
        self._client: AnyClient | None = None
        self._lost = ""  # the origin of the user's own server that could not be reached
        self.why = ""  # why the server is unreachable; empty before the first request
        self.watchers: list[Callable[[], None]] = []  # called when that changes

    # --- whole answers

    async def fetch(self, request: Request) -> ReceivedResponse:
        """Send a request and read its response; follow redirects, and retry where that is safe."""
        response = await self.open(request)
        try:
            return await self.read(response, request)
        finally:
            await response.close()

    async def read(self, response: Response, request: Request) -> ReceivedResponse:
        """Read an open response; reject one that is too large before it is complete."""
        is_head = request.method == "HEAD"
        try:
            content = b"" if is_head else await response.body(self.limits.response_bytes)
        except WebError as error:
            raise self.failure(error, request) from error
        secrets = self.secrets
        return ReceivedResponse(
            response.status,
            secrets.redact(response.reason),
            secrets.redact_headers(response.headers),
            secrets.redact_bytes(content),
            request.method,
        )

    # --- open responses

    async def open(self, request: Request) -> Response:
        """Return an open response of any status; the caller closes it."""
        if request.content is not None and len(request.content) > self.limits.request_bytes:
            raise CallError(
                "PAYLOAD_TOO_LARGE", f"The request body exceeds the limit of {self.limits.request_bytes} bytes"
            )
        if spans.inject is not None:
            request = _with_missing(request, list(spans.inject().items()))
        attempt = 0
        while True:
            wait: float | None
            try:
                # Credentials go to the user's own server only.
                response = await follow(self.send, request, self._keeps_headers, self.limits.redirects)
            except WebError as error:
                failure = self.failure(error, request)
                if not failure.retryable or attempt >= self.limits.retries:
                    if error.kind == "unreachable" and self.reach.is_home(request.origin):
                        self._lost = request.origin
                        self._note(failure.message)
                    raise failure from error
                wait = _backoff(attempt)
            else:
                wait = self._wait_before_retry(request, response, attempt)
                if wait is None:
                    return response
                await response.close()
            attempt += 1
            await asyncio.sleep(wait)

    def _wait_before_retry(self, request: Request, response: Response, attempt: int) -> float | None:
        """Return the seconds before another attempt; None to keep this response."""
        if (
            response.status not in RETRIED_STATUSES
            or request.method not in IDEMPOTENT_METHODS
            or attempt >= self.limits.retries
        ):
            return None
        asked = read_retry_after(response.header("retry-after"))
        if asked is None:
            return _backoff(attempt)
        return asked + _backoff(0) if asked <= self.limits.retry_wait else None

    async def send(self, request: Request) -> Response:
        """Send one request and return an open response, without following redirects."""
        if self._client is None:
            self._client = open_client(self._given)
        is_home = self.reach.is_home(request.origin)
        if self._own_headers and is_home:
            request = _with_missing(request, self._own_headers)
        response = await self._client.send(request, is_own=is_home)
        if is_home and self.why:
            self._note("")
        return response

    # --- whether the user's own server is there

    async def probe(self) -> None:
        """Send a server that could not be reached a HEAD request: whatever it answers, it is back."""
        request = Request("HEAD", self._lost, "/")
        try:
            response = await self.send(request)
        except WebError as error:
            raise CallError("UNAVAILABLE", error.sentence) from error
        await response.close()

    def _note(self, why: str) -> None:
        """Remember why the server cannot be reached, or that it can; call the watchers where that is news."""
        is_news, self.why = bool(why) != bool(self.why), why
        if is_news:
            for callback in list(self.watchers):
                callback()

    # --- redirects and failures

    def _keeps_headers(self, url: str, status: int) -> bool:
        refusal = self.reach.refusal(url)
        if refusal is not None:
            details = {"status": status, "location": self.secrets.redact(url)}
            raise CallError("EXECUTION_ERROR", f"A redirect was refused: {refusal}", details)
        return self.reach.is_home(url)

    async def aclose(self) -> None:
        """Close the connections; a client the user gave stays theirs."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def failure(self, error: WebError, request: Request) -> CallError:
        """Return the error for a request without a response."""
        host, is_safe = request.origin.partition("//")[2].rpartition("@")[2], request.method in IDEMPOTENT_METHODS
        if error.kind == "unreachable":
            return CallError("UNAVAILABLE", f"{host} cannot be reached: {error.sentence}", retryable=True)
        if error.kind == "broken":
            return CallError("UNAVAILABLE", f"{host} closed the connection early: {error.sentence}", retryable=is_safe)
        if error.kind == "late":
            return CallError("TIMEOUT", f"{host} did not respond in time", retryable=is_safe)
        if error.kind == "unsendable":
            return CallError("VALIDATION_ERROR", f"The request cannot be sent: {error.sentence}")
        if error.kind == "too_large":
            return CallError("PAYLOAD_TOO_LARGE", error.sentence, {"limit": self.limits.response_bytes})
        return CallError("EXECUTION_ERROR", error.sentence, {"reason": error.kind})


def _with_missing(request: Request, headers: Headers) -> Request:
    """Return a request with those of the headers that it does not have."""
    present = {name.lower() for name, _ in request.headers}
    missing = [(name, value) for name, value in headers if name.lower() not in present]
    return msgspec.structs.replace(request, headers=[*request.headers, *missing])


def _backoff(attempt: int) -> float:
    return _FIRST_WAIT * (1 << attempt) * (0.5 + random.random())  # noqa: S311  # jitter needs no secrecy


END_MARK: Final = "[DONE]"  # how streams in the manner of OpenAI end; it is no JSON
FIRST_PAUSE: Final = 0.5
MAX_PAUSE: Final = 30.0


class ResponseStream(msgspec.Struct, frozen=True, eq=False):
    """The stream of one operation: opened, read item by item, resumed after a cut, closed with its consumer."""

    client: ServiceClient
    is_text: bool  # whether the schema wants an item's text as it is, though it may look like JSON

    async def items(
        self, ready: Callable[[str], Awaitable[Request]], context: Context
    ) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """Yield an envelope for each item; `ready` creates the request for every connection, after the last event id."""
        resume = context.last_event_id or ""
        pause, cuts, given = FIRST_PAUSE, 0, 0
        while True:
            request = await ready(resume)
            try:
                async with aclosing(self._one_connection(request, resume, is_first=cuts == 0)) as envelopes:
                    async for envelope, event_id in envelopes:
                        given += 1
                        context.event_id = event_id or None
                        yield envelope
            except _CutError as cut:
                resume = cut.last_event_id or resume
                cuts += 1
                # Only a GET is repeated, and only if no item would be.
                may_repeat = request.method == "GET" and (resume or not given)
                if not may_repeat or cuts > self.client.limits.reconnects:
                    message = f"The stream ended early after {given} items: {cut.cause.message}"
                    raise CallError("DATA_LOSS", message, {"items": given}) from cut.cause
                pause = cut.retry / 1000 if cut.retry is not None else pause
            else:
                return
            await asyncio.sleep(min(pause, MAX_PAUSE))
            pause *= 2

    async def _one_connection(
        self, request: Request, resume: str, *, is_first: bool
    ) -> AsyncGenerator[tuple[ResponseEnvelope[Any], str]]:
        """Yield the envelopes of one connection, with the last event id; raise _CutError if it breaks."""
        response = await self._open(request, resume, is_first=is_first)
        reader: EventDecoder | RecordDecoder | None = None
        try:
            if response.status >= 400:
                raise to_error(await self.client.read(response, request))
            if response.status in BODILESS:  # the server says that there is no more
                return
            content_type = response.header("content-type") or ""
            if not is_stream(content_type):
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

    async def _open(self, request: Request, resume: str, *, is_first: bool) -> Response:
        try:
            return await self.client.open(request)
        except CallError as error:
            if is_first or not error.retryable:
                raise
            raise _CutError(error, resume) from error

    async def _whole(self, response: Response, request: Request, content_type: str) -> ResponseEnvelope[Any]:
        """Treat a single JSON value as a stream of one item: some servers respond to short results that way."""
        if not is_json(content_type):
            details = {"content_type": content_type, "reason": "content_type"}
            raise CallError("EXECUTION_ERROR", f"Not a stream: {content_type or 'no content type'}", details)
        answer = await self.client.read(response, request)
        return to_envelope(answer, expects_json=True, private_headers=self.client.private_headers)

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
            content_type=bare(content_type),
            private_headers=self.client.private_headers,
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


async def _items(response: Response, reader: EventDecoder | RecordDecoder) -> AsyncGenerator[ServerSentEvent]:
    async with aclosing(response.chunks()) as chunks:
        async for chunk in chunks:
            for item in reader.feed(chunk):
                yield item
    for item in reader.end():
        yield item


def _reader(content_type: str, last_event_id: str, limit: int) -> EventDecoder | RecordDecoder:
    kind = bare(content_type)
    if kind == EVENT_STREAM:
        return EventDecoder(last_event_id=last_event_id, max_event=limit)
    return RecordDecoder(b"\x1e" if kind in SEQUENCE_STREAMS else b"\n", limit)
