"""Pages of other sites, where callers need no token: what a browser reports about a request, by raw headers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import pytest
from tests.serving import Answer, Client, serve

from enfold import Identity, OperationRegistry
from enfold.auth.tokens import Tokens
from enfold.surfaces.http import to_http
from enfold.surfaces.mcp import to_mcp
from enfold.tasks import Tasks
from enfold.tasks.memory import MemoryTasks

CHAT: Final = "https://chat.example"
SITES: Final = ["cross-site", "same-site"]


def shop() -> OperationRegistry:
    ops = OperationRegistry("shop")

    @ops.query
    def greet(name: str = "") -> str:
        return f"Hello {name}"

    @ops.subscription
    async def ticks() -> AsyncIterator[int]:
        yield 1

    @ops.query(access={"public": True})
    def hours() -> str:
        return "9 to 5"

    return ops


def app(**options: Any) -> Any:
    ops = shop()
    tasks = Tasks(ops, MemoryTasks())
    return to_http(ops, tasks=tasks, mounts={"/mcp": to_mcp(ops)}, **options)


@pytest.fixture
def client() -> Iterator[Client]:
    with serve(app()) as client:
        yield client


def asked(client: Client, path: str, site: str, dest: str = "image", method: str = "GET", **more: str) -> Answer:
    headers = {
        "Sec-Fetch-Site": site,
        "Sec-Fetch-Dest": dest,
        **{name.replace("_", "-"): v for name, v in more.items()},
    }
    return client.request(method, path, headers=headers)


RUNNING: Final = [
    "/functions/shop.greet?name=Ann",
    "/functions/greet?name=Ann",
    "/functions/shop.ticks",
    "/functions/nothing",
    "/operations?query=greet",
    "/tasks",
    "/tasks/1",
    "/mcp",
    "/mcp/",
]


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("dest", ["image", "script", "iframe", "style", "video", "document", "empty"])
@pytest.mark.parametrize("path", RUNNING)
def test_a_page_of_another_site_runs_nothing(client: Client, path: str, dest: str, site: str) -> None:
    answer = asked(client, path, site, dest)
    assert (answer.status, answer.headers["enfold-code"]) == (403, "ACCESS_DENIED")
    assert "Requests from pages of other sites are not allowed" in answer.body.decode()


@pytest.mark.parametrize("site", SITES)
def test_a_form_of_another_site_is_refused(client: Client, site: str) -> None:
    form = {"Sec-Fetch-Site": site, "Sec-Fetch-Dest": "document", "Content-Type": "text/plain"}
    assert client.request("POST", "/functions/shop.greet", b"{}", form).status == 403
    assert client.request("POST", "/mcp", b"{}", form).status == 403
    assert client.request("POST", "/call", b"{}", form).status == 403


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_the_console_and_direct_visits_may_call(client: Client, site: str) -> None:
    assert asked(client, "/functions/shop.greet?name=Ann", site, "empty").json == {"result": "Hello Ann"}


@pytest.mark.parametrize("site", SITES)
def test_another_site_may_link_to_pages_for_people(client: Client, site: str) -> None:
    for path in ("/", "/docs"):
        assert asked(client, path, site, "document", Accept="text/html").status in (200, 307)
        assert asked(client, path, site, "iframe", Accept="text/html").status == 403
    assert asked(client, "/healthz", site, "empty").status == 200
    assert asked(client, "/openapi.json", site, "document").status == 200


@pytest.mark.parametrize("origins", [[CHAT], ["*"]], ids=["listed", "all"])
def test_an_allowed_origin_may_call(origins: list[str]) -> None:
    message = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
    with serve(app(allowed_origins=origins)) as client:
        page = {"Origin": CHAT, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "empty"}
        answer = client.request("GET", "/functions/shop.greet?name=Ann", headers=page)
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, CHAT)
        ask = {**page, "Access-Control-Request-Method": "POST"}
        assert client.request("OPTIONS", "/functions/shop.greet", headers=ask).status == 204
        assert client.request("OPTIONS", "/mcp", headers=ask).status == 204
        mcp = {**page, "Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        assert client.request("POST", "/mcp", message, mcp).status != 403


def test_an_origin_that_only_the_app_above_lists_may_use_a_mounted_mcp_server() -> None:
    ops = shop()
    with serve(to_http(ops, mounts={"/mcp": to_mcp(ops)}, allowed_origins=[CHAT])) as client:
        page = {"Origin": CHAT, "Sec-Fetch-Site": "cross-site", "Content-Type": "application/json"}
        body = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"inspector","version":"1"}}}'
        answer = client.request("POST", "/mcp", body, {**page, "Accept": "application/json, text/event-stream"})
        assert answer.status == 200


def test_an_mcp_server_alone_refuses_other_sites_too() -> None:
    with serve(to_mcp(shop())) as client:
        assert asked(client, "/", "cross-site").status == 403
        assert asked(client, "/", "same-origin").status == 405


def test_where_callers_need_a_token_another_site_sees_only_public_data() -> None:
    with serve(app(tokens=Tokens({"right": Identity("ann")}))) as client:
        assert asked(client, "/functions/shop.greet", "cross-site").status == 401
        assert asked(client, "/functions/shop.hours", "cross-site").json == {"result": "9 to 5"}
    with serve(app(tokens=Tokens({"right": Identity("ann")}), allow_anonymous=True)) as client:
        assert asked(client, "/functions/shop.hours", "cross-site").status == 403
