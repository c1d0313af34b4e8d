"""The application of `examples/side_by_side`, written twice: both answer the same calls over HTTP and MCP."""

import asyncio
import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.serving import Client, serve

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "examples/side_by_side"
PAGE = ROOT / "docs/side-by-side.md"
ANN, BOB = "Bearer token-of-ann", "Bearer token-of-bob"


@pytest.fixture(params=["enfold_app", "fastapi_app"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    if request.param == "fastapi_app":
        pytest.importorskip("fastapi")
        pytest.importorskip("fastmcp")
    monkeypatch.syspath_prepend(str(FOLDER))
    sys.modules.pop(request.param, None)
    with serve(importlib.import_module(request.param).app) as client:
        yield client


def data(server: Client, method: str, path: str, token: str, value: Any = None) -> Any:
    """The data of an answer, which Enfold puts below `result`."""
    body = None if value is None else json.dumps(value).encode()
    headers = {"Authorization": token, "Content-Type": "application/json"} if body else {"Authorization": token}
    answer = server.request(method, path, body, headers)
    assert answer.status == 200, answer.body
    return answer.json["result"] if isinstance(answer.json, dict) and "result" in answer.json else answer.json


def test_both_answer_the_same_requests(server: Client) -> None:
    emma = {"id": 1, "title": "Emma", "author": "Austen", "lent_to": None}
    assert data(server, "POST", "/books", ANN, {"title": "Emma", "author": "Austen"}) == emma
    assert data(server, "GET", "/books?q=mm&author=Austen&author=Eliot", BOB) == [emma]
    assert data(server, "GET", "/books/1", BOB) == emma
    assert data(server, "POST", "/books/1/loan", BOB)["lent_to"] == "bob"
    assert [book["id"] for book in data(server, "GET", "/loans", BOB)] == [1]
    assert data(server, "GET", "/statistics", BOB) == {"books": 1, "lent": 1}
    assert data(server, "DELETE", "/books/1/loan", BOB)["lent_to"] is None
    assert data(server, "PATCH", "/books/1", ANN, {"title": "Persuasion"})["title"] == "Persuasion"
    assert data(server, "DELETE", "/books/1", ANN)["title"] == "Persuasion"
    events = server.get("/countdown/2", authorization=BOB).body
    assert re.findall(rb"^data: .*?(\d)", events, re.MULTILINE) == [b"2", b"1"]


def test_both_refuse_the_same_requests(server: Client) -> None:
    data(server, "POST", "/books", ANN, {"title": "Emma", "author": "Austen"})
    data(server, "POST", "/books/1/loan", BOB)
    json_type = {"Content-Type": "application/json"}
    asked: list[tuple[str, str, str | None]] = [
        ("GET", "/books", None),
        ("GET", "/books/9", BOB),
        ("POST", "/books/1/loan", ANN),
    ]
    statuses = [
        server.request(method, path, headers=({"Authorization": token} if token else {}) | json_type).status
        for method, path, token in asked
    ]
    assert statuses == [401, 404, 409]
    assert server.request("DELETE", "/books/1", headers={"Authorization": BOB}).status in (403, 405)


def test_both_are_mcp_servers_for_the_client_of_fastmcp(server: Client) -> None:
    fastmcp: Any = pytest.importorskip("fastmcp")  # by name: the type checker need not read it
    data(server, "POST", "/books", ANN, {"title": "Emma", "author": "Austen"})

    async def use() -> tuple[set[str], Any, Any]:
        async with fastmcp.Client(f"http://127.0.0.1:{server.port}/mcp/", auth="token-of-ann") as client:
            names = {tool.name for tool in await client.list_tools()}
            prefix = "library_" if "library_get_book" in names else ""
            lent = await client.call_tool(f"{prefix}lend_book", {"id": 1})
            missing = await client.call_tool(f"{prefix}get_book", {"id": 9}, raise_on_error=False)
            return {name.removeprefix(prefix) for name in names}, lent.structured_content, missing

    names, lent, missing = asyncio.run(use())
    wanted = "add_book find_books get_book lend_book my_loans remove_book rename_book return_book statistics"
    assert names >= {*wanted.split()}
    assert lent.get("result", lent)["lent_to"] == "ann"
    assert missing.is_error
    assert "There is no book 9" in missing.content[0].text


@pytest.mark.parametrize("name", ["enfold_app", "fastapi_app"])
def test_the_page_has_the_number_of_lines(name: str) -> None:
    lines = [line for line in (FOLDER / f"{name}.py").read_text().splitlines() if line.strip()]
    row = re.search(r"^\| lines of code \| (\d+) \| (\d+) \|$", PAGE.read_text(), re.MULTILINE)
    assert row is not None
    assert int(row[1 if name == "enfold_app" else 2]) == len(lines)
