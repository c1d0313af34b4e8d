"""The console in a real browser. A sample runs always; `ENFOLD_CONSOLE=1` (`make console`) runs all of it."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.conftest import ROOT, not_run
from tests.surfaces.console.app import HOSTILE, many, ops
from tests.surfaces.console.busy import used
from tests.surfaces.console.visiting import Visit, go, in_full, served

from enfold import Context, Identity, OperationRegistry
from enfold.auth.tokens import Tokens
from enfold.mcp import elicit
from enfold.runtime.source_states import DefinitionChange
from enfold.surfaces.http import to_http
from enfold.tasks import Tasks
from enfold.tasks.memory import MemoryTasks

AXE = ROOT / ".parts/node_modules/axe-core/axe.min.js"
# --- a sample that always runs ------------------------------------------------------------------------------------


def test_an_operation_is_found_and_called_and_errors_appear_at_their_fields(visit: Page, place: str) -> None:
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
    visit.get_by_text("The same call in other clients").click()
    expect(visit.locator(".same pre")).to_contain_text("curl -s")
    visit.get_by_role("tab", name="Shell").click()
    expect(visit.locator(".same pre")).to_contain_text(f'enfold call {place}mcp shop_order \'lines:=[{{"item":"tea"')


def test_untrusted_text_is_shown_as_text(visit: Page, place: str) -> None:
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
    shown = text.replace("\u202e", "\\u202e")  # it would turn what follows, and is written out wherever it stands
    expect(visit.locator(".heading + p")).to_have_text(shown)
    expect(visit.locator(".field label").first).to_contain_text(shown)
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
def test_a_source_goes_down_and_recovers_while_the_page_is_open(visit: Page, place: str) -> None:
    ops.services.sources.enter("warehouse", "mcp", "up", operations=3)
    go(visit, place, "sources")
    card = visit.get_by_role("article", name="warehouse")
    expect(card.locator(".bar .chip")).to_have_text("up")
    ops.services.sources.enter("warehouse", "mcp", "down", why="Connection refused <b>by</b> 127.0.0.1")
    expect(card.locator(".bar .chip")).to_have_text("down")
    expect(card.locator(".why")).to_have_text("Connection refused <b>by</b> 127.0.0.1")
    ops.services.sources.enter("warehouse", "mcp", "up", operations=4)
    expect(card.locator(".bar .chip")).to_have_text("up")
    ops.services.sources.enter(
        "warehouse",
        "mcp",
        "up",
        changed=(DefinitionChange("warehouse.pay", "arguments <b>", 1, "old <i>", "new <i>"),),
        changes=1,
    )
    expect(card).to_contain_text("1 definition changed")
    expect(card).to_contain_text("arguments <b>")
    card.get_by_text("1 definition changed").click()
    expect(card.locator("pre").first).to_have_text("old <i>")
    expect(card.locator("pre").nth(1)).to_have_text("new <i>")
    expect(card).to_contain_text("down 1 time")
    ops.services.sources.remove("warehouse")
    expect(card).to_have_count(0)


@in_full
def test_a_run_is_followed_to_its_parent(visit: Page, place: str) -> None:
    go(visit, place, "operations/shop.receipt")
    visit.get_by_label("number").fill("7")
    visit.get_by_label("Record this run").check()
    visit.keyboard.press("Control+Enter")
    visit.get_by_role("link", name=re.compile("^run ")).click()
    expect(visit.locator("h1")).to_have_text("shop.receipt")
    expect(visit.locator(".heading .chip")).to_have_text("intact, unsigned")
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
    other.page.get_by_label("x").fill("20000000")
    other.page.keyboard.press("Control+Enter")
    expect(other.page.locator(".summary .bad")).to_have_text("VALIDATION_ERROR")
    go(other.page, place, "operations/shop.exact")
    other.page.get_by_label("number").fill("9007199254740993")
    other.page.keyboard.press("Control+Enter")
    expect(other.page.locator(".summary .good")).to_have_text("OK")
    other.close(place)
    visit.get_by_role("searchbox").fill("shop.add validation nothing-else")
    visit.get_by_role("button", name="shop.add").first.click()
    opened = visit.get_by_role("article")
    expect(opened).to_contain_text("Request id")
    expect(opened.locator(".tree").first).to_contain_text("20000000")  # the operator keeps what calls were given
    expect(opened).to_contain_text("at most 100")
    visit.get_by_role("searchbox").fill("shop.exact")
    visit.get_by_role("button", name="shop.exact").first.click()
    expect(opened.locator(".tree").nth(1)).to_contain_text("number: 9007199254740993")
    rows = visit.locator("tbody tr")
    before = rows.count()
    visit.get_by_role("button", name="shop.exact").first.focus()
    visit.request.post(f"{place}functions/shop.exact", data={"number": 1})
    expect(rows).to_have_count(before + 1)
    expect(
        visit.get_by_role("button", name="shop.exact").nth(1)
    ).to_be_focused()  # the page does not move under the reader


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
        expect(dialog).to_contain_text("This server requires a bearer token")
        dialog.get_by_label("Token").fill("wrong")
        dialog.get_by_role("button", name="Use token").click()
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
        await asyncio.Event().wait()

    tokens = Tokens({"good": Identity("ann", frozenset({"enfold:read"}))})
    with served(to_http(shop, tokens=tokens, tasks=Tasks(shop, MemoryTasks()))) as address:
        opened = Visit(browser)
        page = opened.page
        page.add_init_script("sessionStorage.setItem('enfold-token', 'good')")
        for name in ("greet", "endless"):
            asked = {"authorization": "Bearer good", "prefer": "respond-async"}
            assert page.request.post(f"{address}functions/shop.{name}", data={}, headers=asked).status == 202
        go(page, address, "tasks")
        page.get_by_label("Filter by state").select_option(label="waiting for an answer")
        expect(page.locator("tbody tr")).to_have_count(1)
        page.get_by_role("link", name="shop.greet").click()
        expect(page.get_by_role("heading", name="Your <b>name</b>?")).to_be_visible()
        page.get_by_label("name").fill("Ann")
        page.get_by_role("button", name="Answer").click()
        expect(page.locator(".heading .chip")).to_have_text("completed")
        expect(page.locator(".tree", has_text="Hello Ann")).to_be_visible()
        timeline = page.locator(".timeline")
        for words in ("Attempt 1", "it asked a question", "Your <b>name</b>?", "Ann", "Attempt 2", "Completed"):
            expect(timeline).to_contain_text(words)
        page.get_by_role("button", name="Run again").click()  # a new task, which asks again
        expect(page.locator(".heading .chip")).to_have_text("waiting for an answer")
        page.get_by_role("link", name="Tasks").first.click()
        expect(page.locator("tbody tr")).to_have_count(3)
        page.get_by_role("link", name="shop.endless").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("status").filter(has_text="1 of 2: half way")).to_be_visible()
        page.get_by_role("button", name="Cancel the task").click()
        expect(page.locator(".heading .chip")).to_have_text("cancelled")
        go(page, address, "overview")
        expect(page.get_by_role("region", name="Questions waiting")).to_contain_text("1")
        expect(page.get_by_role("region", name="Calls per minute").get_by_role("img")).to_be_visible()
        expect(page.locator("main")).to_contain_text("Nothing: every call needs a token")
        opened.close(address)


@in_full
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_no_page_has_a_serious_finding_of_axe(browser: Browser, tmp_path: Path, scheme: Any, width: int) -> None:
    if not AXE.exists():
        not_run("axe-core")
    opened = Visit(browser, color_scheme=scheme, viewport={"width": width, "height": 800}, bypass_csp=True)
    page, found = opened.page, list[tuple[str, ...]]()
    page.add_init_script("sessionStorage.setItem('enfold-token', 'ann')")

    def judge(name: str) -> None:
        page.add_script_tag(path=AXE)
        result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        faults = [each for each in result["violations"] if each["impact"] in ("serious", "critical")]
        found.extend((name, each["id"], each["nodes"][0]["html"][:200]) for each in faults)
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        found.extend([(name, "wider than the screen", str(wide))] if wide > 0 else [])

    with used(tmp_path) as (address, run):
        for name, act, ready in (
            ("operations", None, ".rows li"),
            ("operations/shop.order", "Add an item", ".items li"),
            ("operations/shop.items", "call", ".answer table"),
            ("operations/shop.untidy", "call", ".answer"),
            ("operations/shop.add", "call", ".fault:visible"),
            ("operations/shop.ticks", "call", ".stream li"),
            ("operations/shop.picture", "call", "figure img"),
            ("operations/shop.leaflet", "call", ".answer audio"),
            ("operations/shop.deliver", "As a model sees it", ".about pre"),
            ("operations/shop.deliver", "Errors (2)", ".about table"),
            ("sources", None, ".card.down"),
            ("sources/billing", None, ".card"),
            ("calls", None, "tbody tr:nth-child(2)"),
            ("runs", None, "tbody tr"),
            (f"runs/{run}", None, ".graph a"),
            ("overview", None, ".tile"),
            ("tasks", None, "tbody tr"),
            ("agents", None, ".found-list li"),
            ("agents/shop.stock", None, ".beside pre"),
            ("operations/shop.none", None, ".empty"),
            ("nowhere", None, ".empty"),
        ):
            go(page, address, name)
            if act == "call":
                page.keyboard.press("Control+Enter")
            elif act is not None:
                page.get_by_role("button", name=act).or_(page.get_by_role("tab", name=act)).first.click()
            expect(page.locator(ready).first).to_be_visible()
            judge(name)
        go(page, address, "operations/shop.deliver")
        page.get_by_role("button", name="Fill in the example").click()
        page.keyboard.press("Control+Enter")
        expect(page.locator(".running .asked")).to_be_visible()
        judge("a running call")
        go(page, address, "tasks")
        page.get_by_role("link", name="shop.refund").click()
        expect(page.locator(".timeline")).to_be_visible()
        judge("a task")
        go(page, address, "calls")
        page.locator("tbody button").first.click()
        judge("a call")
        page.get_by_role("button", name="ann").click()
        expect(page.get_by_role("dialog")).to_be_visible()
        judge("the dialog")
    opened.context.close()
    assert found == []


@in_full
def test_twelve_hundred_operations_are_filtered_as_one_types(browser: Browser) -> None:
    with served(to_http(many(1_200))) as address:
        opened = Visit(browser)
        opened.page.goto(address)
        expect(opened.page.get_by_role("status").filter(has_text="1,200 operations")).to_be_visible()
        opened.page.get_by_role("searchbox").fill("update stock 7")
        told = opened.page.get_by_role("status").filter(has_text=" of 1,200")
        expect(told).to_be_visible()
        number = int(told.inner_text().split()[0])
        expect(opened.page.locator(".rows li")).to_have_count(number)
        opened.close(address)  # how quick that is: `python -m tests.surfaces.console.timing`


@in_full
def test_warnings_link_to_values_images_are_shown_and_large_results_stay_quick(visit: Page, place: str) -> None:
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
