"""How the console is served: who gets a page, who JSON, and with which headers. Without a browser."""

from pathlib import Path
from typing import Any

import pytest

from enfold import Identity, OperationRegistry
from enfold.identities.tokens import Tokens
from enfold.surfaces.console import FOLDER
from enfold.surfaces.http import to_http
from enfold.testing.asgi_client import Conversation, living

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
        assert b"console/app.js" in body
        assert headers["content-security-policy"] == (
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
        assert (await get(app, "/", **{"if-none-match": headers["etag"]}))[0] == 304
        for accept in ("*/*", "application/json", None):
            status, headers, body = await get(app, "/", accept)
            assert (status, headers["content-type"]) == (200, "application/json")
            assert b'"document":"http://localhost:8000/openapi.json"' in body
        for path in ("/docs", "/redoc"):
            status, headers, _ = await get(app, path)
            assert (status, headers["location"]) == (307, "/")


@pytest.mark.parametrize(
    "path",
    ["/console/../__init__.py", "/console/__init__.py", "/console/", "/console/static/app.js", "/console/app.js/"],
)
async def test_nothing_but_the_files_of_the_console_is_given_away(path: str) -> None:
    app = to_http(OperationRegistry("shop"))
    async with living(app):
        assert (await get(app, path))[0] == 404


async def test_strangers_get_the_page_but_no_word_about_what_is_behind_it() -> None:
    app = to_http(OperationRegistry("shop"), tokens=Tokens({"t": Identity("ann")}))
    async with living(app):
        assert [(await get(app, path))[0] for path in ("/", "/console/app.js", "/console/style.css")] == [200, 200, 200]
        assert (await get(app, "/", "*/*"))[0] == 401
        assert (await get(app, "/", "*/*", authorization="Bearer t"))[0] == 200


async def test_without_the_console_there_is_nothing_at_the_root() -> None:
    app = to_http(OperationRegistry("shop"), console=False)
    async with living(app):
        assert [(await get(app, path))[0] for path in ("/", "/docs", "/console/app.js")] == [404, 404, 404]


def test_the_files_are_small_and_need_nothing_from_elsewhere() -> None:
    files = sorted(FOLDER.iterdir())
    assert {file.suffix for file in files} == {".html", ".css", ".js"}
    assert sum(file.stat().st_size for file in files) <= 100_000
    for file in files:
        text = file.read_text().replace("http://www.w3.org/2000/svg", "").replace("innerHTML with", "")
        assert [
            word for word in ("http://", "https://", "innerHTML", "eval(", "document.write") if word in text
        ] == [], file
    assert " style=" not in Path(FOLDER / "index.html").read_text()
