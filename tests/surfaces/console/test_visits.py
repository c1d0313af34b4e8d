"""Visits to the console: tokens, navigation, missing pages, streams, tasks, servers that die. In `make console`."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect
from tests.surfaces.console.app import many
from tests.surfaces.console.visiting import Visit, go, in_full, served

from enfold import Context, Identity, OperationRegistry, TextContent
from enfold.auth.tokens import Tokens
from enfold.mcp import elicit
from enfold.operations import AccessControl
from enfold.provenance import Recorder, RecordStore
from enfold.surfaces.http import to_http
from enfold.surfaces.introspection import keep_calls
from enfold.tasks import Tasks
from enfold.tasks.memory import MemoryTasks

pytestmark = in_full

TOKENS = Tokens({"good": Identity("ann", frozenset({"buy", "enfold:read"})), "plain": Identity("ben")})


def shop(*, has_public: bool) -> OperationRegistry:
    made = OperationRegistry("shop")

    @made.query(access={"required_scopes": ["buy"]})
    def secret() -> str:
        return "treasure"

    if has_public:

        @made.query(access=AccessControl(public=True))
        def hours() -> str:
            return "nine to five"

    return made


def rows(page: Page) -> Any:
    return page.locator(".rows .id")


def test_public_operations_are_shown_without_asking_and_a_token_shows_the_rest(browser: Browser) -> None:
    made = shop(has_public=True)
    keep_calls(made)
    with served(to_http(made, tokens=TOKENS)) as address:
        opened = Visit(browser)
        page = opened.page
        page.goto(address)
        expect(rows(page)).to_have_text(["shop.hours"])
        expect(page.get_by_role("button", name="Enter a token")).to_be_visible()
        go(page, address, "sources")
        expect(page.locator(".empty")).to_contain_text("A token with the scope enfold:read")
        go(page, address, "operations/shop.secret")
        expect(page.locator(".empty")).to_contain_text("Operation not found")
        expect(page.get_by_role("dialog")).to_have_count(0)
        go(page, address, "operations")
        page.locator("#who").click()
        page.get_by_label("Token").fill("good")
        page.keyboard.press("Control+Enter")
        expect(rows(page)).to_have_text(["shop.secret", "shop.hours"])
        expect(page.locator("#who")).to_have_text("ann")
        page.get_by_role("link", name="Calls").click()
        expect(
            page.get_by_text("No calls yet. Call an operation to see it here.")
        ).to_be_visible()  # to look around is no call
        opened.close(address)


def test_a_token_that_a_call_asked_for_shows_what_it_opens(browser: Browser) -> None:
    tokens: Any = TOKENS
    with served(to_http(shop(has_public=True), tokens=tokens)) as address:
        opened = Visit(browser)
        page = opened.page
        page.add_init_script("sessionStorage.getItem('enfold-token') || sessionStorage.setItem('enfold-token', 'old')")
        page.goto(address)
        page.get_by_label("Token").fill("plain")
        page.keyboard.press("Enter")
        expect(rows(page)).to_have_text(["shop.hours"])
        expect(page.locator("#who")).to_have_text("ben")
        page.evaluate("sessionStorage.setItem('enfold-token', 'old')")
        rows(page).first.click()
        page.get_by_label("Token").fill("good")
        page.keyboard.press("Control+Enter")
        expect(page.locator("h1")).to_have_text("shop.hours")
        expect(page.locator("#who")).to_have_text("ann")
        expect(page.locator(".placeholder")).to_be_visible()  # the key was for the dialog, not for the call behind it
        page.get_by_role("link", name="Operations").first.click()
        expect(rows(page)).to_have_text(["shop.secret", "shop.hours"])
        opened.close(address)


def test_where_nothing_is_public_every_page_says_so_until_there_is_a_token(browser: Browser) -> None:
    with served(to_http(shop(has_public=False), tokens=TOKENS)) as address:
        opened = Visit(browser)
        page = opened.page
        page.goto(address)
        expect(page.get_by_role("dialog")).to_be_visible()
        page.keyboard.press("Escape")
        for place in ("calls", "operations"):
            go(page, address, place)
            expect(page.locator(".empty")).to_contain_text("This server requires a token")
        page.locator("main").get_by_role("button", name="Enter a token").click()
        page.get_by_label("Token").fill("good")
        page.keyboard.press("Enter")
        expect(rows(page)).to_have_text(["shop.secret"])
        opened.close(address)


def test_an_operation_registered_later_is_listed_after_a_return_to_the_page(browser: Browser) -> None:
    made = many(3)
    with served(to_http(made)) as address:
        opened = Visit(browser)
        page = opened.page
        go(page, address, "operations")
        expect(rows(page)).to_have_count(3)
        page.get_by_role("link", name="Sources").click()
        expect(page.locator(".card")).to_be_visible()

        @made.query(namespace="late")
        def comer() -> int:
            return 1

        page.get_by_role("link", name="Operations").click()
        expect(page.get_by_role("link", name="late.comer")).to_be_visible()
        page.get_by_role("link", name="late.comer").click()
        expect(page.get_by_role("heading", name="late.comer")).to_be_visible()  # it is read before it goes
        made.unregister("late.comer")
        page.go_back()
        expect(rows(page)).to_have_count(3)
        opened.close(address)


def test_back_finds_the_filter_the_rows_the_place_and_what_was_filled_in(browser: Browser) -> None:
    with served(to_http(many(1_200))) as address:
        opened = Visit(browser)
        page = opened.page
        go(page, address, "operations")
        page.get_by_role("searchbox").fill("stock")
        expect(page).to_have_url(f"{address}#/operations?q=stock")
        page.get_by_role("button", name="Show more").click()
        expect(rows(page)).to_have_count(240)
        rows(page).nth(200).scroll_into_view_if_needed()
        at = page.evaluate("scrollY")
        name = rows(page).nth(200).inner_text()
        rows(page).nth(200).click()
        expect(page.locator("h1")).to_have_text(name)
        assert page.evaluate("[scrollY, document.activeElement.id]") == [0, "main"]
        page.get_by_role("switch", name="JSON").check()
        page.get_by_role("textbox", name="The input as JSON").fill('{"half": "written"}')
        page.go_back()
        expect(rows(page)).to_have_count(240)
        assert at > 0
        assert page.evaluate("scrollY") == at
        expect(page.get_by_role("link", name=name)).to_be_focused()
        page.go_forward()
        expect(page.get_by_role("textbox", name="The input as JSON")).to_have_value('{"half": "written"}')
        page.get_by_role("link", name="Operations").nth(1).click()  # above the title: to the list as it was filtered
        expect(page.get_by_role("searchbox")).to_have_value("stock")
        page.reload()
        expect(page.get_by_role("status").filter(has_text="240 of 1,200")).to_be_visible()
        opened.close(address)


def test_a_paused_stream_can_be_stopped_and_one_that_cannot_continue_starts_again(browser: Browser) -> None:
    ops = OperationRegistry("shop")

    @ops.subscription
    async def ticks() -> AsyncIterator[int]:
        for number in range(1_000):
            yield number
            await asyncio.sleep(0.02)

    @ops.subscription(resumable=True)
    async def short(context: Context) -> AsyncIterator[int]:
        for number in range(int(context.last_event_id or 0), 3):
            context.event_id = str(number + 1)
            yield number

    with served(to_http(ops)) as address:
        opened = Visit(browser)
        page, status = opened.page, opened.page.locator(".summary .chip").first
        go(page, address, "operations/shop.ticks")
        page.keyboard.press("Control+Enter")
        expect(page.locator(".stream li").nth(2)).to_be_visible()
        page.get_by_role("button", name="Pause").click()
        page.get_by_role("button", name="Stop").click()
        expect(status).to_have_text("stopped")
        page.get_by_role("button", name="Start again").click()
        expect(status).to_have_text("open")
        expect(page.locator(".stream li").last).to_contain_text("0")
        page.get_by_role("button", name="Stop").click()
        go(page, address, "operations/shop.short")
        page.keyboard.press("Control+Enter")
        expect(status).to_have_text("complete")
        page.get_by_role("button", name="Start again").click()  # what is complete has nothing to go on with
        expect(page.locator(".stream li")).to_have_count(3)
        opened.close(address)


def durable() -> OperationRegistry:
    ops = OperationRegistry("shop")

    @ops.mutation(durable=True)
    async def refund(context: Context) -> str:
        form = {
            "type": "object",
            "properties": {"agreed": {"type": "boolean"}, "sum": {"type": "integer", "maximum": 5}},
            "required": ["agreed"],
        }
        return str((await elicit(context, "May it be?", form)).content)

    return ops


def test_a_durable_operation_is_run_as_a_task_and_its_answers_are_checked(browser: Browser) -> None:
    ops = durable()
    with served(to_http(ops, tasks=Tasks(ops, MemoryTasks()))) as address:
        opened = Visit(browser)
        page = opened.page
        go(page, address, "operations/shop.refund")
        expect(page.locator(".heading")).to_contain_text("durable")
        page.keyboard.press("Control+Enter")
        expect(page.locator(".running .asked")).to_be_visible()  # a plain call asks in place
        page.get_by_role("button", name="Run as a task").click()
        expect(page).to_have_url(re.compile("#/tasks/"))
        page.get_by_label("sum").fill("9")
        page.get_by_role("button", name="Answer").click()
        expect(page.locator("[data-path=agreed] > .fault")).to_be_visible()
        expect(page.locator("[data-path=sum] > .fault")).to_contain_text("5")
        page.get_by_label("agreed").select_option(label="true")
        page.get_by_label("sum").fill("5")
        page.get_by_role("button", name="Answer").click()
        expect(page.locator(".heading .chip")).to_have_text("completed")
        expect(page.locator("main")).to_contain_text("'agreed': True, 'sum': 5")
        opened.close(address)


def test_pages_of_a_dead_server_keep_the_last_state_and_say_so(browser: Browser) -> None:
    made = many(3)
    made.services.sources.enter("shelf", "functions", "up", operations=3)
    made.services.sources.enter("cellar", "mcp", "down", why="dark")
    keep_calls(made)
    pages = [Visit(browser), Visit(browser)]
    with served(to_http(made)) as address:
        pages[0].page.request.post(f"{address}functions/big.orders.get_orders_0", data={})
        go(pages[0].page, address, "calls")
        expect(pages[0].page.locator("tbody button")).to_have_count(1)
        go(pages[1].page, address, "sources")
        expect(pages[1].page.locator(".card h2")).to_have_text(["cellar", "shelf"])  # what is down comes first
        go(pages[1].page, address, "operations")
        sources = pages[1].page.get_by_label("Filter by source").locator("option")
        expect(sources).to_have_text(["All sources", "shelf"])  # by the names that Sources has
        go(pages[1].page, address, "sources")
    for opened in pages:
        expect(opened.page.locator(".failure")).to_be_visible()
        expect(opened.page.locator(".heading")).to_contain_text("Not connected")
    expect(pages[0].page.locator("tbody button")).to_have_count(1)
    expect(pages[1].page.locator(".stale .card")).to_have_count(2)
    for opened in pages:
        opened.context.close()


def test_an_opened_call_has_an_address_its_title_in_view_and_a_way_back(browser: Browser) -> None:
    made = many(3)
    keep_calls(made)
    with served(to_http(made)) as address:
        opened = Visit(browser, viewport={"width": 1280, "height": 600})
        page = opened.page
        for _ in range(60):
            page.request.post(f"{address}functions/big.orders.get_orders_0", data={})
        go(page, address, "calls")
        page.locator("tbody button").nth(55).click()
        title = page.locator(".card h2")
        top = page.evaluate("document.querySelector('header').getBoundingClientRect().bottom")
        assert title.evaluate("each => each.getBoundingClientRect().top") >= top
        page.get_by_role("searchbox").fill("orders")
        expect(page).to_have_url(re.compile(r"#/calls/[^?]+\?q=orders$"))
        page.reload()
        expect(title).to_have_text("big.orders.get_orders_0")
        page.get_by_role("button", name="Close").click()
        expect(page).to_have_url(f"{address}#/calls?q=orders")
        opened.close(address)


def test_runs_say_what_they_need_and_are_found_by_part_of_a_name_and_page_by_page(
    browser: Browser, tmp_path: Path
) -> None:
    with served(to_http(many(3))) as address:
        opened = Visit(browser)
        go(opened.page, address, "runs")
        expect(opened.page.locator(".empty")).to_contain_text("--provenance --store FILE")
        go(opened.page, address, "operations/big.orders.get_orders_0")
        opened.page.keyboard.press("Control+Enter")
        opened.page.get_by_role("tab", name="Provenance").click()
        expect(opened.page.locator(".panel").first).not_to_contain_text("Record this run")
        opened.close(address)
    ops = OperationRegistry("shop")

    @ops.query
    def good() -> int:
        return 1

    @ops.query
    def old() -> int:
        return 0

    @ops.query
    async def broad(context: Context) -> int:
        return sum([(await context.env.shop.good()).data for _ in range(30)])

    @ops.query
    def bad() -> int:
        raise ValueError("no")

    app = to_http(ops, recorder=Recorder(store=RecordStore(tmp_path / "runs.db"), record="all"))
    with served(app) as address:
        opened = Visit(browser)
        page = opened.page
        page.request.post(f"{address}functions/shop.old", data={})
        for _ in range(230):
            page.request.post(f"{address}functions/shop.good", data={})
        page.request.post(f"{address}functions/shop.bad", data={})
        run = page.request.post(f"{address}functions/shop.broad", data={}).headers["enfold-run-id"]
        go(page, address, "runs")
        expect(page.locator("tbody tr")).to_have_count(200)
        page.get_by_label("Only runs of an operation").fill("OLD")  # which is older than all that are shown
        page.keyboard.press("Enter")
        expect(page.locator("tbody tr")).to_have_count(1)
        page.get_by_label("Only runs of an operation").fill("")
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Show more").click()
        expect(page.locator("tbody tr")).to_have_count(263)
        page.get_by_label("Only runs of an operation").fill("ba")
        page.keyboard.press("Enter")
        expect(page.locator("tbody tr")).to_have_count(1)
        expect(page.locator("tbody tr")).to_contain_text("failed")
        page.get_by_label("Filter by time").select_option(label="In the last hour")
        expect(page).to_have_url(re.compile(r"#/runs\?operation=ba&since=3600000$"))
        go(page, address, f"runs/{run}")
        boxes = page.locator(".graph .node rect")
        expect(boxes).to_have_count(31)
        places = [each.bounding_box() for each in boxes.all()[1:]]
        assert len({place["x"] for place in places if place is not None}) == 1  # siblings stand under each other
        opened.close(address)


def test_results_with_lists_of_records_are_tables_and_lines_are_lines(browser: Browser) -> None:
    ops = OperationRegistry("shop")

    @ops.query
    def page_of_items() -> dict[str, Any]:
        return {"items": [{"column_0": number, "name": "x"} for number in range(3)], "next": "abc"}

    @ops.query
    def poem() -> str:
        return "one\ntwo"

    @ops.query(title="Say")
    def say() -> list[TextContent]:
        """Say something, as tools of MCP servers do."""
        return [TextContent("first <b>words</b>"), TextContent("second")]

    with served(to_http(ops)) as address:
        opened = Visit(browser)
        page = opened.page
        go(page, address, "operations/shop.page_of_items")
        page.keyboard.press("Control+Enter")
        expect(page.locator(".answer tbody tr")).to_have_count(3)
        expect(page.locator(".answer .tree")).to_contain_text('next: "abc"')
        page.get_by_role("button", name="Show as a tree").click()
        expect(page.locator(".answer table")).to_have_count(0)
        go(page, address, "operations/shop.poem")
        page.keyboard.press("Control+Enter")
        expect(page.locator(".answer .string")).to_have_text('"one\ntwo"')
        assert "\n" in page.locator(".answer .string").inner_text()
        go(page, address, "operations")
        expect(page.locator(".words").last).to_have_text("Say · Say something, as tools of MCP servers do.")
        go(page, address, "operations/shop.say")
        page.keyboard.press("Control+Enter")
        expect(page.locator(".answer pre")).to_have_text(["first <b>words</b>", "second"])
        page.get_by_role("button", name="Show as a tree").click()
        expect(page.locator(".answer .tree")).to_contain_text('type: "text"')
        opened.close(address)


def test_on_a_narrow_screen_long_names_hide_neither_a_call_nor_a_state_nor_who_is_calling(browser: Browser) -> None:
    name = "a_name_that_somebody_generated_from_a_column_of_a_database_table"
    ops = OperationRegistry("warehouse_of_the_north", title="A title much longer than any header has room for")
    ops.register(lambda: 1, name=name)
    ops.services.sources.enter("a-service-with-a-name-that-needs-two-lines", "openapi", "up", operations=1)
    ops.services.sources.enter("slow", "mcp", "starting", why="it is being fetched")
    keep_calls(ops)
    with served(to_http(ops)) as address:
        opened = Visit(browser, viewport={"width": 360, "height": 800})
        page = opened.page
        page.request.post(f"{address}functions/warehouse_of_the_north.{name}", data={})
        page.request.post(f"{address}functions/nothing", data={})
        go(page, address, "calls")
        rows = page.locator("tbody tr")
        expect(rows).to_have_count(2)
        for row, result in zip(rows.all(), ("failed", "succeeded"), strict=True):
            expect(row.get_by_role("button")).to_be_in_viewport(ratio=1)
            expect(row.locator(".chip", has_text=result)).to_be_in_viewport()
        expect(rows.first.get_by_role("button")).to_have_text("refused")
        go(page, address, "sources")
        states = page.locator(".bar .chip")
        expect(states).to_have_text(["starting", "up"])
        assert all(state.evaluate("each => each.scrollWidth <= each.clientWidth") for state in states.all())
        expect(page.locator(".why")).to_have_count(0)  # only what is down is a fault
        tops = [page.locator(each).bounding_box() for each in ("#title", "#who")]
        assert tops[0] is not None
        assert tops[1] is not None
        assert abs(tops[0]["y"] - tops[1]["y"]) < 20  # in one line
        opened.close(address)
