"""A client that speaks to an ASGI app without sockets, in both eras of the protocol."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, TypeAlias

import pytest

from enfold import Identity, OperationRegistry, testing
from enfold.auth.tokens import Tokens
from enfold.runtime.registry import Registry
from enfold.surfaces.mcp import MCPApp, to_mcp

STATELESS = "2026-07-28"
HANDSHAKE = "2025-11-25"
BOTH = "application/json, text/event-stream"

Message: TypeAlias = dict[str, Any]


class Conversation(testing.Conversation):
    """One HTTP request while it is answered with messages of the protocol."""

    async def answers(self) -> AsyncIterator[tuple[str, Message | None]]:
        """The id and the message of each event; an event without data has none."""
        async for event in self.events():
            yield event.id, json.loads(event.data) if event.data.strip() else None

    async def messages(self) -> list[Message]:
        """All messages of the answer, whether it came as JSON or as events."""
        await self.began()
        if self.headers.get("content-type") == "application/json":
            return [await self.json()]
        return [message async for _, message in self.answers() if message is not None]


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
        return Conversation(self.app, "POST", "/mcp", headers or self.headers(), body)

    def get(self, path: str = "/mcp", **headers: str) -> Conversation:
        changed = {**self.headers(), "accept": "text/event-stream"}
        changed |= {name.replace("_", "-"): value for name, value in headers.items()}
        return Conversation(self.app, "GET", path, changed)

    def send(self, method: str) -> Conversation:
        """A request of HTTP without a body."""
        return Conversation(self.app, method, "/mcp", self.headers())

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
