"""The console against results, addresses, streams and malicious servers, and mounted in other applications. In `make console`."""

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.surfaces.console.app import many
from tests.surfaces.console.visiting import Visit, go, in_full, served

from enfold import Context, Identity, OperationRegistry
from enfold.auth.tokens import Tokens
from enfold.provenance import Recorder, RecordStore
from enfold.surfaces.http import to_http

pytestmark = in_full
BIG = "9007199254740993"  # which JavaScript would make 9007199254740992


DEEP = """async () => {
    const [{ parse, write }, { tree, briefly }] = await Promise.all(["json", "result"].map((name) => import(`${location.origin}/console/${name}.js`)));
    const text = `${"[".repeat(1000)}9007199254740993${"]".repeat(1000)}`, value = parse(text);
    const shown = tree(value);
    shown.reveal("/0".repeat(999));
    return [write(value) === text, shown.element.querySelectorAll("details").length, [briefly(value, {})].flat(9).filter(Boolean).length];
}"""


UNFOLD = """async (levels) => {
    for (let level = 0; level < levels; level++) {
        const folded = [...document.querySelectorAll(".answer details:not([open])")].at(-1);
        if (folded) folded.open = true;
        await new Promise((resolve) => setTimeout(resolve));
    }
}"""


def call(page: Page, place: str, operation: str) -> None:
    go(page, place, f"operations/{operation}")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".summary .good")).to_have_text("OK")


def test_numbers_keep_every_digit_in_forms_answers_and_examples(visit: Page, place: str) -> None:
    go(visit, place, "operations/shop.exact")
    expect(visit.locator(".hint").nth(1)).to_contain_text("to 9223372036854775807, default 4611686018427387905")
    visit.get_by_label("number").fill(BIG)
    visit.keyboard.press("Control+Enter")
    data = visit.locator(".answer .tree")
    for text in (f"number: {BIG}", "limit: 4611686018427387905", "tiny: 0.1", f'text: "{BIG}"'):
        expect(data).to_contain_text(text)
    visit.get_by_role("tab", name="Envelope").click()
    expect(data).to_contain_text(BIG)
    visit.get_by_text("The same call in other clients").click()
    for name, text in (("curl", f'"number":{BIG}'), ("Python", f'"number": {BIG}'), ("Shell", f"number:={BIG}")):
        visit.get_by_role("tab", name=name).click()
        expect(visit.locator(".same pre")).to_contain_text(text)
    visit.get_by_role("switch", name="JSON").check()
    plain = visit.get_by_role("textbox", name="The input as JSON")
    expect(plain).to_have_value(re.compile(f'"number": {BIG}'))
    plain.fill('{"number": 123456789012345678901234567890, "limit": 1.0}')
    visit.keyboard.press("Control+Enter")
    expect(visit.locator(".answer")).to_contain_text("123456789012345678901234567890")
    visit.get_by_role("switch", name="JSON").uncheck()
    expect(visit.get_by_label("number")).to_have_value("123456789012345678901234567890")
    call(visit, place, "shop.prototypes")
    expect(visit.locator("tbody tr").first).to_contain_text("1152921504606846977")


def test_results_cannot_link_script_pollute_or_bury_the_page(visit: Page, place: str) -> None:
    call(visit, place, "shop.nasty")
    answer = visit.locator(".answer")
    for text in ("javascript:alert(1)", "data:text/html,", f"1{'0' * 400}"):
        expect(answer).to_contain_text(text)
    assert visit.locator(".answer a").count() == 0
    pictures = visit.locator(".answer img")
    expect(pictures).to_have_count(1)  # the one that is a picture; a script in it has no effect in an image
    assert str(pictures.get_attribute("src")).startswith("data:image/svg+xml;base64,")
    visit.evaluate(UNFOLD, 150)
    assert visit.locator(".answer *").count() < 2_000
    for tab in ("Envelope", "Headers", "Raw"):
        visit.get_by_role("tab", name=tab).click()
        expect(visit.get_by_role("tabpanel").first).to_be_visible()
    call(visit, place, "shop.prototypes")
    rows = visit.locator(".answer tbody tr")
    assert [[cell.strip() for cell in row.split("\t")] for row in rows.all_inner_texts()] == [
        ["own", "1152921504606846977", ""],
        ["", "1", "mine"],
    ]
    assert visit.evaluate("[({}).polluted, [].polluted]") == [None, None]
    # Our servers write no more than some hundred levels; another server in their place might.
    assert visit.evaluate(DEEP) == [True, 1_000, 1]


