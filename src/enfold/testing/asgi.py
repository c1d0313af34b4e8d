"""HTTP without sockets: requests to an ASGI app without a server, and the client of `to_http`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Final, TypeAlias

import msgspec

from enfold.auth.tokens import Verifier, new_token
from enfold.envelope import ResponseEnvelope, local_envelope
from enfold.errors import ERROR_KEY, CallError
from enfold.formats import Format
from enfold.mcp.json_rpc import CAPABILITIES_KEY, FORMAT_KEY, INVALID_PARAMS, SHAPE_KEY, VERSION_KEY
from enfold.mcp.revisions import KNOWN, LATEST, LATEST_HANDSHAKE
from enfold.operations import Identity
from enfold.runtime.registry import Registry
from enfold.sources.decoders import EventDecoder, ServerSentEvent
from enfold.surfaces.asgi import ASGIApp, Lifespan
from enfold.surfaces.http import to_http
from enfold.surfaces.mcp import to_mcp
from enfold.testing.client import CallRequest, Envelopes, Reply, SurfaceClient, read_answer, read_wire

Headers: TypeAlias = Mapping[str, str | None]

_SERVER: Final = ("127.0.0.1", 8000)
_DEFAULT_HEADERS: Final = {"host": "localhost:8000", "content-type": "application/json"}


@asynccontextmanager
async def http(registry: Registry, **options: Any) -> AsyncIterator[HTTPClient]:
    """Open a client of the HTTP surface; `options` are those of `to_http`. Identities are sent as bearer tokens.

    Anonymous callers are accepted, unless the test passes `tokens`.
    """
    callers = NamedCallers(options.get("tokens"))
    is_open = options.get("tokens") is None
    app = to_http(registry, **{"allow_anonymous": is_open, **options, "tokens": callers})
    async with living(app):
        yield HTTPClient(app, callers)


@asynccontextmanager
async def living(app: ASGIApp) -> AsyncIterator[None]:
    """Run the lifespan of an app, as a server does."""
    lifespan = Lifespan(app, {"type": "lifespan", "asgi": {"version": "3.0"}})
    try:
        await _pass_event("startup", lifespan)
        yield
        await _pass_event("shutdown", lifespan)
    finally:
        lifespan.task.cancel()
        await asyncio.gather(lifespan.task, return_exceptions=True)


async def _pass_event(event: str, lifespan: Lifespan) -> None:
    reply = await lifespan.tell(event)
    if reply is None:
        await lifespan.task  # raises what ended it
        raise RuntimeError(f"The app ended before its {event}")
    if reply["type"] != f"lifespan.{event}.complete":
        raise RuntimeError(f"The app failed at its {event}: {reply.get('message', '')}")


class Conversation:
    """One HTTP request and its response; it is sent immediately."""

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
        """Wake all waiters when the app has ended."""
        self._began.set()
        self._chunks.put_nowait(None)

    def go_on(self, body: bytes) -> None:
        """Send the rest of the body."""
        self._events.put_nowait({"type": "http.request", "body": body, "more_body": False})

    def leave(self) -> None:
        """Close the connection, as a client that disconnects."""
        self._events.put_nowait({"type": "http.disconnect"})

    async def began(self) -> Conversation:
        """Wait for the status and headers of the response."""
        await self._began.wait()
        if not self.status:
            await self.task  # raises what ended it
            raise RuntimeError("The app ended without a response")
        return self

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the chunks of the response as they arrive."""
        while (chunk := await self._chunks.get()) is not None:
            yield chunk

    async def body(self) -> bytes:
        """Return the whole response body."""
        await self.began()
        whole = b"".join([chunk async for chunk in self.chunks()])
        await self.task
        return whole

    async def json(self) -> Any:
        return json.loads(await self.body())

    async def events(self) -> AsyncIterator[ServerSentEvent]:
        """Yield the events of a streaming response."""
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
        "raw_path": place.encode(),
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
            if (await answer.began()).headers.get("content-type") != "text/event-stream":
                _ = (await _reply(answer, chosen)).data  # raises: only a failure is no stream
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
    """Return the operation ids of an OpenAPI document made by Enfold."""
    calls = [path["post"] for path in document["paths"].values() if "post" in path]
    return [call["operationId"] for call in calls if "x-mcp-tool" in call]


class NamedCallers:
    """A verifier that knows every identity a test has named, and asks another for any other token."""

    def __init__(self, others: Verifier | None = None) -> None:
        self._others = others
        self._identities: dict[str, Identity] = {}

    def header(self, identity: Identity | None) -> dict[str, str]:
        """Return the authorization header; empty for an anonymous caller."""
        return {} if identity is None else {"authorization": f"Bearer {self._token(identity)}"}

    def _token(self, identity: Identity) -> str:
        found = next((token for token, known in self._identities.items() if known == identity), None)
        if found is None:
            found = new_token()
            self._identities[found] = identity
        return found

    def identify(self, token: str) -> Identity | Awaitable[Identity | None] | None:
        known = self._identities.get(token)
        return known if known is not None or self._others is None else self._others.identify(token)


HANDSHAKE: Final = LATEST_HANDSHAKE.name

