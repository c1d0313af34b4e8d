"""HTTP without sockets: requests to an ASGI app as a server would hand them over, and the client of `to_http`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias

import msgspec

from enfold.formats import Format
from enfold.operation import Identity
from enfold.registry import Registry
from enfold.sources.sse import EventDecoder, ServerSentEvent
from enfold.surfaces.asgi.messages import ASGIApp
from enfold.surfaces.http import to_http
from enfold.testing.named_callers import NamedCallers
from enfold.testing.replies import CallRequest, Envelopes, Reply, SurfaceClient, read_answer

Headers: TypeAlias = Mapping[str, str | None]

_SERVER: Final = ("127.0.0.1", 8000)
_DEFAULT_HEADERS: Final = {"host": "localhost:8000", "content-type": "application/json"}


@asynccontextmanager
async def http(registry: Registry, **options: Any) -> AsyncIterator[HTTPClient]:
    """The HTTP surface; `options` are those of `to_http`. Identities come as bearer tokens.

    Strangers are let in, as they are to a server without tokens, unless a test gives `tokens` of its own.
    """
    callers = NamedCallers(options.get("tokens"))
    is_open = options.get("tokens") is None
    app = to_http(registry, **{"allow_anonymous": is_open, **options, "tokens": callers})
    async with living(app):
        yield HTTPClient(app, callers)


@asynccontextmanager
async def living(app: ASGIApp) -> AsyncIterator[None]:
    """An app between its start and its end, as a server would have it."""
    events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    task = asyncio.ensure_future(app({"type": "lifespan", "asgi": {"version": "3.0"}}, events.get, answers.put))
    try:
        await _pass_event("startup", task, events, answers)
        yield
        await _pass_event("shutdown", task, events, answers)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _pass_event(event: str, task: asyncio.Future[None], events: Any, answers: Any) -> None:
    events.put_nowait({"type": f"lifespan.{event}"})
    answer = asyncio.create_task(answers.get())
    await asyncio.wait({answer, task}, return_when=asyncio.FIRST_COMPLETED)
    if not answer.done():
        answer.cancel()
        await task  # raises what ended it
        raise RuntimeError(f"The app ended before its {event}")
    if answer.result()["type"] != f"lifespan.{event}.complete":
        raise RuntimeError(f"The app failed at its {event}: {answer.result().get('message', '')}")


class Conversation:
    """One HTTP request while it is answered; it is sent at once."""

    def __init__(
        self,
        app: ASGIApp,
        method: str,
        path: str,
        headers: Headers,
        body: bytes = b"",
        *,
        is_begun: bool = False,
        is_silent: bool = False,
    ) -> None:
        """With `is_begun` there is more of the body to come; with `is_silent` all of it."""
        self.status = 0
        self.headers: dict[str, str] = {}
        self._began = asyncio.Event()
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        if not is_silent:
            self._events.put_nowait({"type": "http.request", "body": body, "more_body": is_begun})
        self.task: asyncio.Future[None] = asyncio.ensure_future(
            app(_scope(method, path, headers), self._events.get, self._send)
        )
        self.task.add_done_callback(self._end)

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode("latin-1") for name, value in message["headers"]}
            self._began.set()
            return
        self._chunks.put_nowait(message.get("body", b""))
        if not message.get("more_body"):
            self._chunks.put_nowait(None)

    def _end(self, _: object) -> None:
        """Let nobody wait for an app that has ended."""
        self._began.set()
        self._chunks.put_nowait(None)

    def go_on(self, body: bytes) -> None:
        """Send the rest of the body."""
        self._events.put_nowait({"type": "http.request", "body": body, "more_body": False})

    def leave(self) -> None:
        """Close the connection, as a client that no longer waits."""
        self._events.put_nowait({"type": "http.disconnect"})

    async def began(self) -> Conversation:
        """Wait for the status and the headers of the answer."""
        await self._began.wait()
        if not self.status:
            await self.task  # raises what ended it
            raise RuntimeError("The app ended without an answer")
        return self

    async def chunks(self) -> AsyncIterator[bytes]:
        """The pieces of the answer as they come."""
        while (chunk := await self._chunks.get()) is not None:
            yield chunk

    async def body(self) -> bytes:
        """The whole answer."""
        await self.began()
        whole = b"".join([chunk async for chunk in self.chunks()])
        await self.task
        return whole

    async def json(self) -> Any:
        return json.loads(await self.body())

    async def events(self) -> AsyncIterator[ServerSentEvent]:
        """The events of an answer that is a stream."""
        decoder = EventDecoder()
        async for chunk in self.chunks():
            for event in decoder.feed(chunk):
                yield event


def _scope(method: str, path: str, headers: Headers) -> dict[str, Any]:
    place, _, query = path.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": place,
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items() if value is not None],
        "server": _SERVER,
        "scheme": "http",
        "root_path": "",
    }


class HTTPClient(SurfaceClient):
    """Calls an app of `to_http`."""

    def __init__(self, app: ASGIApp, callers: NamedCallers) -> None:
        self.app = app
        self._callers = callers

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        identity: Identity | None = None,
        headers: Headers | None = None,
    ) -> Conversation:
        """Send any request; a body that is not bytes is written as JSON, a header that is None is left out."""
        sent = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        return Conversation(
            self.app, method, path, {**_DEFAULT_HEADERS, **self._callers.header(identity), **(headers or {})}, sent
        )

    async def _call(self, request: CallRequest) -> Reply:
        chosen = request.chosen_format
        return await _reply(self._post(request, chosen, "application/json"), chosen)

    async def _subscribe(self, request: CallRequest) -> Envelopes:
        chosen = request.chosen_format
        answer = self._post(request, chosen, "text/event-stream")
        try:
            if (await answer.began()).headers.get("content-type") == "application/json":
                _ = (await _reply(answer, chosen)).data  # raises: only a failure comes as JSON
            async for event in answer.events():
                if event.event == "complete":
                    return
                yield chosen.read(json.loads(event.data))  # which raises at an error
            raise AssertionError("The stream was cut: it ended without `event: complete` or `event: error`")
        finally:
            answer.leave()
            await answer.task

    def _post(self, request: CallRequest, format: Format, accept: str) -> Conversation:
        headers, path = {"enfold-format": format.name, "accept": accept}, f"/functions/{request.operation}"
        return self.request("POST", path, request.input, identity=request.identity, headers=headers)

    async def list(self, *, identity: Identity | None = None) -> Sequence[str]:
        return ids_in(await self.request("GET", "/openapi.json", identity=identity).json())


async def _reply(answer: Conversation, format: Format) -> Reply:
    wire = await answer.json()
    return read_answer(answer.status, answer.headers, wire, format)


def ids_in(document: dict[str, Any]) -> list[str]:
    """The ids of the operations in an OpenAPI document of ours."""
    calls = [path["post"] for path in document["paths"].values() if "post" in path]
    return [call["operationId"] for call in calls if "x-mcp-tool" in call]