@pytest.mark.parametrize(
    "address",
    [
        "operations/%3Cimg src=x onerror=alert(1)%3E",
        "operations/..%2F..%2Fhealthz",
        "operations/a%23b%3Fc%2Fd",
        "operations/%E0%A4%A",
        "operations/\u202e<script>",
        "operations/__proto__",
        "runs/..%2F..%2Fopenapi.json",
        "runs/<svg onload=alert(1)>",
        "__proto__",
        "constructor/prototype",
        "javascript:alert(1)",
        "operations/" + "x" * 5_000,
    ],
)
def test_an_unknown_address_is_only_text(visit: Page, place: str, address: str) -> None:
    visit.goto(f"{place}#/{address}")
    expect(visit.locator(".empty, .failure").first).to_be_visible()
    assert visit.locator("main script, main img, main svg").count() == 0


def test_a_flood_of_items_fills_neither_the_page_nor_the_memory(visit: Page, place: str) -> None:
    go(visit, place, "operations/shop.flood")
    visit.keyboard.press("Control+Enter")
    expect(visit.locator(".summary")).to_contain_text("100,000 items", timeout=180_000)
    expect(visit.locator(".summary")).to_contain_text("complete")
    assert visit.locator(".stream li").count() == 200
    expect(visit.locator(".stream li").first).to_contain_text("99999")
    assert visit.evaluate("performance.memory.usedJSHeapSize") < 100_000_000


def endless() -> OperationRegistry:
    ops = OperationRegistry("shop")

    @ops.subscription
    async def ticks() -> AsyncIterator[int]:
        number = 0
        while True:
            yield number
            number += 1
            await asyncio.sleep(0.02)

    return ops


def test_a_server_that_dies_in_mid_stream_is_reported_and_found_again(browser: Browser) -> None:
    opened = Visit(browser)
    with served(to_http(endless())) as address:
        go(opened.page, address, "operations/shop.ticks")
        opened.page.keyboard.press("Control+Enter")
        expect(opened.page.locator(".stream li").nth(2)).to_be_visible()
    expect(opened.page.locator(".summary .bad")).to_have_text(re.compile("UNAVAILABLE|DATA_LOSS"))
    expect(opened.page.locator(".stream .failure")).to_be_visible()
    opened.page.get_by_role("button", name="Start again").click()
    expect(opened.page.locator(".stream")).to_contain_text("The server does not respond")
    opened.context.close()
    assert {message for message in opened.messages if "net::ERR_" not in message} == set()


def test_a_page_whose_file_was_not_to_be_had_comes_when_it_is_asked_for_again(browser: Browser) -> None:
    with served(to_http(many(3))) as address:
        opened = Visit(browser)
        page = opened.page
        page.route("**/operation.js", lambda route: route.abort())
        page.goto(f"{address}#/operations/big.orders.get_orders_0")
        expect(page.locator(".failure")).to_be_visible()
        page.unroute("**/operation.js")
        page.get_by_role("button", name="Try again").click()
        expect(page.get_by_role("button", name="Call")).to_be_visible()
        opened.context.close()


class Revocable:
    """Tokens that an operator takes back."""

    def __init__(self) -> None:
        self.known = {"first": Identity("ann", frozenset({"*"})), "second": Identity("ben", frozenset({"*"}))}

    def identify(self, token: str) -> Identity | None:
        return self.known.get(token)


def test_a_token_that_is_taken_back_in_mid_stream_is_asked_for_again(browser: Browser) -> None:
    tokens: Any = Revocable()
    opened = Visit(browser)
    page = opened.page
    page.add_init_script("sessionStorage.getItem('enfold-token') || sessionStorage.setItem('enfold-token', 'first')")
    with served(to_http(endless(), tokens=tokens)) as address:
        go(page, address, "operations/shop.ticks")
        page.keyboard.press("Control+Enter")
        expect(page.locator(".stream li").nth(2)).to_be_visible()
        del tokens.known["first"]
        page.get_by_role("button", name="Stop").click()
        page.get_by_role("button", name="Start again").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("This token is not valid")
        dialog.get_by_label("Token").fill("second")
        page.keyboard.press("Enter")
        expect(page.locator(".summary .chip").first).to_have_text("open")
        expect(page.locator("#who")).to_have_text("ben")
        del tokens.known["second"]
        page.goto(f"{address}#/calls")  # a page that follows by itself asks once, and does not nag who says no
        expect(dialog).to_be_visible()
        dialog.get_by_role("button", name="Cancel").click()
        expect(page.locator(".failure").first).to_be_visible()
        expect(dialog).to_have_count(0)
        assert "first" not in page.url
        assert page.evaluate("localStorage.length + document.cookie.length") == 0
        assert not [url for url in opened.urls if "first" in url or "second" in url]
        opened.close(address)


