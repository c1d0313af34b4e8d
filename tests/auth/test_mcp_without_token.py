"""An MCP server with identities: callers without a token only see public operations, and get a challenge for everything else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.serving import Answer, Client, serve

from enfold import Identity, OperationRegistry
from enfold.auth.tokens import Tokens
from enfold.surfaces.http import to_http
from enfold.surfaces.mcp import to_mcp
from enfold.testing.asgi import Conversation

TOKENS = Tokens(
    {
        "ann-token": Identity("ann", frozenset({"write"})),
        "weak-token": Identity("ann"),  # the same person, with fewer rights
        "bob-token": Identity("bob"),
    }
)
HANDSHAKE, STATELESS = "2025-11-25", "2026-07-28"
META = {"io.modelcontextprotocol/protocolVersion": STATELESS, "io.modelcontextprotocol/clientCapabilities": {}}
METHODS: dict[str, dict[str, Any]] = {
    "initialize": {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    "ping": {},
    "logging/setLevel": {"level": "info"},
    "server/discover": {},
    "tools/list": {},
    "tools/call": {"name": "shop_price"},
    "resources/list": {},
    "resources/templates/list": {},
    "resources/read": {"uri": "shop://stock"},
    "resources/subscribe": {"uri": "shop://stock"},
    "resources/unsubscribe": {"uri": "shop://stock"},
    "prompts/list": {},
    "prompts/get": {"name": "shop_greeting"},
    "completion/complete": {"ref": {"type": "ref/prompt", "name": "shop_greeting"}, "argument": {"name": "a"}},
    "subscriptions/listen": {"notifications": {"toolsListChanged": True}},
    "tasks/list": {},
    "none/such": {},
}
ANSWERED = ("initialize", "ping", "logging/setLevel", "server/discover", "tools/list")


def shop(*, public: bool) -> OperationRegistry:
    ops = OperationRegistry("shop")

    @ops.query
    async def price(item: str = "") -> int:
        return len(item)

    @ops.mutation(access={"required_scopes": ["write"]})
    async def order(item: str = "") -> str:
        return item

    @ops.query(access={"resource_type": "shelf", "resource_action": "read", "resource_id": "id"})
    async def shelf(id: str = "") -> str:  # the argument that names the resource
        return id

    ops.resource("shop://stock", name="stock")(lambda: "12 pens")
    ops.prompt(name="greeting")(lambda: "Say hello")
    if public:

        @ops.query(access={"public": True})
        async def hours(day: str = "") -> str:
            return f"9 to 5 {day}".strip()

    return ops


def apps(ops: OperationRegistry) -> dict[str, Any]:
    """Every way to serve it with authentication required."""
    return {
        "standalone": to_mcp(ops, tokens=TOKENS),
        "mounted": to_http(ops, tokens=TOKENS, mounts={"/mcp": to_mcp(ops, tokens=TOKENS)}),
        "mounted without tokens of its own": to_http(ops, tokens=TOKENS, mounts={"/mcp": to_mcp(ops)}),
    }


@pytest.fixture(params=["standalone", "mounted", "mounted without tokens of its own"])
def closed(request: pytest.FixtureRequest) -> Iterator[Client]:
    with serve(apps(shop(public=False))[request.param]) as client:
        yield client


@pytest.fixture(params=["standalone", "mounted", "mounted without tokens of its own"])
def public(request: pytest.FixtureRequest) -> Iterator[Client]:
    with serve(apps(shop(public=True))[request.param]) as client:
        yield client


def ask(client: Client, method: str, params: dict[str, Any], era: str = STATELESS, **headers: str) -> Answer:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    sent = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json", **headers}
    if era == STATELESS:
        message["params"] = {**params, "_meta": META}
        sent |= {"MCP-Protocol-Version": STATELESS, "Mcp-Method": method}
        name = params.get("name", params.get("uri"))
        if name is not None and method in ("tools/call", "prompts/get", "resources/read"):
            sent["Mcp-Name"] = name
    return client.request("POST", "/mcp", json.dumps(message).encode(), sent)


@pytest.mark.parametrize("era", [HANDSHAKE, STATELESS])
def test_without_a_token_no_method_says_anything(closed: Client, era: str) -> None:
    answers = {method: ask(closed, method, params, era) for method, params in METHODS.items()}
    assert {method for method, answer in answers.items() if answer.status != 401} == set()
    assert not any(word in answer.body for answer in answers.values() for word in (b"shop", b"price", b"greeting"))
    assert "resource_metadata=" in answers["ping"].headers["www-authenticate"]


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "HEAD", "OPTIONS"])
def test_without_a_token_no_other_http_method_says_anything(closed: Client, public: Client, method: str) -> None:
    headers = {"Accept": "text/event-stream", "Mcp-Session-Id": "guessed"}
    for client in (closed, public):
        assert [client.request(method, "/mcp", b"", given).status for given in ({}, headers)] == [401, 401]


@pytest.mark.parametrize("era", [HANDSHAKE, STATELESS])
def test_where_something_is_public_handshake_and_lists_answer_with_that_alone(public: Client, era: str) -> None:
    walked = {method: params for method, params in METHODS.items() if method != "subscriptions/listen"}
    answers = {method: ask(public, method, params, era) for method, params in walked.items()}
    of_this_era = [
        method
        for method in ANSWERED
        if (method == "server/discover" or era == HANDSHAKE or method == "tools/list")
        and (method != "server/discover" or era == STATELESS)
    ]
    assert [method for method, answer in answers.items() if answer.status == 200] == of_this_era
    refused = {method: answer.status for method, answer in answers.items() if method not in ANSWERED}
    assert set(refused.values()) <= {401, 400}
    assert [tool["name"] for tool in answers["tools/list"].json["result"]["tools"]] == ["shop_hours"]
    told = b"".join(answer.body for answer in answers.values())
    assert not any(word in told for word in (b"shop_price", b"shop_order", b"greeting", b"stock", b"prompts", b"Did"))


@pytest.mark.parametrize("name", ["shop_price", "shop.price", "shop_order", "price", "nothing", "shop_hour"])
def test_anonymous_callers_may_call_public_operations_and_need_a_token_for_others(public: Client, name: str) -> None:
    assert ask(public, "tools/call", {"name": "shop_hours"}).json["result"]["structuredContent"] == {"result": "9 to 5"}
    wrong = ask(public, "tools/call", {"name": "shop_hours", "arguments": {"day": 7}})
    assert (wrong.status, wrong.json["result"]["isError"]) == (200, True)
    refused = ask(public, "tools/call", {"name": name})
    assert (refused.status, "error=" in refused.headers["www-authenticate"]) == (401, False)


def test_a_session_opened_without_a_token_stays_anonymous(public: Client) -> None:
    begun = ask(public, "initialize", METHODS["initialize"], HANDSHAKE)
    session = {"Mcp-Session-Id": begun.headers["mcp-session-id"]}
    assert "prompts" not in begun.json["result"]["capabilities"]
    called = ask(public, "tools/call", {"name": "shop_hours"}, HANDSHAKE, **session)
    assert called.json["result"]["structuredContent"] == {"result": "9 to 5"}
    assert ask(public, "tools/call", {"name": "shop_price"}, HANDSHAKE, **session).status == 401
    mine = ask(public, "initialize", METHODS["initialize"], HANDSHAKE, Authorization="Bearer ann-token")
    stolen = {"Mcp-Session-Id": mine.headers["mcp-session-id"]}
    assert ask(public, "tools/list", {}, HANDSHAKE, **stolen).status == 401


@pytest.mark.parametrize("opener", ["ann-token", "weak-token"])
def test_in_a_session_each_request_has_the_permissions_of_its_own_token(closed: Client, opener: str) -> None:
    opened = ask(closed, "initialize", METHODS["initialize"], HANDSHAKE, Authorization=f"Bearer {opener}")

    def tried(method: str, token: str) -> str:
        headers = {"Authorization": f"Bearer {token}", "Mcp-Session-Id": opened.headers["mcp-session-id"]}
        return ask(closed, method, {"name": "shop_order"}, HANDSHAKE, **headers).body.decode()

    for _ in range(2):
        assert '"structuredContent"' in tried("tools/call", "ann-token")
        assert "shop_order" in tried("tools/list", "ann-token")
        assert "Unknown tool" in tried("tools/call", "weak-token")
        assert "shop_order" not in tried("tools/list", "weak-token")
    assert "Unknown session" in tried("tools/list", "bob-token")


@pytest.mark.parametrize(("token", "is_resumed"), [("ann-token", True), ("weak-token", False)])
async def test_an_answer_is_taken_up_again_by_a_token_that_allows_as_much(token: str, is_resumed: bool) -> None:
    app = to_mcp(shop(public=False), tokens=TOKENS)

    async def asked(method: str, token: str, message: Any = None, **headers: str) -> Conversation:
        sent = {"host": "localhost:8000", "accept": "text/event-stream, application/json", **headers}
        sent |= {"content-type": "application/json", "authorization": f"Bearer {token}"}
        return await Conversation(app, method, "/mcp", sent, json.dumps(message).encode() if message else b"").began()

    def message(method: str, params: dict[str, Any]) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}

    opened = await asked("POST", "ann-token", message("initialize", METHODS["initialize"]))
    session = {"mcp-session-id": opened.headers["mcp-session-id"]}
    called = await asked("POST", "ann-token", message("tools/call", {"name": "shop_order"}), **session)
    first = (await called.body()).decode().partition("id: ")[2].partition("\n")[0]
    again = await asked("GET", token, **session, **{"last-event-id": first})
    event = await anext(again.chunks())  # of a new stream the first tells its own id
    assert (first.partition("-")[0].encode() in event) is is_resumed
    again.leave()


def test_a_wrong_token_is_refused_although_something_is_public(public: Client) -> None:
    refused = ask(public, "tools/list", {}, Authorization="Bearer wrong")
    assert (refused.status, 'error="invalid_token"' in refused.headers["www-authenticate"]) == (401, True)


def test_anonymous_callers_may_call_operations_without_rules_where_that_is_allowed() -> None:
    with serve(to_mcp(shop(public=True), tokens=TOKENS, allow_anonymous=True)) as client:
        tools = ask(client, "tools/list", {}).json["result"]["tools"]
        assert [tool["name"] for tool in tools] == ["shop_price", "shop_hours"]
        assert ask(client, "tools/call", {"name": "shop_price"}).json["result"]["structuredContent"] == {"result": 0}


@pytest.mark.parametrize("era", [HANDSHAKE, STATELESS])
@pytest.mark.parametrize("hidden", ["shop_order", "shop.order", "shop_shelf", "order"])
def test_a_hidden_tool_and_a_missing_one_are_equal(public: Client, hidden: str, era: str) -> None:
    asked = [
        ask(public, "tools/call", {"name": name}, era, Authorization="Bearer bob-token") for name in (hidden, "nothing")
    ]
    errors = [answer.json["error"] for answer in asked]
    assert errors == [{"code": -32602, "message": f"Unknown tool: {name}"} for name in (hidden, "nothing")]
    assert asked[0].status == asked[1].status


def test_a_visible_tool_whose_resource_is_not_granted_is_denied() -> None:
    tokens = Tokens({"eve-token": Identity("eve", resources={"shelf:1": ["read"]})})
    with serve(to_mcp(shop(public=False), tokens=tokens)) as client:
        given = {"name": "shop_shelf", "arguments": {"id": "2"}}
        refused = ask(client, "tools/call", given, Authorization="Bearer eve-token")
    assert refused.json["result"]["_meta"]["enfold/error"]["code"] == "ACCESS_DENIED"


def test_a_wrong_tool_name_is_reported_with_the_nearest_that_the_caller_may_use() -> None:
    with serve(to_mcp(shop(public=False), tokens=TOKENS)) as client:
        told = {
            token: ask(client, "tools/call", {"name": "shop_ordr"}, Authorization=f"Bearer {token}").json["error"]
            for token in ("ann-token", "bob-token")
        }
    assert told["ann-token"]["message"] == "Unknown tool: shop_ordr. Did you mean shop_order?"
    assert told["bob-token"]["message"] == "Unknown tool: shop_ordr"
