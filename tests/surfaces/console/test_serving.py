"""How the console is served: who gets a page, who JSON, and with which headers. Without a browser."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.surfaces.console.app import many

from enfold import Identity, OperationRegistry
from enfold.auth.tokens import Tokens
from enfold.surfaces.console import FOLDER
from enfold.surfaces.http import HTTPSettings, to_http
from enfold.surfaces.mcp import to_mcp
from enfold.testing.asgi import Conversation, living

BROWSER = "text/html,application/xhtml+xml,*/*;q=0.8"


async def get(app: Any, path: str, accept: str | None = BROWSER, **headers: str) -> tuple[int, dict[str, str], bytes]:
    asked = {"host": "localhost:8000", "accept": accept, **headers}
    answer = await Conversation(app, "GET", path, asked).began()
    return answer.status, answer.headers, await answer.body()


async def test_a_browser_gets_the_page_and_a_program_the_addresses() -> None:
    app = to_http(OperationRegistry("shop"))
    async with living(app):
        status, headers, body = await get(app, "/")
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert re.search(rb'src="console/[0-9a-f]{16}/app.js"', body)
        assert headers["content-security-policy"] == (
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; media-src blob:; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
        assert headers["x-frame-options"] == "DENY"
        assert (await get(app, "/", **{"if-none-match": headers["etag"]}))[0] == 304
        for accept in ("*/*", "application/json", None, "text/html;q=0, */*", "application/json, text/html;q=0.1"):
            status, headers, body = await get(app, "/", accept)
            assert (status, headers["content-type"]) == (200, "application/json")
            assert b'"document":"http://localhost:8000/openapi.json"' in body
        for path in ("/docs", "/redoc"):
            status, headers, _ = await get(app, path)
            assert (status, headers["location"]) == (307, "/")


async def test_a_head_says_how_long_the_page_is_and_what_has_no_body_says_no_length() -> None:
    app = to_http(OperationRegistry("shop"))
    async with living(app):
        _, headers, body = await get(app, "/")
        head = await Conversation(app, "HEAD", "/", {"host": "localhost:8000", "accept": BROWSER}).began()
        assert (head.status, head.headers["content-length"], await head.body()) == (200, str(len(body)), b"")
        assert head.headers["content-security-policy"] == headers["content-security-policy"]
        status, unchanged, _ = await get(app, "/", **{"if-none-match": headers["etag"]})
        assert (status, "content-length" in unchanged) == (304, False)


async def test_files_are_asked_for_once_for_each_release() -> None:
    app = to_http(OperationRegistry("shop"))
    async with living(app):
        _, headers, body = await get(app, "/")
        assert headers["cache-control"] == "no-cache"
        named = {text.decode() for text in re.findall(rb'(?:src|href)="(console/[^"]+)"', body)}
        assert len(named) == 6
        for path in named:
            status, headers, _ = await get(app, f"/{path}")
            assert (status, headers["cache-control"]) == (200, "public, max-age=31536000, immutable")
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
        for path in ("/console/app.js", "/console/0123456789abcdef/app.js"):  # of a page that is older than the server
            assert ((await get(app, path))[0], (await get(app, path))[1]["cache-control"]) == (200, "no-cache")


@pytest.mark.parametrize(
    "path",
    [
        "/console/%2e%2e/app.js",
        "/console/0123456789abcdef/../app.js",
        "/console/0123456789abcdef/none.js",
        "/console/../__init__.py",
        "/console/__init__.py",
        "/console/",
        "/console/static/app.js",
        "/console/app.js/",
    ],
)
async def test_only_the_files_of_the_console_are_public(path: str) -> None:
    app = to_http(OperationRegistry("shop"))
    async with living(app):
        assert (await get(app, path))[0] == 404


async def test_anonymous_visitors_get_the_page_and_the_addresses_but_no_operations() -> None:
    mounts = {"/mcp": to_mcp(many(3))}
    app = to_http(many(3), tokens=Tokens({"t": Identity("ann")}), mounts=mounts)
    async with living(app):
        assert [(await get(app, path))[0] for path in ("/", "/console/app.js", "/console/style.css")] == [200, 200, 200]
        told = [await get(app, "/", "*/*", **who) for who in ({}, {"authorization": "Bearer t"})]  # addresses alone
        assert [status for status, _, _ in told] == [200, 200]
        known = {"console", "http", "document", "health"}  # the same at every server
        assert [json.loads(body).keys() for _, _, body in told] == [known, known | {"mcp"}]
        assert (await get(app, "/", "*/*", authorization="Bearer wrong"))[0] == 401
        assert (await get(app, "/openapi.json"))[0] == 401


async def test_without_the_console_there_is_nothing_at_the_root() -> None:
    app = to_http(OperationRegistry("shop"), HTTPSettings(console=False))
    async with living(app):
        assert [(await get(app, path))[0] for path in ("/", "/console/app.js")] == [404, 404]


def test_the_files_are_small_and_need_nothing_from_elsewhere() -> None:
    files = sorted(FOLDER.iterdir())
    assert {file.suffix for file in files} == {".html", ".css", ".js"}
    assert sum(len(gzip.compress(file.read_bytes(), 9)) for file in files) <= 60_000
    for file in files:
        text = file.read_text().replace("http://www.w3.org/2000/svg", "").replace("innerHTML with", "")
        assert [
            word for word in ("http://", "https://", "innerHTML", "eval(", "document.write") if word in text
        ] == [], file
    assert " style=" not in Path(FOLDER / "index.html").read_text()
