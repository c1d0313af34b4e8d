"""Whatever a client sends beside its call, and in whatever form, the answer is the same."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from tests.surfaces.mcp.conftest import STATELESS, Client, Conversation, MakeClient
from tests.waiting import PATIENCE

from enfold import CallError, Context, Identity, OperationRegistry, OperationSpec
from enfold.auth.tokens import Tokens
from enfold.operations import Operation
from enfold.operations.questions import MissingCapabilityError
from enfold.provenance import Recorder

META = {"io.modelcontextprotocol/protocolVersion": STATELESS, "io.modelcontextprotocol/clientCapabilities": {}}
ADD = {"name": "shop_add", "arguments": {"x": 1, "y": 2}}
LIMIT = 20_000


class Shop:
    """Tools of every kind, and how often each was run."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.ops = ops = OperationRegistry("shop")
        _add_plain_tools(ops, self.runs)
        _add_failing_tools(ops, self.runs)
        _add_other_tools(ops, self.runs)


def _add_plain_tools(ops: OperationRegistry, runs: list[str]) -> None:
    @ops.query
    async def add(x: int, y: int = 0) -> int:
        runs.append("add")
        return x + y

    @ops.query
    async def later(text: str) -> str:
        await asyncio.sleep(0)
        return text

    @ops.mutation(inline=True)
    def both() -> tuple[int, str]:
        return 1, "two"

    @ops.mutation(inline=True)
    def nothing() -> None:
        return None

    @ops.query(timeout=0.05)
    async def slow() -> int:
        await asyncio.Event().wait()
        return 1


def _add_failing_tools(ops: OperationRegistry, runs: list[str]) -> None:
    @ops.query
    async def fail() -> int:
        raise ValueError("out of order")

    @ops.query
    async def refuse() -> int:
        raise CallError("SOLD_OUT", "There is none left", {"left": 0})

    @ops.query
    async def surrogate() -> str:
        return "\ud800"

    @ops.query
    async def misfit() -> int:
        odd: Any = {"not": "a number"}
        return odd  # type: ignore[no-any-return]  # a handler that does not keep its word

    @ops.mutation
    async def ask(context: Context) -> int:
        runs.append("ask")
        return len((await context.ask("Who?", key="name")).content)

    @ops.mutation
    async def lack() -> int:
        runs.append("lack")
        raise MissingCapabilityError(("sampling",))


def _add_other_tools(ops: OperationRegistry, runs: list[str]) -> None:
    @ops.query(access={"required_scopes": ["keys"]})
    async def guarded() -> str:
        runs.append("guarded")
        return "secret"

    @ops.query
    def threaded() -> int:
        return 1

    @ops.query
    async def told(context: Context) -> bool:
        context.progress(1, 2)
        context.log("on the way")
        return context.identity is None

    @ops.subscription
    async def ticks() -> AsyncIterator[int]:
        yield 1
        yield 2

    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    ops.register(Operation(OperationSpec(namespace="shop", name="mirror", input_schema=schema), lambda *_: "ok"))


def body(params: Any = None, **fields: Any) -> bytes:
    sent = {"_meta": META, **(ADD if params is None else params)}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": sent, **fields}).encode()


def call(name: str, arguments: Any = None, **meta: Any) -> bytes:
    return body({"name": name, "arguments": arguments or {}, "_meta": {**META, **meta}})


def with_meta(**meta: Any) -> bytes:
    return body({**ADD, "_meta": {**META, **meta}})