def stripped(app: Any) -> Any:
    """A proxy that takes `/shop` away, for a server that was started with `--root-path /shop`."""

    async def proxy(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            path = scope["path"].removeprefix("/shop")
            scope = {**scope, "path": path, "raw_path": path.encode(), "root_path": "/shop"}
        await app(scope, receive, send)

    return proxy


@pytest.mark.parametrize("place_in", ["ops", "shop"])
def test_below_a_path_everything_works_alike(browser: Browser, place_in: str) -> None:
    console = to_http(many(3))
    app: Any = Starlette(routes=[Mount("/ops", console)]) if place_in == "ops" else stripped(console)
    with served(app) as address:
        opened = Visit(browser)
        opened.page.goto(f"{address}{place_in}{'' if place_in == 'ops' else '/docs'}")
        opened.page.get_by_role("link", name=re.compile("big.orders.get_orders_0")).click()
        expect(opened.page.get_by_role("heading", name="big.orders.get_orders_0")).to_be_visible()
        opened.page.keyboard.press("Control+Enter")
        expect(opened.page.locator(".summary .good")).to_have_text("OK")
        opened.page.get_by_text("The same call in other clients").click()
        expect(opened.page.locator(".same pre")).to_contain_text(f"{address}{place_in}/functions/big.orders")
        for name in ("Sources", "Calls"):
            opened.page.get_by_role("link", name=name).click()
            expect(opened.page.get_by_role("heading", name=name)).to_be_visible()
        opened.close(address)


@pytest.mark.parametrize("tokens", [None, Tokens({"secret": Identity("ann")})], ids=["no tokens", "tokens"])
def test_another_site_cannot_put_the_console_into_a_frame(browser: Browser, tokens: Tokens | None) -> None:
    framed: list[Any] = []

    async def site(scope: Any, receive: Any, send: Any) -> None:
        del receive
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/html")]})
            await send({"type": "http.response.body", "body": f"<iframe src='{framed[0]}'></iframe>".encode()})

    with served(to_http(many(3), tokens=tokens)) as address, served(site) as other:
        framed.append(address)
        opened = Visit(browser)
        opened.page.goto(other)
        expect(opened.page.locator("iframe")).to_be_visible()
        frame = opened.page.frames[-1]
        assert frame.locator("#main").count() == 0
        if tokens is None:
            expect(frame.locator("body")).to_contain_text("Requests from pages of other sites are not allowed")
        opened.context.close()
        is_told_by_browser = any("frame" in message.lower() for message in opened.messages)
        assert is_told_by_browser == (tokens is not None)


def test_a_changed_record_is_in_the_list_and_the_graph_with_its_verdict(browser: Browser, tmp_path: Path) -> None:
    ops = OperationRegistry("shop")

    @ops.query
    async def inner() -> int:
        return 1

    @ops.query
    async def outer(context: Context) -> int:
        return int((await context.env.shop.inner()).data)

    with served(to_http(ops, recorder=Recorder(store=RecordStore(tmp_path / "runs.db"), record="all"))) as address:
        opened = Visit(browser)
        run = opened.page.request.get(f"{address}functions/shop.outer").headers["enfold-run-id"]
        go(opened.page, address, "runs")
        expect(opened.page.locator("tbody .chip")).to_have_text(["succeeded", "intact, unsigned"] * 2)
        with closing(sqlite3.connect(tmp_path / "runs.db")) as file, file:
            file.execute("UPDATE records SET body = '{}' WHERE operation = 'shop.inner'")
        opened.page.reload()
        expect(opened.page.locator("tbody .bad")).to_have_text("not verified")
        go(opened.page, address, f"runs/{run}")
        expect(opened.page.locator(".graph .bad")).to_have_count(1)
        opened.page.locator(".graph a", has_text="not verified").click()
        expect(opened.page.locator(".why")).to_contain_text("was changed after it was stored")
        opened.close(address)


def test_the_keyboard_alone_finds_fills_calls_and_reads(visit: Page, place: str) -> None:
    visit.goto(place)
    expect(visit.locator(".rows li").first).to_be_visible()
    visit.keyboard.press("/")
    visit.keyboard.type("add two")
    expect(visit.locator(".rows li")).to_have_count(1)
    visit.keyboard.press("ArrowDown")
    visit.keyboard.press("Enter")
    expect(visit.get_by_role("heading", name="shop.add")).to_be_visible()
    for _ in range(20):
        if visit.evaluate("document.activeElement.tagName + document.activeElement.type") == "INPUTnumber":
            break
        visit.keyboard.press("Tab")
    visit.keyboard.type("41")
    visit.keyboard.press("Control+Enter")
    expect(visit.locator(".answer .tree")).to_have_text("42")
    for _ in range(20):
        if (
            visit.evaluate("document.activeElement.getAttribute('role')") == "tab"
            and visit.evaluate("document.activeElement.textContent") == "Data"
        ):
            break
        visit.keyboard.press("Tab")
    visit.keyboard.press("ArrowRight")
    expect(visit.get_by_role("tab", name="Envelope")).to_be_focused()
    expect(visit.locator(".answer .tree")).to_contain_text("operationId")
