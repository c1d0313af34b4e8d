"""Requests that belong to another worker: passed on to it, and its answer passed back, message by message.

An MCP session of the older revisions lives in the worker that opened it, whose number its id begins with. All other requests
are answered where they arrive.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from enfold.files import make_private_folder
from enfold.surfaces.asgi.messages import ASGIApp, Receive, Scope, Send
from enfold.workers.processes import Worker
from enfold.workers.siblings import News, SelfReport, read_value, write_value

_CARRIED: Final = (
    "type",
    "http_version",
    "method",
    "scheme",
    "path",
    "raw_path",
    "query_string",
    "root_path",
    "headers",
    "client",
    "server",
)
LOOK: Final = 1.0  # seconds between two looks at our own socket
_GONE: Final = b'{"error":"The worker that held this request has ended"}'


def session_prefix(worker: Worker) -> str:
    """What the ids of the worker's sessions begin with."""
    return f"{worker.number}-"


class Passing:
    """The app of one worker: what belongs to a sibling goes there."""

    def __init__(self, app: ASGIApp, worker: Worker) -> None:
        self._app = app
        self._worker = worker

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        number = _owner(scope, self._worker.count) if scope["type"] == "http" else None
        if number is None or number == self._worker.number:
            await self._app(scope, receive, send)
            return
        try:
            streams = await asyncio.open_unix_connection(self._worker.socket_of(number))
        except OSError:  # it has just died, and with it what it held
            await self._app(scope, receive, send)
            return
        await _Passage(*streams).run(scope, receive, send)


def _owner(scope: MutableMapping[str, Any], count: int) -> int | None:
    """The number of the worker that a request belongs to; None where any will do."""
    for name, value in scope["headers"]:
        if name == b"mcp-session-id":
            number = value.partition(b"-")[0]
            return int(number) if number.isdigit() and len(number) < 4 and int(number) < count else None
    return None


class _HolderEndedError(ConnectionError):
    """Half of an answer is all that there is of it: the server cuts the connection, and the parent tells why."""

    is_told = True


class _Passage:
    """One request on its way to a sibling, over a connection of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        asking = asyncio.ensure_future(self._pass_on(scope, receive))
        try:
            await self._pass_back(send)
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            self._writer.close()

    async def _pass_on(self, scope: Scope, receive: Receive) -> None:
        await write_value(self._writer, {"scope": {name: scope[name] for name in _CARRIED if name in scope}})
        while True:
            message = await receive()
            await write_value(self._writer, message)
            if message["type"] == "http.disconnect":
                return

    async def _pass_back(self, send: Send) -> None:
        is_started = False
        try:
            while (message := await read_value(self._reader)) is not None:
                is_started = True
                await send(message)
        except EOFError:
            if is_started:
                raise _HolderEndedError("The worker that held this request has ended") from None
            headers = [(b"content-type", b"application/json"), (b"enfold-code", b"UNAVAILABLE")]
            await send({"type": "http.response.start", "status": 503, "headers": headers})
            await send({"type": "http.response.body", "body": _GONE})


# --- the other end ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def listen_to_siblings(worker: Worker, app: ASGIApp, report: SelfReport) -> AsyncIterator[None]:
    """Answer what siblings pass on and ask, while the block runs."""
    sibling, path = _Sibling(app, report), Path(worker.socket_of(worker.number))
    await asyncio.to_thread(_remove, path)  # of the one before us, which died
    listening = asyncio.ensure_future(_keep_listening(path, sibling, await _listen(path, sibling)))
    try:
        yield
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def _listen(path: Path, sibling: _Sibling) -> asyncio.Server:
    make_private_folder(path.parent)
    return await asyncio.start_unix_server(sibling.hear, path)


async def _keep_listening(path: Path, sibling: _Sibling, server: asyncio.Server) -> None:
    """Look from time to time whether somebody who cleans has taken our socket away, and listen anew."""
    try:
        while True:
            await asyncio.sleep(LOOK)
            if not await asyncio.to_thread(path.exists):
                server.close()
                with suppress(OSError):  # then siblings do without us until the next look
                    server = await _listen(path, sibling)
    finally:
        server.close()


@asynccontextmanager
async def without_parent(worker: Worker, end: Callable[[], None]) -> AsyncIterator[None]:
    """End, too, when the parent has gone without a word."""
    loop = asyncio.get_running_loop()

    def lose_parent() -> None:
        loop.remove_reader(worker.parent)
        end()

    loop.add_reader(worker.parent, lose_parent)
    try:
        yield
    finally:
        loop.remove_reader(worker.parent)


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)


class _Sibling:
    """What a worker does for its siblings."""

    def __init__(self, app: ASGIApp, report: SelfReport) -> None:
        self._app = app
        self._report = report

    async def hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # asyncio logs one that is cancelled at the end as a failure.
            with suppress(EOFError, ConnectionError, asyncio.CancelledError):
                wish = await read_value(reader)
                if "scope" in wish:
                    await self._serve(wish["scope"], reader, writer)
                elif "listen" in wish:
                    await News(self._report.news[wish["listen"]], reader, writer).run()
                else:
                    await write_value(writer, self._report.answers[wish["ask"]]())
        finally:
            writer.close()

    async def _serve(self, wire: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        scope = {**wire, "asgi": {"version": "3.0"}, "headers": [tuple(header) for header in wire["headers"]]}
        for name in ("client", "server"):
            scope[name] = scope[name] and tuple(scope[name])

        async def receive() -> Any:
            try:
                return await read_value(reader)
            except EOFError:
                return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            await write_value(writer, message)

        await self._app(scope, receive, send)
        await write_value(writer, None)
        while await reader.read(1 << 16):  # who closes before all was read resets the connection, and loses the answer
            pass
