"""The console in a real browser. A sample runs always; `ENFOLD_CONSOLE=1` (`make console`) runs all of it."""

import asyncio
import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, expect, sync_playwright
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.conftest import ROOT, not_run
from tests.surfaces.console.app import HOSTILE, many, ops

from enfold import Context, Identity, OperationRegistry
from enfold.identities.tokens import Tokens
from enfold.introspection import keep_calls
from enfold.mcp.asking import elicit
from enfold.provenance import Recorder, RecordStore
from enfold.surfaces.http import to_http
from enfold.surfaces.mcp import to_mcp
from enfold.tasks import Tasks
from enfold.tasks.memory import MemoryTasks

in_full = pytest.mark.skipif(not os.environ.get("ENFOLD_CONSOLE"), reason="runs with `make console`")

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
AXE = ROOT / ".parts/node_modules/axe-core/axe.min.js"
PAGES = ("operations", "operations/shop.order", "sources", "calls", "runs", "operations/shop.none", "nowhere")

expect.set_options(timeout=20_000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    place = next((each for each in ("/usr/bin/chromium", "/usr/bin/chromium-browser") if Path(each).exists()), None)
    if place is None:
        not_run("chromium")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=place, args=FLAGS)
        yield opened
        opened.close()


@contextmanager
def served(app: Any) -> Iterator[str]:
    """An app on a port of its own, in a thread of its own; the answer is its address."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(128)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    finally:
        server.should_exit = server.force_exit = True
        thread.join()
        listening.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The shop with everything: calls and runs are kept, and MCP is mounted."""
    recorder = Recorder(store=RecordStore(tmp_path_factory.mktemp("console") / "runs.db"))
    keep_calls(ops)
    app = to_http(ops, recorder=recorder, mounts={"/mcp": to_mcp(ops, recorder=recorder)})
    with served(app) as address:
        yield address


class Visit:
    """A page, and what went on around it: messages in the browser's console, and requests."""

    def __init__(self, browser: Browser, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page: Page = self.context.new_page()
        self.messages: list[str] = []
        self.hosts: set[str] = set()
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("dialog", self._refuse)
        self.page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))

    def _hear(self, message: ConsoleMessage) -> None:
        # Chromium writes a line of its own for every answer of 4xx; that is no message of the page.
        if not message.text.startswith("Failed to load resource: the server responded with a status of 4"):
            self.messages.append(message.text)

    def _refuse(self, dialog: Dialog) -> None:
        self.messages.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def close(self, address: str) -> None:
        self.context.close()
        assert self.messages == []
        assert self.hosts <= {urlsplit(address).netloc, ""}  # data: has no host


@pytest.fixture
def visit(browser: Browser, place: str) -> Iterator[Page]:
    opened = Visit(browser)
    yield opened.page
    opened.close(place)


def go(page: Page, place: str, address: str) -> None:
    page.goto(f"{place}#/{address}")
    expect(page.locator(f'main[data-at="#/{address}"]')).to_be_visible()


# --- a sample that always runs ------------------------------------------------------------------------------------


def test_an_operation_is_found_filled_called_and_its_faults_stand_at_their_fields(visit: Page, place: str) -> None:
    visit.goto(place)
    visit.get_by_role("searchbox", name="Search operations").fill("order some")
    visit.get_by_role("link", name=re.compile("shop.order")).click()
    expect(visit.get_by_role("heading", name="shop.order")).to_be_visible()
    visit.get_by_role("button", name="Add an item").click()
    visit.get_by_label("item required").fill("tea")
    visit.get_by_label("quantity").fill("200")
    visit.keyboard.press("Control+Enter")  # without how it reaches us, and too many
    expect(visit.locator(".summary .bad")).to_have_text("VALIDATION_ERROR")
    expect(visit.locator("[data-path=delivery] > .fault")).to_contain_text("missing")
    expect(visit.locator("[data-path='lines[0].quantity'] > .fault")).to_contain_text("99")
    visit.get_by_label("delivery").select_option(label="bicycle")
    visit.get_by_label("quantity").fill("2")
    visit.get_by_label("note").fill("<b>كتاب</b>")
    visit.get_by_role("button", name="Call", exact=False).first.click()
    expect(visit.locator(".summary .good")).to_have_text("OK")
    expect(visit.locator(".fault:visible")).to_have_count(0)
    expect(visit.locator(".tree")).to_contain_text("<b>كتاب</b>")
    visit.get_by_text("The same call from elsewhere").click()
    expect(visit.locator(".same pre")).to_contain_text("curl -s")
    visit.get_by_role("tab", name="Shell").click()
    expect(visit.locator(".same pre")).to_contain_text('enfold call TARGET shop.order \'lines:=[{"item":"tea"')


