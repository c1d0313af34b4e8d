"""A client that speaks to an ASGI app without sockets, in both eras of the protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, TypeAlias

import pytest

from enfold import Identity, OperationRegistry
from enfold.registry import Registry
from enfold.surfaces.mcp import MCPApp, to_mcp
from enfold.tokens import Tokens

STATELESS = "2026-07-28"
HANDSHAKE = "2025-11-25"
BOTH = "application/json, text/event-stream"

Message: TypeAlias = dict[str, Any]


class Conversation:
    """One HTTP request while it is answered."""

    def __init__(
        self,
        app: MCPApp,
        method: str,
        headers: Mapping[str, str | None],
        body: bytes,
        path: str = "/mcp",
        *,
        is_begun: bool = False,
        is_silent: bool = False,
    ) -> None:
        """With `is_begun` there is more of the body to come; with `is_silent` all of it."""
        self.status = 0
        self.headers: dict[str, str] = {}
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._events: asyncio.Queue[Message] = asyncio.Queue()
        if not is_silent:
            self._events.put_nowait({"type": "http.request", "body": body, "more_body": is_begun})
        self._began = asyncio.Event()
        self._rest = b""
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [
                (name.lower().encode(), value.encode()) for name, value in headers.items() if value is not None
            ],
            "server": ("127.0.0.1", 8000),
            "scheme": "http",
        }
        self.task = asyncio.create_task(app(scope, self._events.get, self._send))

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            self._began.set()
            return
        self._chunks.put_nowait(message["body"])
        if not message.get("more_body"):
            self._chunks.put_nowait(None)

    def go_on(self, body: bytes) -> None:
        """Send the rest of the body."""
        self._events.put_nowait({"type": "http.request", "body": body, "more_body": False})

    def leave(self) -> None:
        self._events.put_nowait({"type": "http.disconnect"})

    async def began(self) -> Conversation:
        await self._began.wait()
        return self

    async def body(self) -> bytes:
        whole = b""
        while (chunk := await self._chunks.get()) is not None:
            whole += chunk
        await self.task
        return whole

    async def json(self) -> Any:
        return json.loads(await self.body())

    async def events(self) -> AsyncIterator[tuple[str, Message | None]]:
        """The id and the message of each event; an event without data has none."""
        text = b""
        while (chunk := await self._chunks.get()) is not None:
            text += chunk
            *whole, text = text.split(b"\n\n")
            for event in whole:
                fields = dict(line.split(b": ", 1) for line in event.splitlines() if b": " in line)
                if b"data" in fields:
                    data = fields[b"data"]
                    yield fields.get(b"id", b"").decode(), json.loads(data) if data.strip() else None

    async def messages(self) -> list[Message]:
        """All messages of the answer, whether it came as JSON or as events."""
        await self.began()
        if self.headers.get("content-type") == "application/json":
            return [await self.json()]
        return [message async for _, message in self.events() if message is not None]


class Client:
    """A client of one era, with or without a session."""

    def __init__(self, app: MCPApp, revision: str, token: str | None = None) -> None:
        self.app = app
        self.revision = revision
        self.token = token
        self.session: str | None = None
        self.capabilities: Message = {}
        self._id = 0

    @property
    def is_stateless(self) -> bool:
        return self.revision == STATELESS

    def headers(self, method: str = "", name: str | None = None) -> dict[str, str]:
        headers = {"host": "localhost:8000", "content-type": "application/json", "accept": BOTH}
        headers["mcp-protocol-version"] = self.revision
        if self.token is not None:
            headers["authorization"] = f"Bearer {self.token}"
        if self.session is not None:
            headers["mcp-session-id"] = self.session
        if self.is_stateless:
            headers["mcp-method"] = method
        if self.is_stateless and name is not None:
            headers["mcp-name"] = name
        return headers

    def message(self, method: str, params: Message | None = None, meta: Message | None = None) -> Message:
        self._id += 1
        params, meta = dict(params or {}), dict(meta or {})
        if self.is_stateless:
            meta["io.modelcontextprotocol/protocolVersion"] = self.revision
            meta["io.modelcontextprotocol/clientCapabilities"] = self.capabilities
        return {"jsonrpc": "2.0", "id": self._id, "method": method, "params": {**params, "_meta": meta}}

    def begin(self, method: str, params: Message | None = None, meta: Message | None = None) -> Conversation:
        message = self.message(method, params, meta)
        named = message["params"].get("uri" if method == "resources/read" else "name")
        name = named if method in ("tools/call", "prompts/get", "resources/read") else None
        return self.post(message, self.headers(method, name))

    def post(self, message: Any, headers: Mapping[str, str | None] | None = None) -> Conversation:
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        return Conversation(self.app, "POST", headers or self.headers(), body)

    def get(self, path: str = "/mcp", **headers: str) -> Conversation:
        changed = {**self.headers(), "accept": "text/event-stream"}
        changed |= {name.replace("_", "-"): value for name, value in headers.items()}
        return Conversation(self.app, "GET", changed, b"", path)

    def send(self, method: str) -> Conversation:
        """A request of HTTP without a body."""
        return Conversation(self.app, method, self.headers(), b"")

    async def ask(self, method: str, params: Message | None = None, meta: Message | None = None) -> Message:
        """The last message of the answer: the response itself."""
        return (await self.begin(method, params, meta).messages())[-1]

    async def result(self, method: str, params: Message | None = None, meta: Message | None = None) -> Message:
        answer = await self.ask(method, params, meta)
        assert "result" in answer, answer
        result: Message = answer["result"]
        return result

    async def call(self, tool: str, arguments: Any = None, meta: Message | None = None, **params: Any) -> Message:
        return await self.result("tools/call", {"name": tool, "arguments": arguments or {}, **params}, meta)

    async def initialize(self, **capabilities: Any) -> Message:
        """Make the handshake, and keep the session."""
        params = {"protocolVersion": self.revision, "capabilities": capabilities, "clientInfo": {"name": "t"}}
        answer = await self.post(self.message("initialize", params)).began()
        self.session = answer.headers["mcp-session-id"]
        await self.post({"jsonrpc": "2.0", "method": "notifications/initialized"}).body()
        result: Message = (await answer.json())["result"]
        return result


MakeClient: TypeAlias = Callable[..., Client]


@pytest.fixture
def make_client() -> MakeClient:
    """A client of a registry; other keywords are those of `to_mcp`."""

    def make(registry: Registry, revision: str = STATELESS, token: str | None = None, **options: Any) -> Client:
        return Client(to_mcp(registry, **options), revision, token)

    return make


@pytest.fixture(params=[HANDSHAKE, STATELESS])
def revision(request: pytest.FixtureRequest) -> str:
    """The last revision with a handshake, and the first without one."""
    return str(request.param)


@pytest.fixture
def ops() -> OperationRegistry:
    return OperationRegistry("shop")


@pytest.fixture
def tokens() -> Tokens:
    """Ann may write, Bob may not."""
    return Tokens({"ann-token": Identity("ann", frozenset({"write"})), "bob-token": Identity("bob")})
