"""How workers exchange counts, sources and calls, so that each of them can report on all.

On the wire that is one MessagePack value after another, each with its length before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from enfold.app.worker_processes import Worker
from enfold.storage import make_private_folder
from enfold.surfaces.asgi import JSON, ASGIApp, Receive, Scope, Send

ANSWER_TIMEOUT: Final = 2.0  # seconds that a sibling has to answer
RECONNECT_PAUSE: Final = 0.5  # seconds before a sibling that has died is listened to again
MAX_WAITING: Final = 10_000  # pieces of news for a sibling that reads slowly
MAX_BYTES: Final = 1 << 30  # siblings are ourselves: more can only be a broken stream

WatchNews: TypeAlias = Callable[[Callable[[Any], object]], Callable[[], None]]  # calls back with news until it is ended


class SelfReport(msgspec.Struct, frozen=True):
    """What a worker reports about itself, by name: values it returns when asked, and values it pushes."""

    answers: dict[str, Callable[[], Any]] = {}
    news: dict[str, WatchNews] = {}


class Siblings:
    """The other workers, as one of them asks them."""

    def __init__(self, worker: Worker) -> None:
        self.prefix = session_prefix(worker)
        self._paths = [worker.socket_of(number) for number in range(worker.count) if number != worker.number]

    async def ask(self, name: str) -> list[Any]:
        """Ask each sibling; one that is gone or slow is left out."""
        told = await asyncio.gather(*(_ask(path, name) for path in self._paths), return_exceptions=True)
        return [each for each in told if not isinstance(each, BaseException)]

    async def listen(self, name: str, hear: Callable[[Any], None]) -> None:
        """Be called with the news of all others, until this is cancelled."""
        await asyncio.gather(*(_listen(path, name, hear) for path in self._paths))


async def _ask(path: str, name: str) -> Any:
    async with asyncio.timeout(ANSWER_TIMEOUT):
        reader, writer = await asyncio.open_unix_connection(path)
        try:
            await write_value(writer, {"ask": name})
            return await read_value(reader)
        finally:
            writer.close()


async def _listen(path: str, name: str, hear: Callable[[Any], None]) -> None:
    while True:
        with suppress(OSError, EOFError):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                await write_value(writer, {"listen": name})
                while True:
                    hear(await read_value(reader))
            finally:
                writer.close()
        await asyncio.sleep(RECONNECT_PAUSE)


async def tell_news(watch: WatchNews, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Tell one sibling what happens, until it closes the connection."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[Any] = asyncio.Queue(MAX_WAITING)

    def put(piece: Any) -> None:
        with suppress(asyncio.QueueFull):
            waiting.put_nowait(piece)

    async def write() -> None:
        while True:
            await write_value(writer, await waiting.get())

    unwatch = watch(lambda piece: loop.call_soon_threadsafe(put, piece))  # on whatever thread it happens
    tasks = [asyncio.ensure_future(reader.read(1)), asyncio.ensure_future(write())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        unwatch()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# --- on the wire --------------------------------------------------------------------------------------------------


async def read_value(reader: asyncio.StreamReader) -> Any:
    """Read the next value; raise EOFError if the connection was closed."""
    try:
        size = int.from_bytes(await reader.readexactly(4), "big")
        if size > MAX_BYTES:
            raise EOFError("a message of invalid size")
        return msgspec.msgpack.decode(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise EOFError("the connection was closed") from error


async def write_value(writer: asyncio.StreamWriter, value: Any) -> None:
    data = msgspec.msgpack.encode(value)
    writer.write(len(data).to_bytes(4, "big") + data)
    await writer.drain()


_FORWARDED: Final = (
    "type", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path", "headers",
    "client", "server",
)  # fmt: skip
CHECK_INTERVAL: Final = 1.0  # seconds between two looks whether our own socket is still there
_GONE: Final = "The worker that handled this request has exited"


def session_prefix(worker: Worker) -> str:
    """Return the prefix of the ids of the worker's sessions and followed calls."""
    return f"{worker.number}-"


class SessionRouter:
    """The app of one worker: requests of a session or call that a sibling holds are forwarded to that sibling."""

    def __init__(self, app: ASGIApp, worker: Worker) -> None:
        self._app = app
        self._worker = worker

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        number = _owner(scope, self._worker.count) if scope["type"] == "http" else None
        if number is None or number == self._worker.number:
            await self._app(scope, receive, send)
            return
        try:
            reader, writer = await asyncio.open_unix_connection(self._worker.socket_of(number))
        except OSError:  # it has just died, and with it what it held
            await self._app(scope, receive, send)
            return
        asking = asyncio.ensure_future(_forward(writer, scope, receive))
        try:
            await _relay_answer(reader, send)
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            writer.close()


