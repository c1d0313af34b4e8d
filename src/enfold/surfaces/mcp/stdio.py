"""A registry as an MCP server on the standard streams: one message a line.

Until a handler is called, a plain loop reads and answers, and asyncio is not even imported: a server starts in the time
that Python takes. With the first call an event loop takes over, on which calls run side by side and can be cancelled.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET

from enfold.introspection import introduce
from enfold.mcp.json_rpc import (
    INVALID_REQUEST,
    VERSION_KEY,
    ProtocolError,
    RequestId,
    RPCMessage,
    error_message,
    parse,
    parse_batch,
)
from enfold.operation import Identity
from enfold.registry import Registry
from enfold.surfaces.mcp.client_exchange import ClientExchange
from enfold.surfaces.mcp.clients import Session, read_caller
from enfold.surfaces.mcp.mcp_service import MCPSettings
from enfold.surfaces.mcp.server import MCPServer
from enfold.surfaces.mcp.standard_streams import InputReader, MessageStreams, flush_output, take_streams

if TYPE_CHECKING:
    import asyncio

# How long calls may go on when the input has ended: a program that pipes its requests in still gets their answers.
DRAIN_SECONDS: Final = 0.5


def serve_stdio(registry: Registry, *, identity: Identity | None = None, **settings: Any) -> None:
    """Serve until the client closes our input; `settings` are those of `to_mcp`. What handlers print goes to stderr."""
    connection = _connection(registry, identity, settings)
    lines = connection.answer_quick_ones()
    if lines is not None:
        import asyncio

        asyncio.run(connection.serve(lines))
    flush_output()


async def run_stdio(registry: Registry, *, identity: Identity | None = None, **settings: Any) -> None:
    """`serve_stdio` for a program that has an event loop already."""
    await _connection(registry, identity, settings).serve([])


def _connection(registry: Registry, identity: Identity | None, settings: dict[str, Any]) -> StdioChannel:
    chosen = MCPSettings(**settings)
    introduce(registry, {"mcp": "the standard streams"}, chosen.recorder)
    server = MCPServer(registry, chosen, has_identities=identity is not None)
    return StdioChannel(server, take_streams(chosen.bounds.line_bytes), identity)


class StdioChannel:
    """The one client of a server on a pair of streams, of any revision; to an exchange it is the channel."""

    def __init__(self, server: MCPServer, streams: MessageStreams, identity: Identity | None = None) -> None:
        self._server = server
        self._streams = streams
        self._identity = identity
        self._session = Session()
        self._running: dict[RequestId, asyncio.Task[None]] = {}
        self._listening: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    # without a loop

    def answer_quick_ones(self) -> list[bytes] | None:
        """Answer requests until one needs a handler; the lines from there on, or None at the end of the input."""
        while (lines := self._streams.read()) is not None:
            for place, line in enumerate(lines):
                if not self._answer_quickly(line):
                    return lines[place:]
        return None

    def _answer_quickly(self, line: bytes) -> bool:
        try:
            return self._handle_quickly(parse(line))
        except ProtocolError:
            return False

    def _handle_quickly(self, message: RPCMessage) -> bool:
        """Handle a message that needs no event loop; False where it needs one."""
        if message.is_request and self._server.is_quick(str(message.method)):
            try:
                self.send(self._server.respond_now(self._exchange(message)))
            except ProtocolError as error:
                self.send(error_message(message.request_id, error))
        elif message.method == "notifications/initialized":
            self._server.notify_of_changes(self._session, self._identity, self.send)  # from its handshake on
        else:
            return False
        return True

    # with a loop

    async def serve(self, lines: list[bytes]) -> None:
        """Read and answer until the client closes our input, then cancel what still runs."""
        import asyncio

        loop = self._loop = asyncio.get_running_loop()
        self._server.changes.schedule = loop.call_soon_threadsafe
        self._streams.use_loop(loop)
        lifetime = self._server.registry.lifetime
        await lifetime.start()
        try:
            self._handle_lines(lines)
            with InputReader(loop, self._streams, self._handle_lines) as reading:
                await reading.ended
            await self._end()
            await self._streams.drain()
        finally:
            await self._end()
            await lifetime.stop()

    async def _end(self) -> None:
        """End what runs; calls have a moment to finish."""
        import asyncio

        self._server.following.stop()
        for task in self._listening:
            task.cancel()
        tasks = list(self._running.values())
        if tasks:
            await asyncio.wait(tasks, timeout=DRAIN_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _handle_lines(self, lines: list[bytes]) -> None:
        for line in lines:
            self._take_line(line)

    def _take_line(self, line: bytes) -> None:
        """Take a message, or an array of them, as the oldest revisions have it."""
        try:
            most = self._server.settings.bounds.batch_entries
            messages = parse_batch(line, most) if line.lstrip().startswith(b"[") else [parse(line)]
        except ProtocolError as error:
            self.send(error_message(error.request_id, error))
            return
        for message in messages:
            self._handle(message)

    def _handle(self, message: RPCMessage) -> None:
        if message.method is UNSET:
            self._session.questions.resolve(message)
        elif message.method == "notifications/cancelled" and message.is_notification:
            self._cancel(message.params.get("requestId"))
        elif not self._handle_quickly(message) and message.is_request:
            self._start(message)

    def _cancel(self, request_id: object) -> None:
        task = self._running.get(request_id) if isinstance(request_id, int | str) else None
        if task is not None:
            task.cancel()

    def _start(self, message: RPCMessage) -> None:
        """Start a task for a request that runs a handler, or that listens."""
        try:
            exchange = self._exchange(message)
            if exchange.id in self._running:
                raise ProtocolError(INVALID_REQUEST, "A request with this id is running already")  # noqa: TRY301  # told below like the others
        except ProtocolError as error:
            self.send(error_message(message.request_id, error))
            return
        assert self._loop is not None  # noqa: S101  # only `serve` comes here, which has set it
        is_long = message.method == "subscriptions/listen"
        task = self._loop.create_task(self._listen(exchange) if is_long else self._reply(exchange))
        self._running[exchange.id] = task
        if is_long:
            self._listening.add(task)
        task.add_done_callback(lambda _: self._forget(exchange.id, task))

    def _forget(self, request_id: RequestId, task: asyncio.Task[None]) -> None:
        del self._running[request_id]
        self._listening.discard(task)

    async def _reply(self, exchange: ClientExchange) -> None:
        self.send(await self._server.respond(exchange))

    async def _listen(self, exchange: ClientExchange) -> None:
        """Send notifications of changes until the client cancels the request."""
        import asyncio

        try:
            stop = await self._server.subscribe(exchange, self.send)
        except ProtocolError as error:
            self.send(error_message(exchange.id, error))
            return
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            stop()

    def _exchange(self, message: RPCMessage) -> ClientExchange:
        meta = message.meta
        is_stateless = VERSION_KEY in meta or message.method in ("server/discover", "subscriptions/listen")
        caller = read_caller(meta, self._server.text_clients) if is_stateless else self._session
        method, changes = str(message.method), self._server.changes
        return ClientExchange(message.request_id, method, message.params, meta, caller, self._identity, self, changes)

    # what an exchange needs of its channel

    def send(self, message: dict[str, Any]) -> None:
        self._streams.write(message)

    def request(self, method: str, params: dict[str, Any]) -> Awaitable[dict[str, Any]]:
        return self._session.questions.ask(self.send, method, params)

    def close_stream(self) -> None:
        """There is only one stream, and it stays."""
