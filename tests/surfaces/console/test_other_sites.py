"""A page of another site in a real browser: it runs no operation, and it may link to the console."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.surfaces.console.visiting import served

from enfold import OperationRegistry
from enfold.surfaces.http import to_http
from enfold.surfaces.mcp import to_mcp

# Each loads what it is given, and tells when that has been answered, whatever the answer was.
WAYS: Final = {
    "an image": "address => new Promise(end => { const it = new Image(); it.onload = it.onerror = end; it.src = address; })",
    "a script": """address => new Promise(end => {
        const it = document.createElement("script"); it.onload = it.onerror = end; it.src = address; document.body.append(it); })""",
    "a style": """address => new Promise(end => {
        const it = document.createElement("link"); it.rel = "stylesheet"; it.onload = it.onerror = end; it.href = address;
        document.head.append(it); })""",
    "a frame": """address => new Promise(end => {
        const it = document.createElement("iframe"); it.onload = end; it.src = address; document.body.append(it); })""",
    "a request without CORS": 'address => fetch(address, {mode: "no-cors"}).catch(() => null)',
    "a request with CORS": "address => fetch(address).catch(() => null)",
    "a body without CORS": 'address => fetch(address, {mode: "no-cors", method: "POST", body: "{}"}).catch(() => null)',
}


async def _page(scope: Any, _receive: Any, send: Any) -> None:
    """The page of another site."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/html")]})
        await send({"type": "http.response.body", "body": b"<!doctype html><title>Elsewhere</title><body></body>"})


@pytest.fixture
def ran() -> list[str]:
    return []


@pytest.fixture
def places(ran: list[str]) -> Iterator[tuple[str, str]]:
    """The address of the server, and that of another site."""
    ops = OperationRegistry("shop")

    @ops.query
    def greet(name: str = "") -> str:
        ran.append(name)
        return name

    with ExitStack() as stack:
        own = stack.enter_context(served(to_http(ops, mounts={"/mcp": to_mcp(ops)})))
        yield own, stack.enter_context(served(_page))


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    yield context.new_page()
    context.close()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"], ids=["cross-site", "same-site"])
@pytest.mark.parametrize("way", WAYS)
def test_another_site_runs_no_operation(
    page: Page, places: tuple[str, str], ran: list[str], way: str, host: str
) -> None:
    own, other = places
    page.goto(other.replace("127.0.0.1", host))
    page.evaluate(WAYS[way], f"{own}functions/shop.greet?name=stolen")
    assert ran == []
    page.goto(f"{own}functions/shop.greet?name=typed")  # which answers when all before it has been
    assert ran == ["typed"]


def test_another_site_links_to_the_console_but_not_to_an_operation(
    page: Page, places: tuple[str, str], ran: list[str]
) -> None:
    own, other = places
    page.goto(other.replace("127.0.0.1", "localhost"))
    link = 'address => { const it = document.createElement("a"); it.href = address; it.textContent = "Go"; document.body.append(it); }'
    page.evaluate(link, f"{own}functions/shop.greet?name=stolen")
    page.get_by_text("Go").click()
    expect(page.locator("body")).to_contain_text("Requests from pages of other sites are not allowed")
    assert ran == []
    page.goto(other.replace("127.0.0.1", "localhost"))
    page.evaluate(link, f"{own}#/operations/shop.greet")
    page.get_by_text("Go").click()
    page.get_by_label("name").fill("Ann")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".summary .good")).to_have_text("OK")
    assert ran == ["Ann"]
