"""A surface with identities reveals nothing without a token: every path and method is tried."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.serving import Answer, Client, serve

from enfold import Identity, OperationRegistry
from enfold.auth.tokens import Tokens
from enfold.surfaces.http import to_http
from enfold.surfaces.mcp import to_mcp
from enfold.surfaces.openapi import to_openapi

TOKENS = Tokens(
    {
        "ann-token": Identity("ann", frozenset({"write"})),
        "bob-token": Identity("bob"),
        "owner-token": Identity("owner", frozenset({"*"})),
    }
)
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"]
OPEN = ("/healthz", "/readyz", "/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp")


def shop(*, public: bool = False) -> OperationRegistry:
    ops = OperationRegistry("shop")

    @ops.query
    async def price(item: str = "") -> int:
        return len(item)

    @ops.mutation(access={"required_scopes": ["write"]})
    async def order(item: str = "") -> str:
        return item

    @ops.subscription
    async def ticks() -> AsyncIterator[int]:
        yield 1

    if public:

        @ops.query(access={"public": True})
        async def hours() -> str:
            return "9 to 5"

    return ops


def gateway(ops: OperationRegistry, **options: Any) -> Any:
    return to_http(ops, tokens=TOKENS, mounts={"/mcp": to_mcp(ops, tokens=TOKENS)}, **options)


def paths() -> list[str]:
    """Every path of the document, and those that are not in it."""
    described = list(to_openapi(shop(), identity=Identity("owner", frozenset({"*"})))["paths"])
    short = [path.replace("shop.", "") for path in described]
    others = [
        "/openapi.json",
        "/call",
        "/mcp",
        "/mcp/",
        "/functions/",
        "/functions",
        "/functions/none",
        "/metrics",
    ]
    odd = ["/functions/shop.price/", "//functions/shop.price", "/functions/%73hop.price", "/../functions/shop.price"]
    return [*described, *short, *others, *odd, "/readyz/x", "/tasks", "/console", "/healthz/x", "/.well-known/x"]


@pytest.mark.parametrize("method", METHODS)
def test_without_a_token_no_path_says_anything(method: str) -> None:
    with serve(gateway(shop())) as client:
        answers = {path: client.request(method, path, b"{}", JSON) for path in paths()}
    assert {path: answer.status for path, answer in answers.items() if answer.status not in REFUSED} == {}
    told = {answer.body for answer in answers.values() if answer.status == 401 and answer.body}
    assert not any(word in text for text in told for word in (b"shop", b"price", b"order"))


JSON = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
REFUSED = (401, 400)  # 400: not even a request that the server below us understands


def test_open_paths_only_say_where_to_get_a_token() -> None:
    with serve(gateway(shop())) as client:
        answers = [client.get(path) for path in OPEN]
        root = client.get("/")
        refused = client.get("/functions/price")
    assert [answer.status for answer in answers] == [200, 200, 200, 200]
    assert [answer.json for answer in answers[:2]] == [{"status": "ok"}, {"status": "ready"}]
    assert answers[2].json["scopes_supported"] == ["write"]
    assert answers[3].json["resource"].endswith("/mcp")
    assert (root.status, root.json.keys()) == (200, {"console", "http", "document", "health"})  # as at every server
    assert "resource_metadata=" in refused.headers["www-authenticate"]


@pytest.mark.parametrize(("path", "resource"), [("/functions/price", "/shop/"), ("/mcp", "/shop/mcp")])
@pytest.mark.parametrize("root", ["", "/shop"], ids=["at the root", "below a path"])
def test_a_refusal_links_to_the_metadata_also_behind_a_proxy_that_removes_a_path(
    root: str, path: str, resource: str
) -> None:
    app = gateway(shop())

    async def as_uvicorn_has_it(scope: Any, receive: Any, send: Any) -> None:
        below = {"root_path": root, "path": root + scope["path"]} if scope["type"] == "http" else {}
        await app({**scope, **below}, receive, send)

    with serve(as_uvicorn_has_it) as client:
        origin = f"http://127.0.0.1:{client.port}"
        told = client.post(path, {}).headers["www-authenticate"]
        wrong = client.request("POST", path, b"{}", {"Authorization": "Bearer wrong"}).headers["www-authenticate"]
        assert wrong.replace(', error="invalid_token"', "") == told  # whose token has expired has to be led there, too
        url = told.partition('resource_metadata="')[2].partition('"')[0]
        assert url.startswith(f"{origin}{root}/.well-known/")
        found = client.get(url.removeprefix(f"{origin}{root}")).json["resource"]
        assert found == f"{origin}{root}{resource.removeprefix('/shop')}"
        behind = client.get(f"/.well-known/oauth-protected-resource{root}{resource.removeprefix('/shop')}")
        assert behind.json["resource"] == found  # where RFC 9728 looks for it


def test_public_operations_are_open_and_alone_in_the_document() -> None:
    with serve(gateway(shop(public=True))) as client:
        assert client.get("/functions/hours").json == {"result": "9 to 5"}
        assert list(client.get("/openapi.json").json["paths"]) == ["/functions/shop.hours"]
        assert [client.get(path).status for path in ("/functions/price", "/functions/none", "/none")] == [401] * 3


def test_anonymous_callers_may_call_operations_without_rules_where_that_is_allowed() -> None:
    with serve(gateway(shop(), allow_anonymous=True)) as client:
        assert client.get("/functions/price?item=pen").json == {"result": 3}
        assert client.post("/functions/order", {}).status == 401


def test_the_owner_may_call_everything() -> None:
    with serve(gateway(shop(public=True))) as client:
        asked = [
            client.post(f"/functions/{name}", {}, Authorization="Bearer owner-token")
            for name in ("price", "order", "hours")
        ]
    assert [answer.status for answer in asked] == [200, 200, 200]


def essence(answer: Answer, name: str) -> tuple[int, bytes, dict[str, str]]:
    """An answer without what may differ: the name that was asked for, lengths, ids and dates."""
    ignored = ("x-request-id", "content-length", "date")
    headers = {key: value for key, value in answer.headers.items() if key not in ignored}
    return answer.status, answer.body.replace(name.encode(), b"NAME"), headers


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("hidden", ["shop.order", "order"])
def test_a_hidden_operation_and_a_missing_one_are_equal(hidden: str, method: str) -> None:
    with serve(gateway(shop())) as client:
        both = [ask(client, method, name) for name in (hidden, "nothing")]
    assert both[0] == both[1]
    assert both[0][0] in (404, 400)


def ask(client: Client, method: str, name: str) -> tuple[int, bytes, dict[str, str]]:
    headers = {**JSON, "Authorization": "Bearer bob-token"}
    return essence(client.request(method, f"/functions/{name}", b"{}", headers), name)


def test_two_tokens_in_one_request_are_rejected() -> None:
    import socket

    with serve(gateway(shop())) as client:
        for path in ("/functions/price", "/mcp"):
            with socket.create_connection(("127.0.0.1", client.port)) as connection:
                connection.sendall(
                    f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\nAuthorization: Bearer wrong\r\n"
                    "Authorization: Bearer ann-token\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
                    "Connection: close\r\n\r\n{}".encode()
                )
                first = connection.makefile("rb").readline()
            assert first.split()[1] in (b"400", b"401")
