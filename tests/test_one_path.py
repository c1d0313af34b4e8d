"""The data of a call is the same on every path; on one surface, in one format, so are its bytes."""

from __future__ import annotations

import asyncio
import json
import re
from base64 import b64decode
from dataclasses import dataclass
from io import BytesIO, StringIO
from typing import Any, Final

import pydantic
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.waiting import PATIENCE

from enfold import Context, Identity, OperationRegistry, testing
from enfold.auth.tokens import Tokens
from enfold.formats import find_format
from enfold.provenance import Recorder
from enfold.runtime.deadlines import INTERVAL
from enfold.surfaces.cgi import to_cgi
from enfold.surfaces.command_line import to_command_line
from enfold.surfaces.http import HTTPSettings, to_http
from enfold.surfaces.mcp import to_mcp

TOKEN: Final = "a token of this test alone"
ANN: Final = Identity("ann", frozenset({"row:read"}))


@dataclass
class Row:
    id: int
    name: str
    tags: list[str]
    price: float | None = None


class Model(pydantic.BaseModel):
    name: str = pydantic.Field(alias="fullName")
    rows: list[int] = []


def make_registry() -> OperationRegistry:
    ops = OperationRegistry("t")

    @ops.query
    async def at_once(n: int) -> dict[str, int]:
        return {"n": n, "a": n + 1}

    @ops.query
    async def waiting(n: int) -> list[Row]:
        await asyncio.sleep(0)
        return [Row(index, "ä" * index, ["x"]) for index in range(n)]

    @ops.query
    def blocking(n: int) -> list[Model]:
        return [Model(fullName=f"m{n}", rows=[n])]

    @ops.query
    async def in_context(n: int, context: Context) -> int | None:
        context.progress(1)
        return n or None

    @ops.query(access={"required_scopes": ["row:read"]})
    async def scoped(n: int) -> tuple[int, str]:
        return n, "z"

    @ops.query
    async def untidy(n: int) -> Row:
        return {"tags": ["y"], "id": str(n), "name": "b", "extra": 1}  # type: ignore[return-value]  # what handlers do

    return ops


OPS: Final = make_registry()
NAMES: Final = ("at_once", "waiting", "blocking", "in_context", "scoped", "untidy")
HTTP: Final = to_http(OPS, tokens=Tokens({TOKEN: ANN}), allow_anonymous=True, recorder=Recorder())
MCP: Final = to_mcp(OPS, tokens=Tokens({TOKEN: ANN}))
FORMATS: Final = ("result", "envelope", "mcp_envelope_v0_1", "plain", "tool_envelope_v1")

HEADERS: Final = st.fixed_dictionaries(
    {},
    optional={
        "x-request-id": st.sampled_from(["a.b-c_1", "not an id!", "x" * 200]),
        "accept": st.sampled_from(["*/*", "application/json", "text/html, application/json;q=0.5", "application/*"]),
        "enfold-timeout-ms": st.sampled_from(["60000", "0005000"]),
        "enfold-capture-provenance": st.sampled_from(["minimal"]),
        "user-agent": st.just("test"),
        "authorization": st.just(f"Bearer {TOKEN}"),
    },
)
CONTENT_TYPES: Final = st.sampled_from(
    ["application/json", "application/json; charset=utf-8", "Application/JSON", "application/vnd.x+json"]
)
ENCODED: Final = re.compile(rb"__ENVELOPE_V1__:([A-Za-z0-9+/=]+)")
VOLATILE: Final = re.compile(rb'"(timestamp|ts)":("[^"]*"|\d+)')


async def ask(app: Any, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
    """One request to an ASGI app; the body comes in one piece or in two."""
    in_two = len(headers) % 2 == 1
    sent = {"host": "localhost", **headers}
    answer = testing.Conversation(app, method, path, sent, body[:7] if in_two else body, is_begun=in_two)
    if in_two:
        answer.go_on(body[7:])
    text = await answer.body()
    return answer.status, text


def without_time(text: bytes) -> bytes:
    opened = ENCODED.sub(lambda found: b64decode(found[1]), text)
    return VOLATILE.sub(b'"\\1":0', opened)


async def over_http(
    name: str, n: int, headers: dict[str, str], content_type: str, format: str, *, by_get: bool
) -> tuple[int, bytes]:
    headers = {**headers, "authorization": f"Bearer {TOKEN}"} if name == "scoped" else headers
    if format != "result":
        headers = {**headers, "enfold-format": format}
    if by_get:
        return await ask(HTTP, "GET", f"/functions/t.{name}?n={n}", headers, b"")
    body = json.dumps({"n": n}).encode()
    return await ask(HTTP, "POST", f"/functions/t.{name}", {**headers, "content-type": content_type}, body)


async def expected_data(name: str, n: int) -> Any:
    return (await OPS.execute(f"t.{name}", {"n": n})).data


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(NAMES), st.integers(0, 3), HEADERS, CONTENT_TYPES, st.sampled_from(FORMATS), st.booleans())
def test_the_bytes_over_http_do_not_depend_on_the_options(
    name: str, n: int, headers: dict[str, str], content_type: str, format: str, by_get: bool
) -> None:
    async def compare() -> None:
        plain = await over_http(name, n, {}, "application/json", format, by_get=False)
        other = await over_http(name, n, headers, content_type, format, by_get=by_get)
        captured = "enfold-capture-provenance" in headers and format == "mcp_envelope_v0_1"
        assert plain[0] == other[0] == 200
        if not captured:
            assert without_time(plain[1]) == without_time(other[1])
        wire = json.loads(other[1])
        assert find_format(format).read(wire).data == await expected_data(name, n)

    asyncio.run(compare())


