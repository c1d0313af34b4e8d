"""A server at an address: streamable HTTP, with a session in the older revisions and without one in the newest."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

import msgspec

from enfold.errors import CallError
from enfold.mcp.headers import NAMED_BY, write_value
from enfold.mcp.json_rpc import ProtocolError, encode, request
from enfold.mcp.revisions import Revision
from enfold.sources.mcp.dispatcher import Dispatcher
from enfold.sources.mcp.outgoing_calls import OutgoingCall
from enfold.sources.mcp.upstream_failures import LostError, closed_connection, message_too_large, read_rpc_error
from enfold.sources.mcp.web_requests import DRAIN_SECONDS, OpenResponse, Web
from enfold.sources.sse import EventDecoder, EventTooLargeError, ServerSentEvent

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
STREAM_SECONDS: Final = 0.5  # that a session waits for its own stream
RECONNECT_SECONDS: Final = 1.0  # before a broken stream is resumed, where the server does not say


class HTTPConnection:
    """The connection to one address."""

    has_call_streams = True

    def __init__(self, web: Web, dispatcher: Dispatcher) -> None:
        self._web = web
        self._dispatcher = dispatcher
        dispatcher.connection = self
        self._limits = web.limits
        self._revision: Revision | None = None
        self._session_id: str | None = None
        self.is_open = True

    def agree(self, revision: Revision | None) -> None:
        """From now on requests name this revision, or none."""
        self._revision = revision

    async def send_call(self, call: OutgoingCall) -> None:
        """Post a request, and read the reply until the call has its answer."""
        reply = await self._post(request(call.id, call.method, call.params), self._headers(call))
        if reply.content_type == EVENTS:
            await self._take_events(reply, call)
        else:
            await self._take_body(reply, call)

    async def send(self, message: dict[str, Any]) -> None:
        """Post a message that has no answer."""
        await (await self._post(message, self._common())).drain()

    def cancel(self, message: dict[str, Any]) -> None:
        """Send that a caller has given up; in the newest revision the response tells it, which is closed."""
        is_stateless = self._revision is not None and self._revision.is_stateless
        if self.is_open and not is_stateless:
            self._dispatcher.spawn(self.send(message))

    async def listen(self) -> None:
        """Open the stream on which a server with sessions speaks unasked, and keep it open."""
        is_open = asyncio.Event()
        self._dispatcher.spawn(self._listen(is_open))
        with suppress(TimeoutError):  # a server may keep silent on it until it has something to say
            async with asyncio.timeout(STREAM_SECONDS):
                await is_open.wait()

    async def close(self) -> None:
        self.is_open = False
        await self._dispatcher.cancel_tasks()
        if self._session_id is not None:
            with suppress(Exception):  # a session that cannot be ended ends by itself
                async with asyncio.timeout(DRAIN_SECONDS):
                    await (await self._web.send("DELETE", self._common())).close()
        await self._web.close()

    # --- sending

    def _common(self) -> dict[str, str]:
        headers = {"content-type": JSON, "accept": f"{JSON}, {EVENTS}"}
        if self._revision is not None:
            headers["mcp-protocol-version"] = self._revision.name
        if self._session_id is not None:
            headers["mcp-session-id"] = self._session_id
        return headers

    def _headers(self, call: OutgoingCall) -> dict[str, str]:
        headers = self._common()
        if self._revision is not None and self._revision.is_stateless:
            headers["mcp-method"] = call.method
            name = call.params.get(NAMED_BY.get(call.method, ""))
            if isinstance(name, str):
                headers["mcp-name"] = write_value(name)
        return {**headers, **call.headers}

    async def _post(self, message: dict[str, Any], headers: dict[str, str]) -> OpenResponse:
        reply = await self._reach("POST", headers, encode(message))
        self._session_id = reply.header("mcp-session-id") or self._session_id
        return await reply.accepted(self._refusal)

    async def _reach(
        self, method: str, headers: dict[str, str], body: bytes | None = None, *, waits: bool = False
    ) -> OpenResponse:
        try:
            return await self._web.send(method, headers, body, waits=waits)
        except LostError as lost:
            if not lost.may_have_run:  # there is nobody at the address
                self._lose(lost.error)
            raise

    async def _refusal(self, reply: OpenResponse) -> Exception:
        """What an error status means: a session that is over, an error of the protocol, or of HTTP."""
        failure = await reply.failure()
        body = str(failure.details.get("body", ""))
        is_session_over = reply.status == 404 or (reply.status == 400 and "session" in body.lower())
        if self._session_id is not None and is_session_over:
            self._session_id = None
            self._lose(failure)
            return LostError(failure, may_have_run=False)
        return _rpc_error(body) or failure

    def _lose(self, why: CallError) -> None:
        self.is_open = False
        self._dispatcher.on_loss(why.message)

    # --- receiving

    async def _take_body(self, reply: OpenResponse, call: OutgoingCall) -> None:
        """Read the one message of a reply, which is the answer of the call."""
        try:
            body = await reply.body()
        finally:
            await reply.close()
        self._dispatcher.take_text(body, call)
        if not call.answer.done() and not self.is_open:
            raise LostError(closed_connection(self._web.name), may_have_run=True)
        if not call.answer.done():
            details = {"status": reply.status, "content_type": reply.content_type}
            raise CallError("DATA_LOSS", f"{self._web.name} answered with something that is no message", details)

    async def _take_events(self, reply: OpenResponse, call: OutgoingCall) -> None:
        """Read the events of a call; a stream that breaks off is resumed where its server allows that."""
        decoder = EventDecoder(max_event=self._limits.message_bytes)
        failures = 0
        while True:
            failures = 0 if await self._read_events(reply, decoder, call) else failures + 1
            if call.answer.done():
                return
            if not decoder.last_event_id or failures > self._limits.reconnects:
                broken = CallError(
                    "UNAVAILABLE", f"{self._web.name} broke off before its answer", {"reason": "connection"}
                )
                raise LostError(broken, may_have_run=True)
            if call.caller is not None:
                call.caller.stream_closed()
            reply = await self._resume(decoder)

    async def _read_events(self, reply: OpenResponse, decoder: EventDecoder, call: OutgoingCall | None) -> bool:
        """Take in events until the call is answered or the stream ends; whether there were any."""
        has_any = False
        try:
            async for chunk in reply.chunks:
                for event in decoder.feed(chunk):
                    has_any = True
                    self._take_event(event, call)
                if call is not None and call.answer.done():
                    self._dispatcher.spawn(reply.drain())
                    return True
        except EventTooLargeError:
            await reply.close()
            raise message_too_large(self._limits.message_bytes) from None
        except LostError:
            pass  # broken off, which is told by who waits for an answer
        except BaseException:
            await reply.close()
            raise
        await reply.close()
        return has_any

    def _take_event(self, event: ServerSentEvent, call: OutgoingCall | None) -> None:
        if event.event == "endpoint":  # the first of the oldest transport, where others refuse a post by their status
            details = {"status": 405, "reason": "transport"}
            raise CallError("EXECUTION_ERROR", f"{self._web.name} speaks the oldest transport", details)
        self._dispatcher.take_text(event.data.encode("utf-8", "surrogatepass"), call)

    async def _resume(self, decoder: EventDecoder) -> OpenResponse:
        await asyncio.sleep(RECONNECT_SECONDS if decoder.retry is None else decoder.retry / 1000)
        headers = {**self._common(), "accept": EVENTS}
        if decoder.last_event_id:
            headers["last-event-id"] = decoder.last_event_id
        return await (await self._reach("GET", headers, waits=True)).accepted(self._refusal)

    async def _listen(self, is_open: asyncio.Event) -> None:
        decoder = EventDecoder(max_event=self._limits.message_bytes)
        decoder.retry = 0
        try:
            # A server that has no such stream says so with a status, and that is the end of it.
            while self.is_open and (reply := await self._resume(decoder)).content_type == EVENTS:
                is_open.set()
                decoder.retry = decoder.retry or None
                await self._read_events(reply, decoder, None)
        finally:
            is_open.set()


def _rpc_error(body: str) -> ProtocolError | None:
    """The error of the protocol that a body holds; its id may be null, where it answers no request in particular."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    error = found.get("error") if isinstance(found, dict) and "jsonrpc" in found else None
    return read_rpc_error(error) if isinstance(error, dict) else None
