"""Streams that are open when their token is revoked, loses a scope, or expires: each ends, with the reason if the protocol has a place for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.auth.little_issuer import AUDIENCE, ISSUER, Clock, LittleIssuer
from tests.waiting import PATIENCE, until

from enfold import CallError, Identity, OperationRegistry
from enfold.auth import tokens as auth_tokens
from enfold.auth.issuers import Issuer, Issuers
from enfold.auth.token_file import TokenFile, add_token, list_tokens, revoke_tokens
from enfold.auth.tokens import AnyOf, Verifier
from enfold.surfaces.http import HTTPSettings, to_http
from enfold.surfaces.mcp import to_mcp
from enfold.tasks import Tasks
from enfold.tasks.memory import MemoryTasks
from enfold.testing.asgi import Conversation

ops = OperationRegistry("shop")
REVISION = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": REVISION,
    "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
}
DENIED = {"code": "ACCESS_DENIED", "message": "The token is not valid", "details": {"reason": "invalid_token"}}


@ops.subscription(access={"required_scopes": ["read"]})
async def ticks(silent: bool = False) -> AsyncIterator[int]:
    if not silent:
        yield 1
    await asyncio.Event().wait()


@ops.mutation(durable=True)
async def endless() -> None:
    await asyncio.Event().wait()


@ops.mutation
async def slow(n: int) -> int:
    await gate[0].wait()
    return n


gate: list[asyncio.Event] = []


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth_tokens, "RECHECK_INTERVAL", 0.02)


class Checked(AnyOf):
    """Verifiers whose checks can be awaited."""

    checks = 0

    async def identify(self, token: str) -> Identity | None:
        identity = await super().identify(token)
        self.checks += 1
        return identity

    async def rechecked(self) -> None:
        """Wait until a check that began after this call has ended."""
        before = self.checks
        await until(lambda: self.checks >= before + 2)


class Server:
    """An app with tasks and a mounted MCP server, and one caller whose token can be taken away."""

    def __init__(self, tokens: Verifier, token: str) -> None:
        self.tasks = Tasks(ops, MemoryTasks())
        mcp = {"/mcp": to_mcp(ops, tasks=self.tasks), "/own": to_mcp(ops, tokens=tokens, tasks=self.tasks)}
        self.app = to_http(ops, HTTPSettings(heartbeat=0.01), tokens=tokens, tasks=self.tasks, mounts=mcp)
        self.own = mcp["/own"]
        self.token = token

    async def ask(self, method: str, path: str, sent: Any = None, app: Any = None, **more: str) -> Conversation:
        headers = {"host": "localhost:8000", "authorization": f"Bearer {self.token}", **more}
        headers |= {"content-type": "application/json"} if sent is not None else {}
        body = b"" if sent is None else json.dumps(sent).encode()
        return await Conversation(app or self.app, method, path, headers, body).began()

    async def call(self, method: str, params: Any, path: str = "/mcp", app: Any = None) -> Conversation:
        wire = {"jsonrpc": "2.0", "id": 7, "method": method, "params": {**params, "_meta": META}}
        more = {"mcp-method": method, "mcp-protocol-version": REVISION}
        more |= {"mcp-name": params["name"]} if "name" in params else {}
        return await self.ask("POST", path, wire, app, **more)

    async def task(self) -> str:
        begun = await self.ask("POST", "/functions/shop.endless", {}, prefer="respond-async")
        return str((await begun.json())["taskId"])


async def _http_events(server: Server) -> Conversation:
    return await server.ask("POST", "/functions/shop.ticks", {}, **{"enfold-format": "envelope"})


async def _http_lines(server: Server) -> Conversation:
    accept = {"accept": "application/x-ndjson", "enfold-format": "envelope"}
    return await server.ask("POST", "/functions/shop.ticks", {"silent": True}, **accept)


async def _http_task(server: Server) -> Conversation:
    path = f"/tasks/{await server.task()}"
    return await server.ask("GET", path, accept="text/event-stream", **{"enfold-format": "envelope"})


async def _mcp_task(server: Server) -> Conversation:
    return await server.call("subscriptions/listen", {"notifications": {"taskIds": [await server.task()]}})


async def _mcp_alone(server: Server) -> Conversation:
    return await server.call("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, "/", server.own)


async def _mcp_session(server: Server) -> Conversation:
    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}
    begun = await server.ask("POST", "/mcp", hello)
    session = {"mcp-session-id": begun.headers["mcp-session-id"], "accept": "text/event-stream"}
    return await server.ask("GET", "/mcp", **session)


STREAMS: dict[str, Callable[[Server], Any]] = {
    "events": _http_events,
    "lines before the first item": _http_lines,
    "a task over HTTP": _http_task,
    "a task over MCP, mounted": _mcp_task,
    "changes over MCP with tokens of its own": _mcp_alone,
    "the news of a session": _mcp_session,
}


def _error_in(text: str) -> Any:
    """The last error that a stream tells, in whichever framing; None where it only ends."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if "ACCESS_DENIED" in line]
    if not lines:
        return None
    told = json.loads(lines[-1])["error"]
    return told["data"]["enfold/error"] if "jsonrpc" in lines[-1] else told


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("how", ["revoked", "scope", "expired"])
async def test_an_open_stream_ends_when_its_token_does(name: str, how: str, tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "tokens.json"
    add_token(file, "bob", scopes=["read"])
    token = add_token(file, "ann", scopes=["read", "more"], seconds=300, now=clock.now)
    tokens = Checked([TokenFile(file, clock)])
    server = Server(tokens, token)
    stream = await STREAMS[name](server)
    assert stream.status == 200
    await tokens.rechecked()
    add_token(file, "ann", scopes=["read"])  # Another token of the same caller, which this stream does not use.
    await tokens.rechecked()
    assert not stream.task.done()
    if how == "expired":
        clock.move(301)
    elif how == "revoked":
        revoke_tokens(file, "ann")
    else:
        entries = json.loads(file.read_bytes())
        entries[1]["scopes"] = ["read"]
        file.write_text(json.dumps(entries))
        assert list_tokens(file)[1].scopes == ["read"]
    async with asyncio.timeout(PATIENCE):
        text = (await stream.body()).decode()
    error = _error_in(text)
    if name == "the news of a session":
        assert error is None  # which has no place for an error: the next request is refused
    else:
        assert {key: error[key] for key in DENIED} == DENIED
    if how != "scope":
        assert (await server.ask("POST", "/functions/shop.slow", {"n": 1})).status == 401
    await server.tasks.close()


async def test_a_jwt_that_expires_ends_its_stream_and_no_call_that_runs() -> None:
    issuer = LittleIssuer(Clock())
    trusted = Issuer(issuer=ISSUER, audiences=(AUDIENCE,), leeway=0)
    server = Server(Issuers([trusted], fetch=issuer.fetch, clock=issuer.clock), issuer.token())
    gate[:] = [asyncio.Event()]
    running = asyncio.ensure_future(server.ask("POST", "/functions/shop.slow", {"n": 1}))
    stream = await _http_events(server)
    issuer.clock.move(301)
    async with asyncio.timeout(PATIENCE):
        assert _error_in((await stream.body()).decode())["code"] == "ACCESS_DENIED"
        gate[0].set()
        assert await (await running).json() == {"result": 1}
    await server.tasks.close()


async def test_a_stream_continues_when_its_token_gains_rights_and_ends_when_it_loses_one(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    token = add_token(file, "ann", scopes=["read"], resources={"project:1": ["read"]})
    tokens = Checked([TokenFile(file)])
    server = Server(tokens, token)
    stream = await _http_events(server)
    entries = json.loads(file.read_bytes())
    entries[0] |= {"scopes": ["read", "write"], "resources": {"project:1": ["list", "read"], "project:2": ["read"]}}
    file.write_text(json.dumps(entries))
    await tokens.rechecked()
    assert not stream.task.done()
    entries[0]["resources"] = {"project:1": ["list"]}
    file.write_text(json.dumps(entries))
    async with asyncio.timeout(PATIENCE):
        assert _error_in((await stream.body()).decode())["code"] == "ACCESS_DENIED"
    await server.tasks.close()


async def test_a_waiting_task_whose_owner_has_no_token_left_does_not_run(tmp_path: Path) -> None:
    """Even where the operation has no rules: who may not come in may not have it run."""
    file = tmp_path / "tokens.json"
    token = add_token(file, "ann")
    store, known = MemoryTasks(), AnyOf([TokenFile(file)])
    ann = await known.identify(token)
    handle = await Tasks(ops, store, at_once=0).start("shop.endless", identity=ann)
    revoke_tokens(file, "ann")
    async with Tasks(ops, store, current=known.current):
        with pytest.raises(CallError) as raised:
            await handle.result()
    assert (raised.value.code, raised.value.details) == ("ACCESS_DENIED", {"reason": "invalid_token"})