async def over_mcp(name: str, n: int, *, is_stateless: bool, meta: dict[str, Any]) -> Any:
    headers = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "authorization": f"Bearer {TOKEN}",
    }
    params: dict[str, Any] = {"name": f"t_{name}", "arguments": {"n": n}}
    if is_stateless:
        about = {"protocolVersion": "2026-07-28", "clientCapabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        own = {f"io.modelcontextprotocol/{key}": value for key, value in about.items()}
        params["_meta"] = {**own, **meta}
        names = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": f"t_{name}"}
        headers |= names
    elif meta:
        params["_meta"] = meta
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    status, text = await ask(MCP, "POST", "/mcp", headers, json.dumps(message).encode())
    assert status == 200, text
    return json.loads(text)["result"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(NAMES),
    st.integers(0, 3),
    st.booleans(),
    st.fixed_dictionaries({}, optional={"traceparent": st.just("00-1"), "enfold/format": st.sampled_from(FORMATS)}),
)
def test_a_tool_gives_what_the_operation_gives(name: str, n: int, is_stateless: bool, meta: dict[str, Any]) -> None:
    async def compare() -> None:
        result = await over_mcp(name, n, is_stateless=is_stateless, meta=meta)
        data = await expected_data(name, n)
        text = "".join(block["text"] for block in result["content"])
        chosen = meta.get("enfold/format", "result")
        if chosen != "tool_envelope_v1":
            assert find_format(chosen).read(json.loads(text)).data == data
        if is_stateless:
            assert find_format("result").read(result["structuredContent"]).data == data

    asyncio.run(compare())


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(NAMES), st.integers(0, 3), st.sampled_from(FORMATS[:3]))
def test_cgi_and_the_shell_give_what_the_operation_gives(name: str, n: int, format: str) -> None:
    data = asyncio.run(expected_data(name, n))
    out = BytesIO()
    environ = {"PATH_INFO": f"/t.{name}", "REQUEST_METHOD": "POST", "HTTP_ENFOLD_FORMAT": format, "REMOTE_USER": "ann"}
    body = BytesIO(json.dumps({"n": n}).encode())
    to_cgi(OPS, environ=environ, stdin=body, stdout=out, identify=lambda _: ANN)
    head, _, text = out.getvalue().partition(b"\r\n\r\n")
    assert head.startswith(b"Status: 200 OK")
    assert find_format(format).read(json.loads(text)).data == data
    printed = StringIO()
    code = to_command_line(
        OPS, [f"t.{name}", f"n={n}", "--format", format], identity=ANN, stdout=printed, stderr=StringIO()
    )
    assert code == 0
    assert find_format(format).read(json.loads(printed.getvalue())).data == data


async def test_a_websocket_on_the_path_of_an_operation_is_closed() -> None:
    await ask(HTTP, "POST", "/functions/t.at_once", {"content-type": "application/json"}, b'{"n": 1}')
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await HTTP({"type": "websocket", "path": "/functions/t.at_once", "headers": []}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]


async def test_a_refused_token_is_reported_in_the_format_and_under_the_id_that_the_caller_asked_for() -> None:
    headers = {"authorization": "Bearer wrong", "enfold-format": "envelope", "content-type": "application/json"}
    status, text = await ask(HTTP, "POST", "/functions/t.at_once", headers, b'{"n": 1}')
    assert (status, json.loads(text)["error"]["code"]) == (401, "ACCESS_DENIED")


class Slow:
    """A verifier that asks a remote service."""

    async def identify(self, token: str) -> Identity | None:
        await asyncio.sleep(4 * INTERVAL)
        return ANN if token == TOKEN else None


async def test_a_body_is_complete_however_long_authentication_takes() -> None:
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json", "x-request-id": "a"}
    for app, path in ((to_http(OPS, tokens=Slow()), "/functions/t.at_once"),):
        for _ in range(2):  # once before and once after its path is known
            status, text = await asyncio.wait_for(ask(app, "POST", path, headers, b'{"n": 1}'), PATIENCE)
            assert (status, json.loads(text)) == (200, {"result": {"n": 1, "a": 2}})


async def test_a_body_that_arrives_late_after_a_slow_verifier_is_a_timeout() -> None:
    app = to_http(OPS, HTTPSettings(body_timeout=0.05), tokens=Slow())
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]  # which never comes

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    lines = [(b"host", b"localhost"), (b"authorization", f"Bearer {TOKEN}".encode())]
    scope = {"type": "http", "method": "POST", "path": "/functions/t.at_once", "query_string": b"", "headers": lines}
    await asyncio.wait_for(app({**scope, "server": ("127.0.0.1", 80)}, receive, send), PATIENCE)
    assert sent[0]["status"] == 504
