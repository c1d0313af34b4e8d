"""`/health` and `/docs`, where users of other frameworks look for them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.serving import serve

from enfold import OperationRegistry
from enfold.auth.tokens import Tokens
from enfold.surfaces.http import HTTPSettings, to_http


@pytest.fixture
def ops() -> OperationRegistry:
    ops = OperationRegistry()
    ops.query(name="health")(lambda: "operation")
    ops.query(name="docs")(lambda: "operation")
    return ops


def test_health_answers_as_healthz_does(ops: OperationRegistry) -> None:
    with serve(to_http(ops)) as client:
        assert client.get("/health").json == client.get("/healthz").json == {"status": "ok"}
        assert client.post("/health", {}).status == client.post("/healthz", {}).status == 405
        assert client.get("/functions/health").json == {"result": "operation"}


def test_health_needs_no_token(ops: OperationRegistry) -> None:
    with serve(to_http(ops, tokens=Tokens({}))) as client:
        assert client.get("/health").json == {"status": "ok"}
        assert client.get("/openapi.json").status == 401


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
def test_docs_lead_to_the_console(ops: OperationRegistry, path: str) -> None:
    with serve(to_http(ops)) as client:
        answer = client.get(path)
        assert (answer.status, answer.headers["location"]) == (307, "/")
        assert client.get("/functions/docs").json == {"result": "operation"}


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
def test_docs_redirect_to_the_document_without_a_console(ops: OperationRegistry, path: str) -> None:
    with serve(to_http(ops, HTTPSettings(console=False))) as client:
        answer = client.get(path)
        assert (answer.status, answer.headers["location"]) == (307, "/openapi.json")
        assert client.get(answer.headers["location"]).json["openapi"].startswith("3.")


@pytest.mark.parametrize("path", ["/health", "/docs"])
@pytest.mark.parametrize("prefix", ["/", "/health", "/docs"])
def test_a_mounted_app_has_these_paths_first(ops: OperationRegistry, path: str, prefix: str) -> None:
    async def own(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"its own"})

    with serve(to_http(ops, mounts={prefix: own})) as client:
        is_its_own = client.get(path).body == b"its own"
    assert is_its_own == (prefix in ("/", path))


@pytest.mark.parametrize("path", ["/add", "/shop/add", "/docs/"])
def test_a_path_of_another_framework_is_answered_with_where_operations_are(ops: OperationRegistry, path: str) -> None:
    with serve(to_http(ops)) as client:
        answer = client.post(path, {})
    assert answer.status == 404
    assert answer.json["error"].endswith("Operations are called at /functions/{id}.")