def test_what_strangers_write_is_shown_as_text(visit: Page, place: str) -> None:
    visit.goto(place)
    expect(visit.locator(".rows li").first).to_be_visible()
    for address in ("operations", "operations/strange.tool0", "operations/strange.tool6"):
        go(visit, place, address)
    for text in HOSTILE[:3]:
        visit.goto(f"{place}#/operations")
        visit.get_by_role("searchbox").fill(text)
        expect(visit.locator(".rows .words").first).to_contain_text(text)
    go(visit, place, "operations/shop.strange")
    visit.keyboard.press("Control+Enter")
    for text in HOSTILE:
        expect(visit.locator(".tree")).to_contain_text(_as_json(text))
    assert visit.locator("main script, main iframe, main base, main meta, main form, main style, main img").count() == 0


def _as_json(text: str) -> str:
    """As the tree shows it; what turns the direction of writing is written out."""
    return text.replace('"', '\\"').replace("\u202e", "\\u202e")


# --- everything ---------------------------------------------------------------------------------------------------


@in_full
@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_every_hostile_name_is_text_on_its_page(visit: Page, place: str, number: int) -> None:
    text = HOSTILE[number]
    go(visit, place, f"operations/strange.tool{number}")
    expect(visit.locator(".lead")).to_have_text(text)
    expect(visit.locator(".field label").first).to_contain_text(text)
    visit.locator(".field input, .field textarea").first.fill(text)
    visit.keyboard.press("Control+Enter")
    expect(visit.locator(".summary .good")).to_have_text("OK")
    expect(visit.locator(".tree .string").first).to_contain_text(_as_json(text[:10]))
    assert visit.evaluate("({}).polluted") is None


@in_full
def test_a_stream_runs_live_is_paused_stopped_and_resumed(visit: Page, place: str) -> None:
    go(visit, place, "operations/shop.news")
    visit.get_by_role("button", name="Subscribe").click()
    expect(visit.locator(".stream li").nth(3)).to_be_visible()
    visit.get_by_role("button", name="Pause").click()
    expect(visit.locator(".summary .chip").first).to_have_text("paused")
    held = visit.locator(".stream li").count()
    visit.get_by_role("button", name="Resume").click()
    expect(visit.locator(".stream li").nth(held + 2)).to_be_visible()
    visit.get_by_role("button", name="Stop").click()
    expect(visit.locator(".summary .chip").first).to_have_text("stopped")
    number = visit.locator(".stream li").count()
    visit.get_by_role("button", name="Resume").click()
    expect(visit.locator(".stream li").nth(number + 2)).to_be_visible()
    visit.get_by_role("button", name="Stop").click()
    expect(visit.locator(".summary .chip").first).to_have_text("stopped")
    seen = [int(re.sub(r"\D", "", text)) for text in visit.locator(".stream li .string").all_inner_texts()]
    assert seen == list(range(len(seen), 0, -1))  # taken up where it was left: nothing twice, nothing missing


@in_full
def test_a_source_goes_down_and_comes_back_while_one_looks(visit: Page, place: str) -> None:
    ops.sources.enter("warehouse", "mcp", "up", operations=3)
    go(visit, place, "sources")
    card = visit.get_by_role("article", name="warehouse")
    expect(card.locator(".state")).to_have_text("up")
    ops.sources.enter("warehouse", "mcp", "down", why="Connection refused <b>by</b> 127.0.0.1")
    expect(card.locator(".state")).to_have_text("down")
    expect(card.locator(".why")).to_have_text("Connection refused <b>by</b> 127.0.0.1")
    ops.sources.enter("warehouse", "mcp", "up", operations=4)
    expect(card.locator(".state")).to_have_text("up")
    ops.sources.remove("warehouse")
    expect(card).to_have_count(0)