TOOLS = ("later", "both", "nothing", "slow", "fail", "refuse", "surrogate", "misfit", "ask", "lack", "guarded")
BODIES = {
    "as most": body(),
    "by id": call("shop.add", {"x": 1}),
    "unknown tool": call("shop_none"),
    "no name": body({"arguments": {}}),
    "a name of another kind": body({"name": 1}),
    "another alphabet": call("shop_ädd"),
    "half a letter": body().replace(b"shop_add", rb"\ud800"),
    "text for a number": call("shop_add", {"x": "1"}),
    "a missing argument": call("shop_add", {}),
    "an unknown argument": call("shop_add", {"x": 1, "z": 2}),
    "no arguments": body({"name": "shop_nothing"}),
    "null arguments": body({"name": "shop_nothing", "arguments": None}),
    "arguments as a list": body({"name": "shop_nothing", "arguments": [1]}),
    "an argument twice": body().replace(b'"x": 1', b'"x": 1, "x": 5'),
    "a large number": call("shop_add", {"x": 2**70}),
    "a float": call("shop_add", {"x": 1.0}),
    "another parameter": body({**ADD, "task": {"ttl": 1}}),
    "answers": body({**ADD, "inputResponses": {}}),
    "a state": body({**ADD, "requestState": "forged"}),
    "an id of text": body(id="a"),
    "an empty id": body(id=""),
    "id null": body(id=None),
    "a fraction as id": body(id=1.5),
    "a large id": body(id=2**70),
    "an id below zero": body(id=-1),
    "an id of truth": body(id=True),
    "no id": body().replace(b'"id": 1, ', b""),
    "another version of JSON-RPC": body(jsonrpc="1.0"),
    "another field": body(extra=1),
    "a result beside it": body(result={}),
    "another method": body(method="tools/list"),
    "method null": body(method=None),
    "params null": body(params=None).replace(b'"params": {', b'"params": null, "x": {'),
    "no meta": body({**ADD, "_meta": {}}),
    "another version": with_meta(**{"io.modelcontextprotocol/protocolVersion": "2025-11-25"}),
    "an unknown version": with_meta(**{"io.modelcontextprotocol/protocolVersion": "2099-01-01"}),
    "capabilities of another kind": with_meta(**{"io.modelcontextprotocol/clientCapabilities": []}),
    "who the client is": with_meta(**{"io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"}}),
    "a client of another kind": with_meta(**{"io.modelcontextprotocol/clientInfo": 1}),
    "a log level": with_meta(**{"io.modelcontextprotocol/logLevel": "debug"}),
    "no log level": with_meta(**{"io.modelcontextprotocol/logLevel": "loud"}),
    "a format": with_meta(**{"enfold/format": "envelope"}),
    "an unknown format": with_meta(**{"enfold/format": "none"}),
    "provenance": with_meta(capture_provenance=True),
    "progress": call("shop_told", progressToken="p"),
    "a stream": call("shop_ticks"),
    "a thread": call("shop_threaded"),
    "a mirror": call("shop_mirror", {"region": "eu"}),
    "blanks around it": b" \n" + body() + b"\n ",
    "a mark before it": b"\xef\xbb\xbf" + body(),
    "something after it": body() + b"{}",
    "a batch": b"[" + body() + b"]",
    "an empty batch": b"[]",
    "an empty body": b"",
    "no JSON": b"{",
    "no text": body().replace(b"shop_add", b"\xff"),
    "no text beside a wrong field": b'{"jsonrpc": 1, "x": "\xff"}',
    "endless depth": call("shop_add").replace(b'"arguments": {}', b'"arguments": ' + b'{"x":' * 3000),
    "just within the limit": body() + b" " * (LIMIT - len(body())),
    "just over the limit": body() + b" " * (LIMIT - len(body()) + 1),
    **{name: call(f"shop_{name}", {"text": "é"} if name == "later" else {}) for name in TOOLS},
}
HEADERS: dict[str, dict[str, str | None]] = {
    "a name in base64": {"mcp-name": f"=?base64?{base64.b64encode(b'shop_add').decode()}?="},
    "a name in wrong base64": {"mcp-name": "=?base64?!?="},
    "a name with blanks": {"mcp-name": " shop_add "},
    "another name": {"mcp-name": "shop_guarded"},
    "the id as a name": {"mcp-name": "shop.add"},
    "no name": {"mcp-name": None},
    "another method": {"mcp-method": "tools/list"},
    "no method": {"mcp-method": None},
    "a method in capitals": {"mcp-method": "Tools/Call"},
    "no version": {"mcp-protocol-version": None},
    "another version": {"mcp-protocol-version": "2025-11-25"},
    "a session": {"mcp-session-id": "none"},
    "a strange parameter": {"mcp-param-region": "eu"},
    "only JSON": {"accept": "application/json"},
    "only events": {"accept": "text/event-stream"},
    "events first": {"accept": "text/event-stream, application/json"},
    "anything": {"accept": "*/*"},
    "nothing of ours": {"accept": "text/html"},
    "no accept": {"accept": None},
    "a strange host": {"host": "evil.example"},
    "a strange origin": {"origin": "https://evil.example"},
    "a long body promised": {"content-length": str(LIMIT + 1)},
}


