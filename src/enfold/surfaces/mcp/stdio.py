"""A registry as an MCP server on the standard streams: one message a line.

Until a handler is called, a plain loop reads and responds, and asyncio is not imported: a server starts in the time
that Python takes. With the first call an event loop takes over, on which calls run side by side and can be cancelled.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Self

from enfold.mcp.json_rpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    VERSION_KEY,
    OutgoingMessage,
    ProtocolError,
    RPCMessage,
    encode,
    error_response,
    parse,
    parse_batch,
)
from enfold.operations import Identity
from enfold.runtime.registry import Registry
from enfold.surfaces.introspection import introduce
from enfold.surfaces.mcp.exchange import STATELESS_METHODS, ClientExchange, Session, read_caller
from enfold.surfaces.mcp.server import MCPServer
from enfold.surfaces.mcp.settings import MCPSettings

if TYPE_CHECKING:
    import asyncio


# How long calls may go on when the input has ended: a program that pipes its requests in still gets their answers.
DRAIN_SECONDS: Final = 0.5


def serve_stdio(registry: Registry, *, identity: Identity | None = None, **settings: Any) -> None:
    """Serve until the client closes stdin; `settings` are those of `to_mcp`. Output that handlers print goes to stderr."""
    connection = _connection(registry, identity, settings)
    lines = connection.answer_quick_ones()
    if lines is not None:
        import asyncio

        asyncio.run(connection.serve(lines))
    flush_output()


async def run_stdio(registry: Registry, *, identity: Identity | None = None, **settings: Any) -> None:
    """Run `serve_stdio` in a program that already has an event loop."""
    await _connection(registry, identity, settings).serve([])


def _connection(registry: Registry, identity: Identity | None, settings: dict[str, Any]) -> StdioChannel:
    chosen = MCPSettings(**settings)
    introduce(registry, {"mcp": "the standard streams"}, chosen.recorder)
    server = MCPServer(registry, chosen, has_identities=identity is not None)
    registry.services.listed_tool = server.listed_tool
    return StdioChannel(server, take_streams(chosen.limits.line_bytes), identity)


class StdioChannel:
    """The one client of a server on a pair of streams, of any revision; to an exchange it is the channel."""

    def __init__(self, server: MCPServer, streams: MessageStreams, identity: Identity | None = None) -> None:
        self._server = server
        self._streams = streams
        self._identity = identity
        self._session = Session()
        self._calls: set[asyncio.Task[None]] = set()
        self._listening: set[asyncio.Task[None]] = set()

    # without a loop

    def answer_quick_ones(self) -> list[bytes] | None:
        """Answer requests until one needs a handler; return the remaining lines, or None at the end of the input."""
        while (lines := self._streams.read()) is not None:
            for place, line in enumerate(lines):
                try:
                    is_handled = self._handle_quickly(parse(line))
                except ProtocolError:
                    is_handled = False
                if not is_handled:
                    return lines[place:]
        return None

    def _handle_quickly(self, message: RPCMessage) -> bool:
        """Handle a message that needs no event loop; False where it needs one."""
        if message.is_request and self._server.is_quick(str(message.method)):
            self.notify(self._server.respond_now(self._exchange(message)))
        elif message.method == "notifications/initialized":
            self._server.notify_of_changes(self._session, self._identity, self.notify)  # from its handshake on
        else:
            return False
        return True

    # with a loop

    async def serve(self, lines: list[bytes]) -> None:
        """Read and answer until the client closes our input, then cancel what still runs."""
        import asyncio

        loop = asyncio.get_running_loop()
        self._server.changes.schedule = loop.call_soon_threadsafe
        self._streams.use_loop(loop)
        lifetime = self._server.registry.services.lifetime
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
        calls, listening = list(self._calls), list(self._listening)
        for task in listening:
            task.cancel()
        if calls:
            await asyncio.wait(calls, timeout=DRAIN_SECONDS)
        for task in calls:
            task.cancel()
        await asyncio.gather(*calls, *listening, return_exceptions=True)

    def _handle_lines(self, lines: list[bytes]) -> None:
        """Handle each line: a message, or an array of them, as the oldest revisions have it."""
        most = self._server.settings.limits.batch_entries
        for line in lines:
            try:
                messages = parse_batch(line, most) if line.lstrip().startswith(b"[") else [parse(line)]
            except ProtocolError as error:
                self.notify(error_response(error.request_id, error))
                continue
            for message in messages:
                self._handle(message)

    def _handle(self, message: RPCMessage) -> None:
        try:
            if self._handle_quickly(message):
                return
            if message.is_request:
                self._start(message)
            else:
                self._session.receive(message)
        except ProtocolError as error:
            self.notify(error_response(message.request_id, error))

    def _start(self, message: RPCMessage) -> None:
        """Start a task for a request that runs a handler, or that listens."""
        import asyncio

        exchange, running = self._exchange(message), self._session.running
        if exchange.id in running:
            raise ProtocolError(INVALID_REQUEST, "A request with this id is already running")
        is_long = message.method == "subscriptions/listen"
        task = asyncio.get_running_loop().create_task(self._listen(exchange) if is_long else self._reply(exchange))
        running[exchange.id] = task.cancel
        task.add_done_callback(lambda _: running.pop(exchange.id))
        tasks = self._listening if is_long else self._calls
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _reply(self, exchange: ClientExchange) -> None:
        self.notify(await self._server.respond(exchange))

    async def _listen(self, exchange: ClientExchange) -> None:
        """Send notifications of changes until the client cancels the request."""
        import asyncio

        try:
            stop = await self._server.subscribe(exchange, self.notify)
        except ProtocolError as error:
            self.notify(error_response(exchange.id, error))
            return
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            stop()

    def _exchange(self, message: RPCMessage) -> ClientExchange:
        meta = message.meta
        is_stateless = VERSION_KEY in meta or message.method in STATELESS_METHODS
        caller = read_caller(meta, self._server.text_clients) if is_stateless else self._session
        method, changes = str(message.method), self._server.changes
        return ClientExchange(message.request_id, method, message.params, meta, caller, self._identity, self, changes)

    # what an exchange needs of its channel

    def notify(self, message: OutgoingMessage) -> None:
        self._streams.write(message)

    def request(self, method: str, params: dict[str, Any]) -> Awaitable[dict[str, Any]]:
        return self._session.questions.ask(self.notify, method, params)

    def close_stream(self) -> None:
        """Do nothing: the only stream stays open."""


_CHUNK: Final = 1 << 16
_ATOMIC: Final = 4096  # bytes that a pipe or socket takes at once if it takes anything
MAX_UNREAD: Final = 64_000_000  # bytes that wait for a client that does not read; with more it is given up
CONGESTED: Final = 1_000_000  # bytes that wait before nothing more is read
STALL_SECONDS: Final = 5.0  # that a client may stop reading for before the rest of our output is dropped


def take_streams(line_bytes: int) -> MessageStreams:
    """Reserve the standard streams for messages: handlers print to stderr and read nothing."""
    sys.stdout.flush()
    source, target = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return MessageStreams(source, target, line_bytes)


def flush_output() -> None:
    """Flush what handlers printed; if the pipe is closed, the program still exits without an error."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class MessageStreams:
    """Our input by lines, and our output by messages, which any thread may write.

    Without a loop a write waits for the client to read. With one it never does: what the client has not read waits here,
    so that signals, timeouts and other calls have their turn.
    """

    def __init__(self, source: int, target: int, line_bytes: int) -> None:
        self.source = source
        self._target = target
        self._line_bytes = line_bytes
        self._rest = bytearray()
        self._is_skipping = False  # the rest of a line that was too long
        self._lock = threading.Lock()
        self._is_broken = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unread = bytearray()
        self._is_watched = False  # whether the loop tells when the client reads on
        self.on_drained: Callable[[], None] = lambda: None  # called when little is left that waits

    def read(self) -> list[bytes] | None:
        """Return the lines that have arrived, after waiting for at least part of one; None at the end."""
        try:
            chunk = os.read(self.source, _CHUNK)
        except OSError:
            chunk = b""
        if not chunk:
            return None
        if self._is_skipping:
            chunk = self._after_skipped(chunk)
        self._rest += chunk
        if b"\n" not in chunk:
            if len(self._rest) > self._line_bytes:
                self._skip()
            return []
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        return [line for line in lines if line and not line.isspace()]

    def _skip(self) -> None:
        message = f"The message exceeds the limit of {self._line_bytes} bytes and was ignored"
        self.write(error_response(None, ProtocolError(INVALID_REQUEST, message)))
        self._rest, self._is_skipping = bytearray(), True

    def _after_skipped(self, chunk: bytes) -> bytes:
        _, end, rest = chunk.partition(b"\n")
        self._is_skipping = not end
        return rest

    def write(self, message: OutgoingMessage) -> None:
        """Write a message; once the client reads no more, nothing happens: our input will end too."""
        data = _encoded(message) + b"\n"
        with self._lock:
            if self._loop is None:
                self._write_all(data)
                return
            self._unread += data
            self._write_some()
            if self._unread and not self._is_watched:
                self._is_watched = True
                self._loop.call_soon_threadsafe(self._watch)

    def _write_all(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest and not self._is_broken:
                rest = rest[os.write(self._target, rest) :]
        except OSError:
            self._is_broken = True

    # with a loop

    def use_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Write without waiting from now on, where the output is something that a loop can watch."""
        try:
            loop.add_writer(self._target, lambda: None)
            loop.remove_writer(self._target)
        except (OSError, NotImplementedError):  # a file, which never makes us wait
            return
        self._loop = loop

    @property
    def is_congested(self) -> bool:
        """Whether the client leaves so much unread that it is to be asked nothing, and read from no more."""
        return len(self._unread) > CONGESTED

    async def drain(self) -> None:
        """Wait until everything is written, for as long as the client reads on."""
        import asyncio

        left = len(self._unread)
        while left and not self._is_broken:
            for _ in range(round(STALL_SECONDS / 0.01)):
                await asyncio.sleep(0.01)
                if len(self._unread) < left:
                    break
            else:
                return
            left = len(self._unread)

    def _watch(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.add_writer(self._target, self._write_more)

    def _write_more(self) -> None:
        with self._lock:
            self._write_some()
            if not self._unread and self._loop is not None:
                self._loop.remove_writer(self._target)
                self._is_watched = False
        if not self.is_congested:
            self.on_drained()

    def _write_some(self) -> None:
        """Write what can be written without waiting; a write that is small enough never waits."""
        written = 0
        try:
            while written < len(self._unread) and select.select((), (self._target,), (), 0)[1]:
                written += os.write(self._target, self._unread[written : written + _ATOMIC])
        except OSError:
            self._is_broken = True
        del self._unread[:written]
        if self._is_broken or len(self._unread) > MAX_UNREAD:
            self._is_broken = True
            self._unread.clear()


def _encoded(message: OutgoingMessage) -> bytes:
    try:
        return encode(message)
    except (TypeError, ValueError, RecursionError):
        error = ProtocolError(INTERNAL_ERROR, "The result cannot be written as JSON")
        return encode(error_response(getattr(message, "id", None), error))


class InputReader:
    """While it is open, hands on lines as they come: read on the loop where it can watch our input, else by a thread."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, streams: MessageStreams, handle: Callable[[list[bytes]], None]
    ) -> None:
        self._loop = loop
        self._streams = streams
        self._handle = handle
        self._is_watched = False
        self._is_paused = False  # until the client has read what it was sent
        self.ended: asyncio.Future[None] = loop.create_future()

    def __enter__(self) -> Self:
        try:
            self._loop.add_reader(self._streams.source, self._read)
            self._is_watched = True
            self._streams.on_drained = self._resume
        except (OSError, NotImplementedError):  # a file, or a system whose loop watches only sockets
            threading.Thread(target=self._read_all, name="enfold-stdin", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_watched:
            self._is_watched = False
            self._loop.remove_reader(self._streams.source)

    def _read(self) -> None:
        self._deliver(self._streams.read())
        if self._streams.is_congested:
            self._loop.remove_reader(self._streams.source)
            self._is_paused = True

    def _resume(self) -> None:
        if self._is_paused and self._is_watched:
            self._is_paused = False
            self._loop.add_reader(self._streams.source, self._read)

    def _read_all(self) -> None:
        lines: list[bytes] | None = []
        while lines is not None:
            lines = self._streams.read()
            self._loop.call_soon_threadsafe(self._deliver, lines)

    def _deliver(self, lines: list[bytes] | None) -> None:
        if lines is not None:
            self._handle(lines)
        elif not self.ended.done():
            self.ended.set_result(None)
