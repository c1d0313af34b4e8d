"""The endpoint itself: who may call, what a request must look like, sessions, and resumed streams."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.surfaces.mcp.conftest import Conversation
from tests.waiting import PATIENCE

from enfold import Context, Identity, OperationRegistry, OperationSpec
from enfold.auth.tokens import Tokens
from enfold.mcp import close_stream
from enfold.operations import Operation
from enfold.surfaces.mcp import to_mcp

if TYPE_CHECKING:
    from tests.surfaces.mcp.conftest import Client, MakeClient


@pytest.fixture
def client(make_client: MakeClient, ops: OperationRegistry) -> Client:
    """A stateless client of a registry with one operation."""

    @ops.query
    async def add(x: int, y: int) -> int:
        return x + y

    return make_client(ops)


async def refused(client: Client, headers: dict[str, str], message: Any = None) -> tuple[int, int | None]:
    """The status and the code with which a request is refused."""
    body = client.message("tools/list") if message is None else message
    conversation = client.post(body, {**client.headers("tools/list"), **headers})
    text = await conversation.body()
    return conversation.status, json.loads(text)["error"]["code"] if text else None


# --- hosts, sizes and kinds ---------------------------------------------------------------------------------------

FOREIGN = {
    "another host": {"host": "evil.example"},
    "another origin": {"origin": "http://evil.example"},
    "an origin of a name that only begins like ours": {"origin": "http://localhost:8000.evil.example"},
    "no host at all": {"host": ""},
}


@pytest.mark.parametrize("headers", FOREIGN.values(), ids=FOREIGN)
async def test_another_host_or_origin_is_refused(client: Client, headers: dict[str, str]) -> None:
    assert (await refused(client, headers))[0] == 403


FRIENDS = {
    "localhost": {"host": "localhost"},
    "an address": {"host": "127.0.0.1:9"},
    "version 6": {"host": "[::1]:8000"},
    "its own page": {"host": "localhost:8000", "origin": "http://localhost:8000"},
}


@pytest.mark.parametrize("headers", FRIENDS.values(), ids=FRIENDS)
async def test_a_neighbour_is_served(client: Client, headers: dict[str, str]) -> None:
    conversation = client.post(client.message("tools/list"), {**client.headers("tools/list"), **headers})
    assert (await conversation.began()).status == 200


async def test_other_names_and_origins_can_be_allowed(make_client: MakeClient, ops: OperationRegistry) -> None:
    client = make_client(ops, allowed_hosts=["*.example.org"], allowed_origins=["https://app.example.com"])
    headers = {"host": "api.example.org", "origin": "https://app.example.com"}
    conversation = client.post(client.message("tools/list"), {**client.headers("tools/list"), **headers})
    assert (await conversation.began()).status == 200


async def test_a_page_of_an_allowed_origin_may_ask_and_read_the_answer(
    make_client: MakeClient, ops: OperationRegistry, tokens: Tokens
) -> None:
    ops.query(name="greet")(lambda: "hello")
    client = make_client(ops, tokens=tokens, allowed_origins=["https://app.example.com"])
    origin = {"origin": "https://app.example.com", "sec-fetch-site": "cross-site"}
    preflight = {**origin, "host": "localhost:8000", "access-control-request-method": "POST"}
    asked = await Conversation(client.app, "OPTIONS", "/mcp", preflight, b"").began()
    assert (asked.status, asked.headers["access-control-allow-methods"]) == (204, "GET, POST, DELETE")
    assert "Mcp-Session-Id" in asked.headers["access-control-allow-headers"]
    for token, status in (("ann-token", 200), ("wrong", 401)):
        client.token = token
        headers = {**client.headers("tools/list"), **origin}
        answer = await client.post(client.message("tools/list"), headers).began()
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (status, "https://app.example.com")
        assert "Mcp-Session-Id" in answer.headers["access-control-expose-headers"]


async def test_a_preflight_of_another_origin_is_refused(client: Client) -> None:
    preflight = {"host": "localhost:8000", "access-control-request-method": "POST"}
    assert (await Conversation(client.app, "OPTIONS", "/mcp", preflight, b"").began()).status == 405
    preflight["origin"] = "https://app.example.com"
    assert (await Conversation(client.app, "OPTIONS", "/mcp", preflight, b"").began()).status == 403


async def test_a_body_over_the_limit_is_refused(make_client: MakeClient, ops: OperationRegistry) -> None:
    client = make_client(ops, max_body=100)
    assert (await refused(client, {}, b" " * 101))[0] == 413
    assert (await refused(client, {"content-length": "101"}))[0] == 413


UNREADABLE: dict[str, tuple[bytes, int]] = {
    "not JSON": (b"{", -32700),
    "not UTF-8": (b'{"jsonrpc": "2.0", "id": 1, "method": "\xff"}', -32700),
    "not an object": (b"1", -32600),
    "no JSON-RPC": (b'{"id": 1, "method": "ping"}', -32600),
    "neither a request nor an answer": (b'{"jsonrpc": "2.0", "id": 1}', -32600),
    "a method that is no text": (b'{"jsonrpc": "2.0", "id": 1, "method": 1}', -32600),
    "nothing at all": (b"", -32700),
    "an array": (b'[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]', -32600),
}


@pytest.mark.parametrize(("body", "code"), UNREADABLE.values(), ids=UNREADABLE)
async def test_unreadable_input_is_refused(client: Client, body: bytes, code: int) -> None:
    assert await refused(client, {}, body) == (400, code)


async def test_a_refusal_names_the_request_where_it_can(client: Client) -> None:
    conversation = client.post(b'{"jsonrpc": "2.0", "id": 7, "method": 1}')
    assert (await conversation.json())["id"] == 7


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"content-type": "text/plain"}, 415), ({"accept": "text/html"}, 406)],
    ids=["another type", "another answer"],
)
async def test_only_json_is_spoken(client: Client, headers: dict[str, str], status: int) -> None:
    assert (await refused(client, headers))[0] == status


REFUSALS: dict[str, tuple[str, dict[str, str], int, str, str | None]] = {
    "another method": ("PUT", {}, 405, "VALIDATION_ERROR", "GET, POST, DELETE"),
    "no session to get": ("GET", {"accept": "text/event-stream"}, 405, "VALIDATION_ERROR", "POST"),
    "no session to delete": ("DELETE", {}, 405, "VALIDATION_ERROR", "POST"),
    "another's session": ("DELETE", {"mcp-session-id": "00"}, 404, "OPERATION_NOT_FOUND", None),
    "another type": ("POST", {"content-type": "text/plain"}, 415, "VALIDATION_ERROR", None),
    "another answer": ("POST", {"accept": "text/html"}, 406, "VALIDATION_ERROR", None),
    "a length of a million digits": ("POST", {"content-length": "9" * 10**6}, 413, "PAYLOAD_TOO_LARGE", None),
    "another host": ("POST", {"host": "evil.example"}, 403, "ACCESS_DENIED", None),
}


@pytest.mark.parametrize(("method", "headers", "status", "code", "allow"), REFUSALS.values(), ids=REFUSALS)
async def test_a_refusal_is_answered_as_over_http_and_observed(
    make_client: MakeClient,
    ops: OperationRegistry,
    method: str,
    headers: dict[str, str],
    status: int,
    code: str,
    allow: str | None,
) -> None:
    client, told = make_client(ops), []
    ops.observe(lambda record: told.append(record.code))
    answer = await Conversation(client.app, method, "/mcp", {**client.headers(), **headers}, b"{}").began()
    error = json.loads(await answer.body())["error"]
    assert (answer.status, answer.headers["enfold-code"], answer.headers.get("allow")) == (status, code, allow)
    assert (error["code"], bool(error["message"]), told) == (-32600, True, [code])


async def test_a_head_is_refused_without_a_body(client: Client) -> None:
    answer = await client.send("HEAD").began()
    assert (answer.status, int(answer.headers["content-length"]) > 0, await answer.body()) == (405, True, b"")


# --- headers that repeat the body ---------------------------------------------------------------------------------

MISMATCHES: dict[str, dict[str, str]] = {
    "no version": {"mcp-protocol-version": ""},
    "another version": {"mcp-protocol-version": "2025-11-25"},
    "no method": {"mcp-method": ""},
    "another method": {"mcp-method": "prompts/list"},
    "a method in capitals": {"mcp-method": "TOOLS/LIST"},
}


@pytest.mark.parametrize("headers", MISMATCHES.values(), ids=MISMATCHES)
async def test_a_header_that_says_something_else_is_refused(client: Client, headers: dict[str, str]) -> None:
    assert await refused(client, headers) == (400, -32020)


@pytest.mark.parametrize(
    ("name", "is_served"),
    [("shop_add", True), ("  shop_add ", True), ("=?base64?c2hvcF9hZGQ=?=", True), ("other", False), ("", False)],
)
async def test_the_name_in_the_header_is_that_of_the_tool(client: Client, name: str, is_served: bool) -> None:
    message = client.message("tools/call", {"name": "shop_add", "arguments": {"x": 1, "y": 2}})
    conversation = client.post(message, client.headers("tools/call", name))
    assert (await conversation.began()).status == (200 if is_served else 400)


async def test_a_header_that_is_repeated_is_refused(client: Client) -> None:
    answers: list[dict[str, Any]] = []
    headers = [(name.encode(), value.encode()) for name, value in client.headers("tools/list").items()]
    scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": [*headers, (b"mcp-method", b"ping")]}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(client.message("tools/list")).encode()}

    async def send(message: dict[str, Any]) -> None:
        answers.append(message)

    await client.app(scope, receive, send)
    assert answers[0]["status"] == 400


async def test_an_unknown_version_gets_the_known_ones(client: Client) -> None:
    client.revision = "2099-01-01"
    message = client.message("tools/list")
    message["params"]["_meta"] = {
        "io.modelcontextprotocol/protocolVersion": "2099-01-01",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    conversation = client.post(message, {**client.headers(), "mcp-method": "tools/list"})
    error = (await conversation.json())["error"]
    assert (conversation.status, error["code"]) == (400, -32022)
    assert error["data"] == {"supported": ["2026-07-28"], "requested": "2099-01-01"}


# --- eras ---------------------------------------------------------------------------------------------------------


async def test_discovery_says_who_and_what_we_are(make_client: MakeClient, ops: OperationRegistry) -> None:
    result = await make_client(ops, name="Shop", version="3.1", instructions="Buy apples").result("server/discover")
    assert result["supportedVersions"] == ["2026-07-28"]
    assert result["capabilities"] == {"tools": {"listChanged": True}, "logging": {}}
    assert result["_meta"]["io.modelcontextprotocol/serverInfo"] == {"name": "Shop", "version": "3.1"}
    assert (result["instructions"], result["resultType"]) == ("Buy apples", "complete")


VERSIONS = [
    ("2024-11-05", "2024-11-05"),
    ("2025-11-25", "2025-11-25"),
    ("2026-07-28", "2025-11-25"),
    ("1.0", "2025-11-25"),
]


@pytest.mark.parametrize(("asked", "agreed"), VERSIONS)
async def test_a_handshake_agrees_on_a_revision(
    make_client: MakeClient, ops: OperationRegistry, asked: str, agreed: str
) -> None:
    client = make_client(ops, "2025-11-25")
    message = client.message("initialize", {"protocolVersion": asked, "capabilities": {}})
    assert (await client.post(message).json())["result"]["protocolVersion"] == agreed


@pytest.mark.parametrize("method", ["initialize", "ping", "logging/setLevel", "resources/subscribe", "no/such"])
async def test_a_method_that_is_gone_is_not_found(client: Client, method: str) -> None:
    conversation = client.begin(method)
    assert ((await conversation.json())["error"]["code"], conversation.status) == (-32601, 404)


async def test_a_client_without_a_session_is_served(
    make_client: MakeClient, client: Client, ops: OperationRegistry
) -> None:
    old = make_client(ops, "2025-06-18")
    assert (await old.call("shop_add", {"x": 1, "y": 2}))["structuredContent"] == {"result": 3}
    assert await old.result("ping") == {}


async def test_several_messages_at_once_only_for_the_oldest(
    make_client: MakeClient, ops: OperationRegistry, client: Client
) -> None:
    old = make_client(ops, "2025-03-26")
    batch = [old.message("ping"), {"jsonrpc": "2.0", "method": "notifications/initialized"}, old.message("tools/list")]
    answers = await old.post(batch).json()
    assert [answer["id"] for answer in answers] == [1, 2]
    assert (await refused(make_client(ops, "2025-06-18"), {}, batch))[0] == 400


async def test_a_client_that_prefers_events_gets_them(
    client: Client, make_client: MakeClient, ops: OperationRegistry
) -> None:
    old = make_client(ops, "2025-11-25")
    await old.initialize()
    conversation = old.post(old.message("ping"), {**old.headers(), "accept": "text/event-stream, application/json"})
    (first, nothing), (_, answer) = [event async for event in conversation.answers()]
    assert (bool(first), nothing) == (True, None)
    assert answer is not None
    assert answer["result"] == {}


# --- sessions -----------------------------------------------------------------------------------------------------


async def test_a_session_ends_with_delete(make_client: MakeClient, ops: OperationRegistry) -> None:
    client = make_client(ops, "2025-11-25")
    await client.initialize()
    assert await client.result("ping") == {}
    assert (await client.send("DELETE").began()).status == 204
    assert (await client.begin("ping").began()).status == 404


async def test_a_session_cannot_be_used_by_another_identity(
    make_client: MakeClient, ops: OperationRegistry, tokens: Tokens
) -> None:
    ann = make_client(ops, "2025-11-25", "ann-token", tokens=tokens)
    await ann.initialize()
    assert await ann.result("ping") == {}
    ann.token = "bob-token"
    assert (await ann.begin("ping").began()).status == 404


async def test_without_a_session_there_is_nothing_to_get_or_delete(client: Client) -> None:
    assert (await client.get().began()).status == 405
    assert (await client.send("DELETE").began()).status == 405


async def test_a_client_reconnects_for_its_response(make_client: MakeClient, ops: OperationRegistry) -> None:
    go_on = asyncio.Event()

    @ops.query
    async def think(context: Context) -> str:
        close_stream(context)
        await go_on.wait()
        return "thought"

    client = make_client(ops, "2025-11-25")
    await client.initialize()
    events = [event async for event in client.begin("tools/call", {"name": "shop_think"}).answers()]
    [(event_id, nothing)] = events
    assert nothing is None
    again = client.get(last_event_id=event_id)
    go_on.set()
    [(_, answer)] = [event async for event in again.answers()]
    assert answer is not None
    assert answer["result"]["structuredContent"] == {"result": "thought"}


# --- tokens -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("token", "error"), [(None, False), ("wrong", True)], ids=["no token", "an unknown token"])
async def test_a_caller_without_a_token_learns_where_to_get_one(
    make_client: MakeClient, ops: OperationRegistry, tokens: Tokens, token: str | None, error: bool
) -> None:
    client = make_client(ops, token=token, tokens=tokens)
    conversation = await client.begin("tools/list").began()
    challenge = conversation.headers["www-authenticate"]
    assert conversation.status == 401
    assert 'resource_metadata="http://localhost:8000/.well-known/oauth-protected-resource/mcp"' in challenge
    assert ('error="invalid_token"' in challenge) is error


async def test_the_metadata_of_the_resource_is_public(
    make_client: MakeClient, ops: OperationRegistry, tokens: Tokens
) -> None:
    ops.query(name="write", access={"required_scopes": ["write"]})(lambda: 1)
    client = make_client(ops, tokens=tokens, authorization_servers=["https://login.example.org"])
    document = await client.get("/.well-known/oauth-protected-resource/mcp").json()
    assert document["resource"] == "http://localhost:8000/mcp"
    assert document["authorization_servers"] == ["https://login.example.org"]
    assert document["scopes_supported"] == ["write"]


async def test_an_app_that_mounts_us_says_who_calls(ops: OperationRegistry) -> None:
    @ops.query
    async def who(context: Context) -> str:
        return "anonymous" if context.identity is None else context.identity.id

    answers: list[dict[str, Any]] = []
    body = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "shop_who"}}'
    headers = [(b"content-type", b"application/json"), (b"host", b"checked-by-others.example")]
    scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": headers, "enfold.identity": Identity("ann")}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: dict[str, Any]) -> None:
        answers.append(message)

    await to_mcp(ops)(scope, receive, send)
    assert json.loads(json.loads(answers[1]["body"])["result"]["content"][0]["text"]) == {"result": "ann"}


# --- arguments in headers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "region", "status"),
    [
        ("eu", "eu", 200),
        ("=?base64?w7xiZXI=?=", "über", 200),
        ("us", "eu", 400),
        (None, "eu", 400),
        ("eu", None, 400),
        (None, None, 200),
        ("=?base64?!?=", "eu", 400),
    ],
)
async def test_an_argument_that_a_header_repeats_is_compared(
    make_client: MakeClient, ops: OperationRegistry, header: str | None, region: str | None, status: int
) -> None:
    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    ops.register(Operation(OperationSpec(name="query", input_schema=schema), lambda *_: "ok"))
    client = make_client(ops)
    message = client.message("tools/call", {"name": "query", "arguments": {"region": region} if region else {}})
    headers = client.headers("tools/call", "query") | ({} if header is None else {"mcp-param-region": header})
    assert (await client.post(message, headers).began()).status == status


# --- calls that ask for nothing but their result --------------------------------------------------------------------


async def test_a_plain_call_that_waits_is_abandoned_with_its_client(make_client: MakeClient) -> None:
    ops = OperationRegistry()
    began, ended = asyncio.Event(), asyncio.Event()

    @ops.query
    async def wait() -> int:
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            ended.set()
        return 1

    client = make_client(ops)
    conversation = client.begin("tools/call", {"name": "wait", "arguments": {}})
    await began.wait()
    conversation.leave()
    await asyncio.wait_for(ended.wait(), PATIENCE)
    await conversation.task


async def test_a_plain_call_that_waits_is_answered(make_client: MakeClient) -> None:
    ops = OperationRegistry()

    @ops.query
    async def wait() -> int:
        await asyncio.sleep(0)
        return 1

    client = make_client(ops)
    assert (await client.call("wait", {}))["structuredContent"] == {"result": 1}


async def test_a_handler_that_catches_every_exception_still_asks(make_client: MakeClient) -> None:
    ops = OperationRegistry()

    @ops.query
    async def ask(context: Context) -> int:
        try:
            return len((await context.ask("Who are you?", key="name")).content)
        except Exception:  # noqa: BLE001  # what this is about
            return -1

    client = make_client(ops)
    client.capabilities = {"elicitation": {}}
    result = await client.call("ask", {})
    assert result["resultType"] == "input_required"
    assert list(result["inputRequests"]) == ["name"]


async def test_a_result_that_cannot_be_written_is_reported_as_a_failure(make_client: MakeClient) -> None:
    ops = OperationRegistry()

    @ops.query
    async def half() -> str:
        return "\ud800"

    client = make_client(ops)
    for asked in ({}, {"_meta": {"enfold/format": "envelope"}}):
        result = await client.call("half", {}, **asked)
        assert result["isError"] is True
        assert result["_meta"]["enfold/error"]["code"] == "EXECUTION_ERROR"


async def test_a_plain_body_in_pieces_is_read(client: Client) -> None:
    call = client.message("tools/call", {"name": "shop_add", "arguments": {"x": 1, "y": 2}})
    body = json.dumps(call).encode()
    conversation = Conversation(
        client.app, "POST", "/mcp", client.headers("tools/call", "shop_add"), body[:9], is_begun=True
    )
    conversation.go_on(body[9:])
    assert (await conversation.json())["result"]["structuredContent"] == {"result": 3}


# --- bodies that do not come whole ------------------------------------------------------------------------------------


async def test_a_client_that_goes_in_the_middle_of_its_body_runs_nothing(make_client: MakeClient) -> None:
    ops, runs = OperationRegistry(), list[int]()

    @ops.mutation
    async def run() -> int:
        runs.append(1)
        return 1

    client = make_client(ops)
    body = json.dumps(client.message("tools/call", {"name": "run", "arguments": {}})).encode()
    conversation = Conversation(client.app, "POST", "/mcp", client.headers("tools/call", "run"), body, is_begun=True)
    conversation.leave()
    await conversation.task
    assert (conversation.status, runs) == (499, [])


async def test_a_body_that_does_not_arrive_in_time_is_a_timeout(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("enfold.surfaces.mcp.http.BODY_TIMEOUT", 0.01)
    conversation = Conversation(
        client.app, "POST", "/mcp", client.headers("tools/call", "shop_add"), b"", is_silent=True
    )
    answer = await conversation.json()
    assert (conversation.status, answer["error"]["message"]) == (504, "The body did not arrive in time")


@pytest.mark.parametrize("path", ["/mcp/\r\nSet-Cookie: a=b", '/mcp/"x', "/mcp/\u00e9\u4e2d", "/mcp/\x00"])
async def test_a_path_cannot_write_headers_of_the_answer(
    ops: OperationRegistry, make_client: MakeClient, tokens: Tokens, path: str
) -> None:
    client = make_client(ops, tokens=tokens)
    answer = await client.get(path).began()
    challenge = answer.headers["www-authenticate"]
    assert (answer.status, challenge.isascii() and challenge.isprintable()) == (401, True)
    assert challenge.count('"') == 4