@in_full
def test_a_run_is_followed_to_its_parent(visit: Page, place: str) -> None:
    go(visit, place, "operations/shop.receipt")
    visit.get_by_label("number").fill("7")
    visit.get_by_label("Record this run").check()
    visit.keyboard.press("Control+Enter")
    visit.get_by_role("button", name=re.compile("^run ")).click()
    expect(visit.locator("h1")).to_have_text("shop.receipt")
    expect(visit.locator(".heading .state")).to_have_text("verified")
    visit.get_by_role("link", name=re.compile("^shop.items")).click()
    expect(visit.locator("h1")).to_have_text("shop.items")
    visit.get_by_role("link", name=re.compile("^shop.receipt")).click()
    expect(visit.locator("h1")).to_have_text("shop.receipt")
    visit.go_back()
    expect(visit.locator("h1")).to_have_text("shop.items")
    go(visit, place, "runs")
    expect(visit.locator("tbody tr").first).to_be_visible()


@in_full
def test_calls_appear_as_they_end_and_one_can_be_opened(visit: Page, browser: Browser, place: str) -> None:
    go(visit, place, "calls")
    other = Visit(browser)
    go(other.page, place, "operations/shop.add")
    other.page.get_by_label("x").fill("200")
    other.page.keyboard.press("Control+Enter")
    expect(other.page.locator(".summary .bad")).to_have_text("VALIDATION_ERROR")
    other.close(place)
    visit.get_by_role("searchbox").fill("shop.add validation")
    visit.get_by_role("button", name="shop.add").first.click()
    expect(visit.get_by_role("article")).to_contain_text("Request id")
    assert "200" not in visit.get_by_role("article").inner_text().split("Request id")[0].replace("2026", "")


@in_full
def test_a_token_is_asked_for_given_and_kept_for_the_tab(browser: Browser) -> None:
    shop = OperationRegistry("shop")

    @shop.query(access={"required_scopes": ["buy"]})
    def secret() -> str:
        return "treasure"

    tokens = Tokens({"good": Identity("ann", frozenset({"buy", "enfold:read"}))})
    with served(to_http(shop, tokens=tokens)) as address:
        opened = Visit(browser)
        page = opened.page
        page.goto(address)
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("This server needs a bearer token")
        dialog.get_by_label("Token").fill("wrong")
        dialog.get_by_role("button", name="Use it").click()
        expect(dialog).to_contain_text("not valid")
        dialog.get_by_label("Token").fill("good")
        page.keyboard.press("Enter")
        expect(page.get_by_role("link", name=re.compile("shop.secret"))).to_be_visible()
        expect(page.locator("#who")).to_have_text("ann")
        page.reload()
        expect(page.get_by_role("link", name=re.compile("shop.secret"))).to_be_visible()
        assert page.evaluate("localStorage.length + document.cookie.length") == 0
        opened.close(address)


@in_full
def test_tasks_show_how_far_they_are_take_answers_and_are_cancelled(browser: Browser) -> None:
    shop = OperationRegistry("shop")

    @shop.mutation(durable=True)
    async def greet(context: Context) -> str:
        answer = await elicit(
            context, "Your <b>name</b>?", {"type": "object", "properties": {"name": {"type": "string"}}}
        )
        return f"Hello {answer.content['name']}"

    @shop.mutation(durable=True)
    async def endless(context: Context) -> None:
        context.progress(1, 2, "half way")
        await asyncio.sleep(3600)

    tokens = Tokens({"good": Identity("ann", frozenset({"enfold:read"}))})
    with served(to_http(shop, tokens=tokens, tasks=Tasks(shop, MemoryTasks()))) as address:
        opened = Visit(browser)
        page = opened.page
        page.add_init_script("sessionStorage.setItem('enfold-token', 'good')")
        for name in ("greet", "endless"):
            asked = {"authorization": "Bearer good", "prefer": "respond-async"}
            assert page.request.post(f"{address}functions/shop.{name}", data={}, headers=asked).status == 202
        go(page, address, "tasks")
        cards = {name: page.locator(".card", has_text=f"shop.{name}") for name in ("greet", "endless")}
        expect(cards["endless"]).to_contain_text("1 of 2: half way")
        expect(cards["greet"]).to_contain_text("Your <b>name</b>?")
        cards["greet"].get_by_label("name").fill("Ann")
        cards["greet"].get_by_role("button", name="Answer").click()
        expect(cards["greet"].locator(".state")).to_have_text("completed")
        cards["endless"].get_by_role("button", name="Cancel").click()
        expect(cards["endless"].locator(".state")).to_have_text("cancelled")
        opened.close(address)