@pytest.mark.parametrize("name", BODIES)
async def test_a_body_gets_the_same_response_on_both_paths(make_client: MakeClient, name: str) -> None:
    await compare(make_client, BODIES[name], {})


@pytest.mark.parametrize("name", HEADERS)
async def test_headers_are_heeded_alike_on_both_paths(make_client: MakeClient, name: str) -> None:
    await compare(make_client, BODIES["as most"], HEADERS[name])


@pytest.mark.parametrize("token", [None, "wrong", "t0ken", "k3y"])
@pytest.mark.parametrize("name", ["as most", "guarded"])
async def test_tokens_count_alike_on_both_paths(make_client: MakeClient, name: str, token: str | None) -> None:
    tokens = Tokens({"t0ken": Identity("someone"), "k3y": Identity("keeper", frozenset({"keys"}))})
    sent = {} if token is None else {"authorization": f"Bearer {token}"}
    await compare(make_client, BODIES[name], sent, tokens=tokens)


@pytest.mark.parametrize("format", ["envelope", "mcp_envelope_v0_1", "tool_envelope_v1"])
@pytest.mark.parametrize("name", ["as most", "both", "nothing", "misfit", "fail", "refuse"])
async def test_formats_are_written_alike_on_both_paths(make_client: MakeClient, name: str, format: str) -> None:
    await compare(make_client, BODIES[name], {}, format=format)


async def test_suppressed_details_are_suppressed_on_both_paths(make_client: MakeClient) -> None:
    answer = await compare(make_client, BODIES["fail"], {}, expose_errors=False)
    assert b"out of order" not in answer


async def test_a_tool_that_is_gone_is_gone_at_once(make_client: MakeClient) -> None:
    shop = Shop()
    client = make_client(shop.ops)
    assert "result" in await client.ask("tools/call", ADD)
    shop.ops.unregister("shop.add")
    assert (await client.ask("tools/call", ADD))["error"]["code"] == -32602


async def test_a_promise_of_too_much_is_refused_before_it_comes(make_client: MakeClient) -> None:
    client = make_client(Shop().ops, max_body=LIMIT)
    sent = client.headers("tools/call", "shop_add") | {"content-length": str(LIMIT + 1)}
    conversation = Conversation(client.app, "POST", "/mcp", sent, b"", is_silent=True)
    assert (await conversation.began()).status == 413
    await conversation.task


# --- both ways ----------------------------------------------------------------------------------------------------

SHORT = "application/json"
LONG = "application/json; charset=utf-8"  # which is the same, and no plain call has


async def compare(make_client: MakeClient, text: bytes, headers: Mapping[str, str | None], **options: Any) -> bytes:
    """Send the same by both ways, each to a shop of its own; the answer of the short one."""
    short, long = [await answered(make_client, text, headers, kind, **options) for kind in (SHORT, LONG)]
    assert short == long
    assert short[0] < 500
    assert len(short[3]) <= 1
    return short[2]


async def answered(
    make_client: MakeClient, text: bytes, headers: Mapping[str, str | None], kind: str, **options: Any
) -> tuple[int, str, bytes, list[str]]:
    shop = Shop()
    client = make_client(shop.ops, max_body=LIMIT, recorder=Recorder(), **options)
    conversation = client.post(text, {**named(client, text), "content-type": kind, **headers})
    whole = await asyncio.wait_for(conversation.body(), PATIENCE)
    return conversation.status, conversation.headers.get("content-type", ""), alike(whole), shop.runs


def named(client: Client, text: bytes) -> dict[str, str]:
    """The headers of a well-behaved client, as far as its body lets it be one."""
    try:
        name = json.loads(text)["params"]["name"].encode("utf-8").decode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        name = "shop_add"
    return client.headers("tools/call", name)


def alike(answer: bytes) -> bytes:
    """An answer without what is never the same: ids, times, states, and what has them inside."""
    changing = rb'"(requestId|requestState|run_id|enfold/runId|timestamp)":("[^"]*"|[0-9.]+)|__ENVELOPE_V1__:[^"]*'
    return re.sub(changing, b"", answer.replace(rb"\"", b'"'))
