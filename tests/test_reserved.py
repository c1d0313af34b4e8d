"""The namespace `enfold`: users cannot register there, every surface serves it, and it is listed only where it is asked for."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from enfold import AccessControl, CallError, Identity, OperationRegistry, OperationSpec, testing
from enfold.auth.tokens import Tokens
from enfold.operations import Context, Operation
from enfold.runtime.reserved import reserved_operation
from enfold.surfaces.http import to_http
from enfold.surfaces.introspection import introduce
from enfold.surfaces.mcp import to_mcp
from enfold.surfaces.openapi import to_openapi
from enfold.testing.asgi import Conversation, living

ANN = Identity("ann", frozenset({"shop"}))
READER = Identity("reader", frozenset({"enfold:read"}))


def shop() -> OperationRegistry:
    """A shop, in whose registry another part of the program offers an operation of its own."""
    ops = OperationRegistry("shop")

    @ops.query
    def about() -> str:
        return "a shop"

    @ops.query(access=AccessControl(required_scopes=("shop",)))
    def stock() -> int:
        return 7

    async def tea(context: Context) -> str | None:
        return None if context.identity is None else context.identity.id

    ops.reserved.offer("kitchen", lambda: [reserved_operation(tea, "enfold.kitchen.tea")])
    return ops


REGISTERING: dict[str, Callable[[OperationRegistry], Any]] = {
    "a namespace": lambda _: OperationRegistry("enfold"),
    "one below it": lambda _: OperationRegistry("enfold.more"),
    "an option": lambda ops: ops.query(namespace="enfold", name="x")(lambda: None),
    "a spec": lambda ops: ops.register_spec(OperationSpec(name="x", namespace="enfold")),
    "several": lambda ops: ops.register_all([Operation(OperationSpec(name="x", namespace="enfold"), None)]),
    "a prefix": lambda ops: ops.mount("enfold.below"),
    "a new name": lambda ops: ops.rename({"shop.about": "enfold.about"}),
}


@pytest.mark.parametrize("register", REGISTERING.values(), ids=REGISTERING)
def test_the_namespace_is_reserved(register: Callable[[OperationRegistry], Any]) -> None:
    def named(ops: OperationRegistry) -> None:
        with pytest.raises(ValueError, match="The namespace enfold is reserved for Enfold's own operations"):
            register(ops)

    named(shop())
    OperationRegistry("enfolded")  # a name that only begins like it is free


@pytest.mark.parametrize("surface", ["direct", "http", "mcp", "mcp_session", "cgi", "command_line"])
async def test_every_surface_serves_it_and_lists_it_only_where_it_is_asked_for(surface: str) -> None:
    async with testing.open_client(surface, shop()) as client:
        about = (await client.call("enfold.about", identity=READER)).data
        assert about["caller"] == {"id": "reader", "scopes": ["enfold:read"], "on_behalf_of": None}
        assert "envelope" in about["formats"]
        assert about["surfaces"]
        assert about["operations"] == 1  # that of the shop which needs no scope
        assert (await client.call("enfold.kitchen.tea", identity=READER)).data == "reader"
        # An identity without the scope does not learn that it is there; short names are those of users' operations.
        assert (await client.call("enfold.kitchen.tea", identity=ANN)).code == "OPERATION_NOT_FOUND"
        assert (await client.call("tea", identity=READER)).code == "OPERATION_NOT_FOUND"
        listed = await client.list(identity=READER)
        assert [name for name in listed if "enfold" in name] == []


async def test_a_surface_without_identities_asks_for_nothing() -> None:
    app = to_http(shop())
    async with living(app):
        for name, status in (("enfold.about", 200), ("enfold.kitchen.tea", 200), ("tea", 404), ("shop.stock", 401)):
            assert (await _get(app, f"/functions/{name}"))[0] == status, name


@pytest.mark.parametrize("anonymous", [False, True], ids=["closed", "open to anonymous callers"])
async def test_where_there_are_identities_anonymous_callers_see_nothing(anonymous: bool) -> None:
    app = to_http(shop(), tokens=Tokens({"r": READER}), allow_anonymous=anonymous)
    async with living(app):
        assert (await _get(app, "/functions/enfold.kitchen.tea"))[0] == 401
        assert (await _get(app, "/functions/enfold.about"))[0] == (200 if anonymous else 401)
        status, about = await _get(app, "/functions/enfold.about", "r")
        assert (status, about["result"]["caller"]["id"]) == (200, "reader")


@pytest.mark.parametrize(
    ("settings", "ids"),
    [
        ({}, ["shop.bare", "shop.hours"]),
        ({"tokens": Tokens({"r": READER})}, ["shop.hours"]),
        ({"tokens": Tokens({"r": READER}), "allow_anonymous": True}, ["shop.bare", "shop.hours"]),
    ],
    ids=["without tokens", "closed", "open to anonymous callers"],
)
async def test_about_names_what_anonymous_callers_may_call(settings: dict[str, Any], ids: list[str]) -> None:
    ops = OperationRegistry("shop")
    ops.query(name="bare")(lambda: 1)
    ops.query(name="hours", access=AccessControl(public=True))(lambda: 2)
    ops.query(name="stock", access={"required_scopes": ["stock"]})(lambda: 3)
    app = to_http(ops, **settings)
    async with living(app):
        _, about = await _get(app, "/functions/enfold.about", "r")
        assert about["result"]["anonymous"] == {"operations": len(ids), "ids": ids}
        answers = [(await _get(app, f"/functions/shop.{name}"))[0] for name in ("bare", "hours", "stock")]
        assert answers == [200 if f"shop.{name}" in ids else 401 for name in ("bare", "hours", "stock")]


async def test_an_mcp_app_without_tokens_is_not_open_below_a_server_that_has_some() -> None:
    ops = shop()
    app = to_http(ops, tokens=Tokens({"r": READER}), allow_anonymous=True, mounts={"/mcp": to_mcp(ops)})
    async with living(app):
        asked = {"enfold/namespace": "enfold"}
        assert [tool["name"] for tool in await _tools(app, asked, "/mcp")] == ["enfold_about"]
        assert len(await _tools(app, asked, "/mcp", "r")) > 2


async def test_a_tool_that_was_open_is_not_open_any_more_once_callers_have_identities() -> None:
    ops = shop()
    mcp = to_mcp(ops)
    async with living(mcp):
        tea = {"name": "enfold_kitchen_tea", "arguments": {}}
        assert "result" in await _request(mcp, "tools/call", tea)
        to_http(ops, tokens=Tokens({"r": READER}), mounts={"/mcp": mcp})
        assert (await _request(mcp, "tools/call", tea))["result"]["isError"]


async def test_watchers_are_notified_when_callers_get_identities() -> None:
    ops, changes = shop(), []
    await ops.execute("enfold.kitchen.tea")
    ops.watch(lambda: changes.append(ops.version))
    ops.require_authentication()
    assert len(changes) == 1


async def test_the_document_and_the_tools_show_it() -> None:
    app = to_http(shop(), tokens=Tokens({"r": READER, "a": ANN}))
    async with living(app):
        usual, asked = [
            (await _get(app, path, "r"))[1]["paths"] for path in ("/openapi.json", "/openapi.json?namespace=enfold")
        ]
        assert list(usual) == ["/functions/shop.about"]
        assert list(asked)[:2] == ["/functions/enfold.kitchen.tea", "/functions/enfold.about"]
        assert asked["/functions/enfold.kitchen.tea"]["get"]["x-mcp-tool"] == "enfold_kitchen_tea"
        assert list((await _get(app, "/openapi.json?namespace=enfold", "a"))[1]["paths"]) == ["/functions/enfold.about"]
    mcp = to_mcp(shop())
    async with living(mcp):
        assert [tool["name"] for tool in await _tools(mcp, {})] == ["shop_about"]
        asked_for = [tool["name"] for tool in await _tools(mcp, {"enfold/namespace": "enfold"})]
        assert asked_for[:2] == ["enfold_kitchen_tea", "enfold_about"]


async def test_a_users_tool_of_the_same_name_wins() -> None:
    ops = OperationRegistry()

    @ops.query
    def enfold_about() -> str:
        return "mine"

    async with testing.open_client("mcp", ops) as client:
        assert (await client.call("enfold_about")).data == "mine"
        assert "version" in (await client.call("enfold.about")).data


async def test_a_wrong_name_is_reported_with_the_nearest_of_the_namespace() -> None:
    ops = shop()
    introduce(ops, {})
    with pytest.raises(CallError, match=r"Operation not found: enfold.abut. Did you mean enfold.about\?"):
        await ops.execute("enfold.abut")
    assert (await ops.execute("enfold.about")).data["operations"] == 1
    assert len(ops) == 2
    assert list(to_openapi(ops.mount("my"), everything=True)["paths"]) == [
        "/functions/my.shop.about",
        "/functions/my.shop.stock",
    ]


async def _get(app: Any, path: str, token: str | None = None) -> tuple[int, Any]:
    headers = {"host": "localhost:8000"} | ({"authorization": f"Bearer {token}"} if token else {})
    conversation = Conversation(app, "GET", path, headers)
    return (await conversation.began()).status, await conversation.json()


async def _tools(app: Any, meta: dict[str, Any], path: str = "/", token: str | None = None) -> list[dict[str, Any]]:
    tools: list[dict[str, Any]] = (await _request(app, "tools/list", {"_meta": meta}, path, token))["result"]["tools"]
    return tools


async def _request(
    app: Any, method: str, params: dict[str, Any], path: str = "/", token: str | None = None
) -> dict[str, Any]:
    version = "io.modelcontextprotocol/"
    own = {f"{version}protocolVersion": "2026-07-28", f"{version}clientCapabilities": {}, **params.get("_meta", {})}
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": own}}
    headers = {
        "host": "localhost:8000",
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": method,
    }
    if "name" in params:
        headers["mcp-name"] = params["name"]
    if token:
        headers["authorization"] = f"Bearer {token}"
    conversation = Conversation(app, "POST", path, headers, json.dumps(message).encode())
    answer: dict[str, Any] = await conversation.json()
    return answer