def _owner(scope: MutableMapping[str, Any], count: int) -> int | None:
    """Return the number of the worker that a request belongs to; None if any can serve it."""
    held = next((value for name, value in scope["headers"] if name == b"mcp-session-id"), None)
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    if path.startswith("/calls/"):
        held = path.removeprefix("/calls/").encode()
    number, dash, _ = (held or b"").partition(b"-")
    return int(number) if dash and number.isdigit() and len(number) < 4 and int(number) < count else None


async def _forward(writer: asyncio.StreamWriter, scope: Scope, receive: Receive) -> None:
    """Send a request to the sibling, and tell it when the client goes."""
    await write_value(writer, {"scope": {name: scope[name] for name in _FORWARDED if name in scope}})
    message: dict[str, Any] = {"type": ""}
    while message["type"] != "http.disconnect":
        message = await receive()
        await write_value(writer, message)


async def _relay_answer(reader: asyncio.StreamReader, send: Send) -> None:
    """Send the sibling's answer to the client; a sibling that dies before it has begun one is a 503."""
    is_started = False
    try:
        while (message := await read_value(reader)) is not None:
            is_started = True
            await send(message)
    except EOFError:
        if is_started:
            raise _HolderEndedError(_GONE) from None
        await send({"type": "http.response.start", "status": 503, "headers": [JSON, (b"enfold-code", b"UNAVAILABLE")]})
        await send({"type": "http.response.body", "body": b'{"error":"%b"}' % _GONE.encode()})


class _HolderEndedError(ConnectionError):
    """Half of an answer is all that there is of it: the server cuts the connection, and the parent tells why."""

    is_told = True


# --- the other end ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def listen_to_siblings(worker: Worker, app: ASGIApp, report: SelfReport) -> AsyncIterator[None]:
    """Serve what siblings forward and ask, while the block runs."""
    path, answer = Path(worker.socket_of(worker.number)), partial(_answer_sibling, app, report)
    with suppress(OSError):
        await asyncio.to_thread(path.unlink)  # of the one before us, which died
    listening = asyncio.ensure_future(_keep_listening(path, answer, await _start_server(path, answer)))
    try:
        yield
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def _start_server(path: Path, answer: Callable[..., Any]) -> asyncio.Server:
    make_private_folder(path.parent)
    return await asyncio.start_unix_server(answer, path)


async def _keep_listening(path: Path, answer: Callable[..., Any], server: asyncio.Server) -> None:
    """Listen anew whenever a cleaner of temporary files has deleted our socket."""
    try:
        while True:
            await asyncio.sleep(CHECK_INTERVAL)
            if not await asyncio.to_thread(path.exists):
                server.close()
                with suppress(OSError):  # then siblings do without us until the next check
                    server = await _start_server(path, answer)
    finally:
        server.close()


async def _answer_sibling(
    app: ASGIApp, report: SelfReport, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    try:
        # asyncio logs one that is cancelled at the end as a failure.
        with suppress(EOFError, ConnectionError, asyncio.CancelledError):
            wish = await read_value(reader)
            if "scope" in wish:
                await _serve(app, wish["scope"], reader, writer)
            elif "listen" in wish:
                await tell_news(report.news[wish["listen"]], reader, writer)
            else:
                await write_value(writer, report.answers[wish["ask"]]())
    finally:
        writer.close()


async def _serve(app: ASGIApp, wire: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve a forwarded request, whose scope arrived as plain data."""
    scope = {**wire, "asgi": {"version": "3.0"}, "headers": [tuple(header) for header in wire["headers"]]}
    for name in ("client", "server"):
        scope[name] = scope[name] and tuple(scope[name])

    async def receive() -> Any:
        try:
            return await read_value(reader)
        except EOFError:
            return {"type": "http.disconnect"}

    await app(scope, receive, partial(write_value, writer))
    await write_value(writer, None)
    while await reader.read(1 << 16):  # who closes before all was read resets the connection, and loses the answer
        pass


@asynccontextmanager
async def end_with_parent(worker: Worker, end: Callable[[], None]) -> AsyncIterator[None]:
    """Call `end` when the parent has gone without a word, while the block runs."""
    loop = asyncio.get_running_loop()

    def lose_parent() -> None:
        loop.remove_reader(worker.parent)
        end()

    loop.add_reader(worker.parent, lose_parent)
    try:
        yield
    finally:
        loop.remove_reader(worker.parent)