_CLIENT: Final = {"name": "enfold.testing", "version": "1"}
_MCP_HEADERS: Final = {
    "host": "localhost:8000",
    "content-type": "application/json",
    "accept": "application/json, text/event-stream",
}


@asynccontextmanager
async def mcp(registry: Registry, *, revision: str = LATEST.name, **options: Any) -> AsyncIterator[MCPClient]:
    """Open a client of the MCP server, mounted as in `enfold serve`; `options` are those of `to_mcp`.

    Call tools by their ids, as on the other surfaces, unless you pass `tool_names`.
    """
    own = options.pop("tokens", None)
    callers = NamedCallers(own)
    server = to_mcp(registry, **{"tool_names": "id", **options})
    app = to_http(registry, tokens=callers, allow_anonymous=own is None, mounts={"/mcp": server})
    async with living(app):
        yield MCPClient(app, revision, callers)


class MCPClient(SurfaceClient):
    """Calls the tools of an MCP server; in a revision with a handshake each identity has a session of its own."""

    def __init__(self, app: ASGIApp, revision: str, callers: NamedCallers) -> None:
        self.app = app
        self.revision = KNOWN[revision]
        self._callers = callers
        self._sessions: dict[str, str] = {}
        self._ids = count(1)

    async def _call(self, request: CallRequest) -> Reply:
        chosen = request.chosen_format
        params = {"name": request.operation, "arguments": request.input, "_meta": {FORMAT_KEY: chosen.name}}
        answer = await self._post("tools/call", params, request.identity)
        return _read(await _last(answer), answer, chosen)

    async def list(self, *, identity: Identity | None = None) -> Sequence[str]:
        found: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            page = await self.ask("tools/list", cursor, identity=identity)
            found += [tool["name"] for tool in page["tools"]]
            if "nextCursor" not in page:
                return found
            cursor = {"cursor": page["nextCursor"]}

    async def ask(
        self, method: str, params: Mapping[str, Any] | None = None, *, identity: Identity | None = None
    ) -> Any:
        """Send any request of the protocol and return its result; raise protocol errors."""
        message = await _last(await self._post(method, params or {}, identity))
        if "error" in message:
            raise _protocol_error(message["error"])
        return message["result"]

    async def _post(self, method: str, params: Mapping[str, Any], identity: Identity | None) -> Conversation:
        caller = self._callers.header(identity)
        headers = {**_MCP_HEADERS, **caller, "mcp-protocol-version": self.revision.name}
        if self.revision.is_stateless:
            named = {"mcp-name": params["name"]} if "name" in params else {}
            own = {VERSION_KEY: self.revision.name, CAPABILITIES_KEY: {}}
            params = {**params, "_meta": {**own, **params.get("_meta", {})}}
            return await self._send(method, params, {**headers, "mcp-method": method, **named})
        return await self._send(method, params, {**headers, "mcp-session-id": await self._session(caller)})

    async def _session(self, caller: dict[str, str]) -> str:
        """Return the session of a caller; it begins with their first request."""
        key = caller.get("authorization", "")
        if key not in self._sessions:
            hello = {"protocolVersion": self.revision.name, "capabilities": {}, "clientInfo": _CLIENT}
            answer = await self._send("initialize", hello, {**_MCP_HEADERS, **caller})
            await answer.body()
            self._sessions[key] = answer.headers["mcp-session-id"]
        return self._sessions[key]

    async def _send(self, method: str, params: Mapping[str, Any], headers: Mapping[str, str]) -> Conversation:
        message = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}
        return await Conversation(self.app, "POST", "/mcp", headers, msgspec.json.encode(message)).began()


async def _last(answer: Conversation) -> Any:
    """Return the response itself, which is the last message."""
    if answer.headers.get("content-type") == "application/json":
        return await answer.json()
    return [json.loads(event.data) async for event in answer.events() if event.data.strip()][-1]


def _read(message: Any, answer: Conversation, format: Format) -> Reply:
    if "error" in message:
        return Reply(None, _protocol_error(message["error"]), answer.status, answer.headers, message)
    result = message["result"]
    meta = result.get("_meta", {})
    told, shape = meta.get(ERROR_KEY, {}), meta.get(SHAPE_KEY)
    try:
        return Reply(_read_result(result, format, shape), None, answer.status, answer.headers, result)
    except CallError as error:
        failed = CallError(
            told.get("code", error.code), error.message, told.get("details", error.details), told.get("retryable")
        )
        return Reply(None, failed, answer.status, answer.headers, result)


def _read_result(result: Any, format: Format, shape: str | None) -> ResponseEnvelope[Any]:
    if format.is_content:
        return format.read(result)
    text = result["content"][0]["text"]
    return local_envelope(text, "") if shape == "text" else read_wire(json.loads(text), format, shape)


def _protocol_error(error: Any) -> CallError:
    """Translate a protocol error to a code; invalid parameters mean an unknown tool."""
    code = "OPERATION_NOT_FOUND" if error["code"] == INVALID_PARAMS else "UNKNOWN_ERROR"
    return CallError(code, error["message"], {"code": error["code"], "data": error.get("data")})
