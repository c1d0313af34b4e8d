"""Every method about a resource asks the same rule; resources of several servers are kept apart."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from enfold import Identity, OperationRegistry
from enfold.auth.tokens import Tokens
from enfold.mcp import completion

if TYPE_CHECKING:
    from tests.surfaces.mcp.conftest import Client, MakeClient

HANDSHAKE, STATELESS = "2025-11-25", "2026-07-28"
ANN = Tokens({"ann-token": Identity("ann", resources={"proj:1": ["read"]})})
READ_PROJECT = {"resource_type": "proj", "resource_action": "read", "resource_id": "id"}


@pytest.fixture
def has_changed() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def projects(has_changed: asyncio.Event) -> OperationRegistry:
    """Projects, of which Ann may read the first; changes of all are announced at once."""
    ops = OperationRegistry("work")
    ops.resource("proj://{id}", name="project", access=READ_PROJECT)(lambda id: f"project {id}")  # noqa: A006  # the name in the URI
    ops.resource("proj://", name="overview")(lambda: "all")
    completion(ops, "project", "id", name="ids")(lambda value: [value, "2"])

    @ops.subscription(meta={"mcp": {"kind": "updates"}})
    async def updates(uri: str) -> AsyncIterator[dict[str, str]]:
        yield {"uri": uri}
        await has_changed.wait()
        yield {"uri": "proj://2"}
        yield {"uri": "proj://1"}
        await asyncio.get_running_loop().create_future()

    return ops


async def ann(make_client: MakeClient, registry: OperationRegistry, revision: str) -> Client:
    client = make_client(registry, revision, "ann-token", tokens=ANN)
    if revision == HANDSHAKE:
        await client.initialize()
    return client


VERBS: list[tuple[str, Any]] = [
    ("resources/read", lambda uri: {"uri": uri}),
    ("resources/subscribe", lambda uri: {"uri": uri}),
    ("resources/unsubscribe", lambda uri: {"uri": uri}),
    (
        "completion/complete",
        lambda uri: {
            "ref": {"type": "ref/resource", "uri": "proj://{id}"},
            "argument": {"name": "id", "value": uri.removeprefix("proj://")},
        },
    ),
]


@pytest.mark.parametrize(("method", "params"), VERBS, ids=[method for method, _ in VERBS])
@pytest.mark.parametrize("uri", ["proj://2", "proj://", "proj://%32", "work+proj://2"])
async def test_an_unreadable_resource_cannot_be_reached_in_any_other_way(
    make_client: MakeClient, projects: OperationRegistry, method: str, params: Any, uri: str
) -> None:
    client = await ann(make_client, projects, HANDSHAKE)
    assert "result" in await client.ask(method, params("proj://1"))
    answer = await client.ask(method, params(uri))
    if uri == "proj://" and method != "completion/complete":
        assert "result" in answer
    else:
        assert answer["error"]["data"]["enfold/error"]["code"] == "ACCESS_DENIED"


async def test_a_stream_follows_only_the_resources_that_its_caller_may_read(
    make_client: MakeClient, projects: OperationRegistry
) -> None:
    client = await ann(make_client, projects, STATELESS)
    asked = {"notifications": {"resourceSubscriptions": ["proj://2", "proj://1", "proj://unknown/2"]}}
    conversation = client.begin("subscriptions/listen", asked)
    _, granted = await anext(conversation.answers())
    assert granted is not None
    assert granted["params"]["notifications"] == {"resourceSubscriptions": ["proj://1"]}
    conversation.leave()
    await conversation.task


async def test_a_change_of_an_unreadable_part_names_only_the_whole(
    make_client: MakeClient, projects: OperationRegistry, has_changed: asyncio.Event
) -> None:
    client = await ann(make_client, projects, STATELESS)
    conversation = client.begin("subscriptions/listen", {"notifications": {"resourceSubscriptions": ["proj://"]}})
    events = conversation.answers()
    told = [(await anext(events))[1]]
    has_changed.set()
    told += [(await anext(events))[1] for _ in range(2)]
    conversation.leave()
    await conversation.task
    assert [each["params"]["uri"] for each in told[1:] if each is not None] == ["proj://", "proj://1"]


# --- several servers ------------------------------------------------------------------------------------------------


@pytest.fixture
def servers() -> OperationRegistry:
    """Two servers that list the same, and a third that would take everything."""
    ops = OperationRegistry()
    for name in ("a", "b"):
        server = OperationRegistry(f"{name}.resources")
        server.resource("config://app", name="app")(lambda name=name: f"app of {name}")
        server.resource(f"{name}b://{{table}}", name="table")(lambda table, name=name: f"{table} of {name}")
        server.resource("both://{+path}", name="both")(lambda path, name=name: f"{path} of {name}")
        ops.register_all(server)
    greedy = OperationRegistry("greedy.resources")
    greedy.resource("{+u}", name="everything")(lambda u: f"{u} of greedy")
    ops.register_all(greedy)
    return ops


async def read(client: Client, uri: str) -> Any:
    answer = await client.ask("resources/read", {"uri": uri})
    return answer["result"]["contents"][0] if "result" in answer else answer["error"]["message"]


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("a+config://app", "app of a"),
        ("b+config://app", "app of b"),
        ("ab://users", "users of a"),
        ("bb://users", "users of b"),
        ("b+bb://users", "users of b"),
        ("a+both://x/y", "x/y of a"),
        ("greedy+ab://users", "ab://users of greedy"),
        ("config://app", "Several servers have this URI: use a+config://app or b+config://app"),
        ("both://x/y", "Several servers have this URI: use a+both://x/y or b+both://x/y"),
        ("db://anything", "Resource not found"),
        ("a+bb://users", "Resource not found"),
    ],
)
async def test_each_server_answers_for_its_own_uris(
    make_client: MakeClient, servers: OperationRegistry, uri: str, text: str
) -> None:
    found = await read(make_client(servers), uri)
    assert found == text or (found["uri"], found["text"]) == (uri, text)


async def test_a_uri_of_two_servers_is_listed_with_its_server_and_reported(
    make_client: MakeClient, servers: OperationRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "enfold.mcp"):
        client = make_client(servers)
        resources = (await client.result("resources/list"))["resources"]
        templates = (await client.result("resources/templates/list"))["resourceTemplates"]
    assert [each["uri"] for each in resources] == ["a+config://app", "b+config://app"]
    assert sorted(each["uriTemplate"] for each in templates) == [
        "a+both://{+path}",
        "ab://{table}",
        "b+both://{+path}",
        "bb://{table}",
        "greedy+{+u}",
    ]
    assert [record.message for record in caplog.records] == [
        "config://app is offered by a.resources and b.resources: read a+config://app and b+config://app",
        "both://{+path} is offered by a.resources and b.resources: read a+both://{+path} and b+both://{+path}",
    ]


async def test_pages_of_two_servers_keep_their_scheme_and_each_tool_names_its_own(make_client: MakeClient) -> None:
    ops = OperationRegistry()
    for name in ("a", "b"):
        server = OperationRegistry(f"{name}.resources")
        server.resource("ui://app/main", name="main")(lambda name=name: f"page of {name}")
        ops.register_all(server)
        links = {"ui": {"resourceUri": "ui://app/main"}, "ui/resourceUri": "ui://app/main"}
        ops.query(namespace=name, name="show", meta={"mcp": {"kind": "tool", "_meta": links}})(lambda: 1)
    client = make_client(ops)
    listed = [each["uri"] for each in (await client.result("resources/list"))["resources"]]
    assert listed == ["ui://a+app/main", "ui://b+app/main"]
    tools = (await client.result("tools/list"))["tools"]
    assert [tool["_meta"]["ui"]["resourceUri"] for tool in tools] == listed
    assert [tool["_meta"]["ui/resourceUri"] for tool in tools] == listed
    assert [(each["uri"], each["text"]) for each in [await read(client, uri) for uri in listed]] == [
        ("ui://a+app/main", "page of a"),
        ("ui://b+app/main", "page of b"),
    ]
    assert "use ui://a+app/main or ui://b+app/main" in await read(client, "ui://app/main")


async def test_a_hidden_resource_is_not_matched_by_another_servers_template(
    make_client: MakeClient, servers: OperationRegistry
) -> None:
    hidden = OperationRegistry("c.resources")
    hidden.resource("ab://users", name="users", access={"required_scopes": ["admin"]})(lambda: "secret")
    servers.register_all(hidden)
    client = make_client(servers, STATELESS, "ann-token", tokens=ANN)
    assert (await read(client, "ab://users")) == "Resource not found"
    assert (await read(client, "ab://orders"))["text"] == "orders of a"