@in_full
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_no_page_has_a_serious_finding_of_axe(browser: Browser, place: str, scheme: Any, width: int) -> None:
    if not AXE.exists():
        not_run("axe-core")
    opened = Visit(browser, color_scheme=scheme, viewport={"width": width, "height": 800}, bypass_csp=True)
    ops.sources.enter("warehouse", "mcp", "down", why="Connection refused")
    found = []
    for address in PAGES:
        go(opened.page, place, address)
        if address.endswith("order"):
            opened.page.get_by_role("button", name="Add", exact=True).first.click()
            opened.page.keyboard.press("Control+Enter")
            expect(opened.page.locator(".answer")).to_be_visible()
        opened.page.add_script_tag(path=AXE)
        result = opened.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        found += [
            (address, each["id"], each["nodes"][0]["html"][:200])
            for each in result["violations"]
            if each["impact"] in ("serious", "critical")
        ]
        wide = opened.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        found += [(address, "wider than the screen", str(wide))] if wide > 0 else []
    ops.sources.remove("warehouse")
    opened.close(place)
    assert found == []


@in_full
def test_twelve_hundred_operations_are_filtered_as_one_types(browser: Browser) -> None:
    with served(to_http(many(1_200))) as address:
        opened = Visit(browser)
        opened.page.goto(address)
        expect(opened.page.get_by_role("status").filter(has_text="1,200 operations")).to_be_visible()
        paint = opened.page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        took = opened.page.evaluate(
            """() => {
                const search = document.getElementById("search");
                const times = ["i", "invoice", "invoice 7", "", "update stock"].map((text) => {
                    const began = performance.now();
                    search.value = text;
                    search.dispatchEvent(new Event("input"));
                    document.body.offsetHeight;
                    return performance.now() - began;
                });
                return Math.max(...times);
            }"""
        )
        expect(opened.page.get_by_role("status").filter(has_text="of 1,200")).to_be_visible()
        print(f"first paint after {paint:.0f} ms, slowest filter {took:.1f} ms")  # noqa: T201  # figures, and no assertion
        opened.close(address)


@in_full
def test_warnings_lead_to_their_places_pictures_are_shown_and_megabytes_stay_quick(visit: Page, place: str) -> None:
    go(visit, place, "operations/shop.untidy")
    visit.keyboard.press("Control+Enter")
    visit.locator(".summary button.warn").click()
    visit.get_by_role("button", name="Show /47/dust47").click()
    expect(visit.locator(".found")).to_be_visible()
    go(visit, place, "operations/shop.picture")
    visit.keyboard.press("Control+Enter")
    expect(visit.get_by_role("img", name="Image 1 of the result")).to_be_visible()
    assert visit.evaluate("document.querySelector('figure img').naturalWidth") == 160
    go(visit, place, "operations/shop.large")
    visit.keyboard.press("Control+Enter")
    expect(visit.locator(".summary")).to_contain_text("MB")
    visit.locator("summary", has_text="numbers").click()
    expect(visit.get_by_role("button", name="Show more of 150,000")).to_be_visible()
    assert visit.locator("main *").count() < 5_000


@in_full
def test_below_a_path_everything_works_alike(browser: Browser) -> None:
    with served(Starlette(routes=[Mount("/ops", to_http(many(3)))])) as address:
        opened = Visit(browser)
        opened.page.goto(f"{address}ops")
        opened.page.get_by_role("link", name=re.compile("big.orders.get_orders_0")).click()
        expect(opened.page.get_by_role("heading", name="big.orders.get_orders_0")).to_be_visible()
        opened.page.keyboard.press("Control+Enter")
        expect(opened.page.locator(".summary .good")).to_have_text("OK")
        opened.close(address)
