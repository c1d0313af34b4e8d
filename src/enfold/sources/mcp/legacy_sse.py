"""A server at an address that speaks the oldest HTTP transport: one event stream down, posts up."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from enfold.errors import CallError
from enfold.mcp.json_rpc import encode, request
from enfold.mcp.revisions import Revision
from enfold.sources.mcp.dispatcher import Dispatcher
from enfold.sources.mcp.outgoing_calls import OutgoingCall
from enfold.sources.mcp.upstream_failures import LostError
from enfold.sources.mcp.web_requests import OpenResponse, Web
from enfold.sources.sse import EventDecoder, EventTooLargeError
from enfold.sources.web.urls import joined, same_place

EVENTS: Final = "text/event-stream"


async def open_event_stream(web: Web, dispatcher: Dispatcher) -> None:
    """Connect the dispatcher to the stream, whose first event says where to post; an address without one is no such server."""
    connection = SSEConnection(web, dispatcher)
    try:
        await connection.open()
    except BaseException:
        await connection.close()
        raise


class SSEConnection:
    """The connection over one event stream."""

    has_call_streams = False

    def __init__(self, web: Web, dispatcher: Dispatcher) -> None:
        self._web = web
        self._dispatcher = dispatcher
        dispatcher.connection = self
        self._endpoint: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.is_open = True

    def agree(self, revision: Revision | None) -> None:
        """This transport names no revision beside its messages."""

    async def open(self) -> None:
        """Open the stream, and wait for its first event."""
        reply = await self._web.send("GET", {"accept": EVENTS})
        if reply.status >= 400 or reply.content_type != EVENTS:
            try:
                raise await reply.failure()
            finally:
                await reply.close()
        self._dispatcher.spawn(self._read(reply))
        await asyncio.shield(self._endpoint)

    async def send_call(self, call: OutgoingCall) -> None:
        """Post a request, whose answer comes on the stream."""
        await self.send(request(call.id, call.method, call.params))

    def cancel(self, message: dict[str, Any]) -> None:
        if self.is_open:
            self._dispatcher.spawn(self.send(message))

    async def close(self) -> None:
        self.is_open = False
        await self._dispatcher.cancel_tasks()
        await self._web.close()

    async def _read(self, reply: OpenResponse) -> None:
        """Take in the events of the stream until it ends; then nobody can be answered any more."""
        decoder = EventDecoder(max_event=self._web.limits.message_bytes)
        try:
            async for chunk in reply.chunks:
                for event in decoder.feed(chunk):
                    self._take(event.event, event.data)
        except (LostError, EventTooLargeError):
            pass  # told below
        finally:
            self.is_open = False
            await reply.close()
            self._end(self._closed())

    def _take(self, kind: str, data: str) -> None:
        if kind != "endpoint":
            self._dispatcher.take_text(data.encode("utf-8", "surrogatepass"))
        elif not self._endpoint.done():
            self._set_endpoint(joined(self._web.url, data))

    def _set_endpoint(self, url: str) -> None:
        if same_place(url, self._web.url):
            self._endpoint.set_result(url)
        else:
            self._end(CallError("EXECUTION_ERROR", f"{self._web.name} names another server for its messages"))

    def _closed(self) -> CallError:
        return CallError("UNAVAILABLE", f"{self._web.name} has closed its stream", {"reason": "connection"})

    def _end(self, error: CallError) -> None:
        if not self._endpoint.done():
            self._endpoint.set_exception(LostError(error, may_have_run=False))
            self._endpoint.exception()
        self._dispatcher.fail_all(error)

    async def send(self, message: dict[str, Any]) -> None:
        if not self.is_open:
            raise LostError(self._closed(), may_have_run=False)
        url = await asyncio.shield(self._endpoint)
        reply = await self._web.send("POST", {"content-type": "application/json"}, encode(message), url)
        await (await reply.accepted(self._refusal)).drain()

    async def _refusal(self, reply: OpenResponse) -> Exception:
        failure = await reply.failure()
        if reply.status in (400, 404):  # the session that this stream stands for is not known any more
            self.is_open = False
            return LostError(failure, may_have_run=False)
        return failure
