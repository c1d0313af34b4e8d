"""An operation and its calls at the console: what it says, what happens while it runs, results of every kind, and agents. In `make console`."""

import base64
import json
import re
import sys
from collections.abc import Iterator
from datetime import time
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import pytest
from playwright.sync_api import Browser, Page, expect
from tests.served import serving
from tests.surfaces.console.app import HOSTILE, many, png, wav
from tests.surfaces.console.visiting import Visit, go, in_full, served

from enfold import (
    AudioContent,
    CallError,
    Context,
    EmbeddedResource,
    ImageContent,
    OperationRegistry,
    OperationSpec,
    TextContent,
)
from enfold.operations import Operation
from enfold.surfaces.http import to_http
from enfold.surfaces.introspection import keep_calls

pytestmark = in_full

DESK = Path(__file__).parent / "asking_server.py"
PDF = b"%PDF-1.4\n%%EOF\n"


class Colour(msgspec.Struct):
    name: str
    code: str


def shop() -> OperationRegistry:
    ops = OperationRegistry("shop", title="Corner Shop")

    @ops.mutation(
        timeout=7,
        error_schemas=[{"code": "TOO_DARK", "description": "No one would <b>see</b> it", "http_status": 409}],
    )
    def paint(
        wall: Annotated[str, msgspec.Meta(title="Which wall", description="As on the plan.", examples=["north"])],
        colour: Annotated[str, msgspec.Meta(extra_json_schema={"format": "color"}, examples=["#0f5f63"])],
        at: time | None = None,
        key: Annotated[str, msgspec.Meta(extra_json_schema={"format": "password"})] = "",
        plan: Annotated[str, msgspec.Meta(extra_json_schema={"format": "uri"})] = "",
    ) -> list[Colour]:
        """Paint a wall."""
        if colour == "#000000":
            raise CallError("TOO_DARK", "Take another colour")
        return [Colour(f"{wall} at {at}", colour), Colour(key, plan)]

    @ops.query
    async def count(context: Context) -> str:
        """Count for a while, and wait for an answer."""
        context.progress(2, 5, "two <i>of</i> five")
        context.log("counting <b>slowly</b>", "warning", {"step": 2})
        form = {
            "type": "object",
            "properties": {"go": {"type": "boolean", "title": "Go on", "description": "To the end."}},
            "required": ["go"],
        }
        answer = await context.ask("Shall I go on?", form)
        return f"{answer.action} {answer.content}"

    @ops.query
    def leaflet() -> list[Any]:
        return [
            TextContent("first"),
            ImageContent(base64.b64encode(png(32, 9)).decode(), "image/png"),
            TextContent("second <script>alert(1)</script>"),
            AudioContent(base64.b64encode(wav()).decode(), "audio/wav"),
            EmbeddedResource(
                {"uri": "shop://a/<b>.pdf", "mimeType": "application/pdf", "blob": base64.b64encode(PDF).decode()}
            ),
            EmbeddedResource({"uri": "shop://words", "mimeType": "text/plain", "text": "third"}),
            EmbeddedResource(
                {
                    "uri": "shop://page",
                    "mimeType": "text/html",
                    "blob": base64.b64encode(b"<script>1</script>").decode(),
                }
            ),
        ]

    @ops.query
    def rows() -> list[dict[str, Any]]:
        words = "a long text that must not be cut " * 10
        return [{"n": n, "name": f"row {9 - n}", "words": words} for n in (3, 10, 2)] + [{"n": None, "name": "<b>"}]

    @ops.query
    def huge() -> dict[str, Any]:
        """Give more than ten megabytes."""
        rows = [{"id": n, "text": f"item {n} " + "x" * 80} for n in range(100_000)]
        return {"rows": rows[:1000], "tree": {"all": rows, "odd key": ["deep <b>needle</b>"]}}

    @ops.query
    def everything() -> dict[str, Any]:
        return {text: [{"type": text, "text": text, "mimeType": text, "data": text}] for text in HOSTILE}

    return ops


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    made = shop()
    keep_calls(made)
    made.register_all(_strange())
    with served(to_http(made)) as found:
        yield found


def _echo(input: dict[str, Any], context: Context) -> dict[str, Any]:
    del context
    return input


def _strange() -> OperationRegistry:
    """Operations whose schemas, errors and examples are hostile."""
    made = OperationRegistry()
    for place, text in enumerate(HOSTILE):
        field = {"type": "string", "title": text, "description": text, "examples": [text], "format": text}
        output = {"type": "object", "properties": {text: {"description": text, "enum": [text]}}, "title": text}
        error = {"code": "ODD", "description": text}
        spec = OperationSpec(
            name=f"schema{place}",
            namespace="strange",
            description=text,
            input_schema={"type": "object", "properties": {text: field}, "examples": [{text: text}]},
            output_schema=output,
            error_schemas=[error],
        )
        made.register(Operation(spec, _echo))
    return made


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    opened = Visit(browser, accept_downloads=True)
    yield opened.page
    opened.close(address)


def call(page: Page) -> None:
    page.keyboard.press("Control+Enter")
    expect(page.locator(".summary .good")).to_have_text("OK")


def test_an_operation_shows_its_output_errors_examples_limits_and_the_tool_of_models(page: Page, address: str) -> None:
    go(page, address, "operations/shop.paint")
    about = page.locator(".about")
    expect(about.locator(".schema")).to_contain_text("list of object")
    expect(about.locator(".fields-of dt")).to_have_text(["name", "code"])
    about.get_by_role("tab", name="Errors (1)").click()
    expect(about.locator("tbody tr")).to_contain_text(["TOO_DARK"])
    expect(about.locator("tbody tr")).to_contain_text(["No one would <b>see</b> it"])
    expect(about.locator("tbody tr")).to_contain_text(["409"])
    about.get_by_role("tab", name="Examples (1)").click()
    expect(about.locator("pre")).to_contain_text('"wall": "north"')
    about.get_by_role("tab", name="Limits and access").click()
    expect(about.locator("dl")).to_contain_text("7 s")
    about.get_by_role("tab", name="As a model sees it").click()
    expect(about).to_contain_text(re.compile(r"≈ \d+ tokens"))
    expect(about.locator("pre").first).to_have_text("shop_paint")
    about.get_by_role("link", name="Try it as an agent").click()
    expect(page.locator(".beside pre").first).to_contain_text('"id": "shop.paint"')


def test_fields_use_title_description_examples_and_format(page: Page, address: str) -> None:
    go(page, address, "operations/shop.paint")
    expect(page.locator("[data-path=wall] label")).to_contain_text("Which wall")
    expect(page.locator("[data-path=wall] .hint")).to_have_text('As on the plan · for example "north"')
    kinds = {
        name: page.locator(f"[data-path={name}] input:not([type=checkbox])").get_attribute("type")
        for name in ("at", "plan")
    }
    assert kinds == {"at": "time", "plan": "url"}
    secret = page.locator("[data-path=key] input")
    assert secret.evaluate("each => getComputedStyle(each).webkitTextSecurity") == "disc"
    page.locator("[data-path=key]").get_by_role("button", name="Show").click()
    assert secret.evaluate("each => getComputedStyle(each).webkitTextSecurity") == "none"
    page.get_by_role("button", name="Fill in the example").click()
    expect(page.locator("[data-path=colour] input").first).to_have_value("#0f5f63")
    page.get_by_label("Choose colour").fill("#ff0000")
    page.get_by_label("at optional").fill("10:20")
    secret.fill("s3cret")
    call(page)
    expect(page.locator(".answer tbody tr").first).to_contain_text("north at 10:20:00")
    expect(page.locator(".answer tbody tr").first).to_contain_text("#ff0000")


def test_a_link_holds_the_input_without_secrets_and_calls_can_be_copied_as_typed(
    browser: Browser, address: str
) -> None:
    opened = Visit(browser, permissions=["clipboard-read", "clipboard-write"])
    page = opened.page
    go(page, address, "operations/shop.paint")
    page.get_by_label("Which wall").fill("it's <south>")
    page.get_by_label("colour required").fill("#123456")
    page.get_by_label("key").fill("s3cret")
    page.get_by_text("The same call in other clients").click()
    for name, words in {
        "curl": '{"wall":"it\'\\\'\'s <south>","colour":"#123456","key":"s3cret"}',
        "Python": '{"wall": "it\'s <south>", "colour": "#123456", "key": "s3cret"}',
        "MCP": '"wall": "it\'s <south>"',
        "Shell": "'wall=it'\\''s <south>'",
    }.items():
        page.get_by_role("tab", name=name).click()
        expect(page.locator(".same pre")).to_contain_text(words)
        page.locator(".same").get_by_role("button", name="Copy").click()
        assert words in page.evaluate("navigator.clipboard.readText()")
    page.get_by_role("button", name="Copy link").click()
    expect(page.locator(".row").get_by_role("button", name="Copied")).to_be_visible()
    link = page.evaluate("navigator.clipboard.readText()")
    assert "s3cret" not in link
    page.goto("about:blank")
    page.goto(link)
    expect(page.get_by_label("Which wall")).to_have_value("it's <south>")
    expect(page.get_by_label("key")).to_have_value("")
    call(page)
    go(page, address, f"operations/shop.paint?input={quote('{broken')}")
    expect(page.locator(".call > .fault")).to_contain_text("not JSON")
    odd = {"wall": ["no text"], "more": 1}
    go(page, address, f"operations/shop.paint?input={quote(json.dumps(odd))}")
    assert json.loads(page.get_by_role("textbox", name="The input as JSON").input_value()) == odd
    opened.close(address)


def test_a_running_call_shows_time_progress_and_log_asks_in_place_and_is_cancelled(page: Page, address: str) -> None:
    go(page, address, "operations/shop.count")
    page.keyboard.press("Control+Enter")
    running = page.get_by_role("region", name="Running call")
    expect(running.get_by_role("heading", name="Shall I go on?")).to_be_visible()
    expect(running.locator("progress")).to_have_js_property("value", 2)
    expect(running.locator(".loglines")).to_contain_text("counting <b>slowly</b>")
    expect(running.locator(".summary .chip").first).to_have_text(re.compile(r"^[\d.]+ (ms|s)$"))
    expect(running).to_contain_text("To the end.")
    running.get_by_role("button", name="Answer").click()
    expect(running.locator(".fault:visible")).to_have_count(1)  # what is required is missing
    running.get_by_label("Go on").select_option(label="true")
    running.get_by_role("button", name="Answer").click()
    expect(page.locator(".answer .string")).to_have_text("\"accept {'go': True}\"")
    expect(page.locator(".loglines")).to_contain_text("counting")  # what was said stays beside the result
    page.keyboard.press("Control+Enter")
    running.get_by_role("button", name="Decline").click()
    expect(page.locator(".answer .string")).to_contain_text("decline")
    page.keyboard.press("Control+Enter")
    expect(running.get_by_role("heading", name="Shall I go on?")).to_be_visible()
    running.get_by_role("button", name="Cancel").click()
    expect(page.locator(".answers")).to_contain_text("Cancelled")
    go(page, address, "calls")
    expect(page.locator("tbody tr").first).to_contain_text("caller left")  # the server has ended the call


@pytest.mark.parametrize("workers", [1, 3])
def test_an_mcp_server_asks_in_place_and_a_source_that_dies_is_told(
    browser: Browser, tmp_path: Path, workers: int
) -> None:
    source = {"command": sys.executable, "args": [str(DESK)]}
    (tmp_path / "enfold.json").write_text(json.dumps({"mcpServers": {"desk": source}}))
    with serving("enfold.json", "--workers", str(workers), cwd=tmp_path) as running:
        opened = Visit(browser)
        page, address = opened.page, f"{running.base}/"
        go(page, address, "operations/desk.check_in")
        page.keyboard.press("Control+Enter")
        asked = page.get_by_role("region", name="Answer required")
        expect(asked).to_be_visible()
        page.get_by_role("button", name="Cancel").click()
        page.keyboard.press("Control+Enter")  # and again: what was cancelled holds up nothing of this client
        expect(asked.get_by_role("heading", name="Who are <b>you</b>?")).to_be_visible()
        expect(page.locator(".running progress")).to_be_visible()
        expect(page.locator(".loglines")).to_contain_text("room 7 is free")
        expect(asked).to_contain_text("As it is in your passport.")
        asked.get_by_label("Full name").fill("Ann")
        asked.get_by_label("Nights").fill("3")
        asked.get_by_role("button", name="Answer").click()
        expect(page.locator(".answers")).to_contain_text("Ann: 3")
        if workers == 1:
            go(page, address, "operations/desk.fire")
            page.keyboard.press("Control+Enter")
            expect(page.locator(".summary .bad")).to_be_visible()
            go(page, address, "sources/desk")
            expect(page.locator(".card figcaption")).to_contain_text("down 1 time")
        opened.close(address)


def test_content_is_shown_in_its_order_and_other_bytes_can_be_saved(page: Page, address: str) -> None:
    go(page, address, "operations/shop.leaflet")
    call(page)
    order = page.locator(".answer .panel").locator("pre, img, audio, .file strong")
    names = order.evaluate_all("all => all.map((each) => each.tagName)")
    assert names == ["PRE", "IMG", "STRONG", "PRE", "AUDIO", "STRONG", "STRONG", "PRE", "PRE", "STRONG"]
    expect(page.locator(".answer pre").nth(1)).to_have_text("second <script>alert(1)</script>")
    page.wait_for_function("document.querySelector('.answer audio').duration > 0")  # media-src allows it
    saved = page.locator(".file", has_text="application/pdf")
    expect(saved).to_contain_text(f"{len(PDF)} B")
    with page.expect_download() as waiting:
        saved.get_by_role("button", name="Download").click()
    assert waiting.value.suggested_filename.endswith(".pdf")
    assert Path(waiting.value.path()).read_bytes() == PDF
    expect(page.locator(".answer pre").nth(3)).to_have_text("<script>1</script>")
    page.get_by_role("button", name="Show as a tree").click()
    expect(page.locator(".answer .tree")).to_contain_text('type: "text"')


def test_tables_are_sorted_and_not_cut(page: Page, address: str) -> None:
    go(page, address, "operations/shop.rows")
    call(page)
    first = page.locator(".answer tbody td:first-child")
    expect(first).to_have_text(["3", "10", "2", "null"])
    head = page.locator(".answer th").first
    head.get_by_role("button").click()
    expect(first).to_have_text(["2", "3", "10", "null"])
    expect(head).to_have_attribute("aria-sort", "ascending")
    head.get_by_role("button").press("Enter")
    expect(first).to_have_text(["null", "10", "3", "2"])
    head.get_by_role("button").press("Enter")
    expect(first).to_have_text(["3", "10", "2", "null"])
    cell = page.locator(".answer tbody td").nth(2)
    expect(cell).to_have_text(("a long text that must not be cut " * 10).strip())
    assert cell.evaluate("each => getComputedStyle(each).verticalAlign") == "top"


def test_ten_megabytes_never_stop_the_page_and_are_searched_to_the_end(browser: Browser, address: str) -> None:
    opened = Visit(browser, permissions=["clipboard-read", "clipboard-write"])
    page = opened.page
    go(page, address, "operations/shop.huge")
    page.evaluate("""window.longest = 0; let last = performance.now();
        setInterval(() => { const now = performance.now(); longest = Math.max(longest, now - last); last = now; }, 10);""")
    call(page)
    expect(page.locator(".summary")).to_contain_text("MB")
    page.get_by_role("button", name="Show as a tree").click()
    search = page.get_by_label("Search in the result")
    search.fill("needle")
    expect(page.locator(".found")).to_contain_text("deep <b>needle</b>")
    page.get_by_role("button", name="Copy path").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == '$.tree["odd key"][0]'
    search.fill("item 99999 ")
    expect(page.locator(".found")).to_contain_text("item 99999")
    expect(page.locator(".find [role=status]")).to_have_text("1 of 1")
    search.fill("nowhere at all")
    expect(page.locator(".find [role=status]")).to_have_text("No matches")
    assert page.locator("main *").count() < 6_000
    print(f"longest pause of the page with 10 MB: {page.evaluate('longest'):.0f} ms")  # noqa: T201
    opened.close(address)


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_hostile_schemas_and_results_are_text(page: Page, address: str, number: int) -> None:
    text = HOSTILE[number].replace("\u202e", "\\u202e")
    go(page, address, f"operations/strange.schema{number}")
    expect(page.locator(".field label").first).to_contain_text(text)
    expect(page.locator(".fields-of")).to_contain_text(text)
    page.get_by_role("tab", name="Errors (1)").click()
    expect(page.locator(".about tbody")).to_contain_text(text)
    page.get_by_role("tab", name="As a model sees it").click()
    page.get_by_role("button", name="Fill in the example").click()
    page.keyboard.press("Control+Enter")
    expect(page.locator(".answer")).to_be_visible()
    if not number:
        go(page, address, "operations/shop.everything")
        call(page)
    assert page.locator("main script, main iframe, main base, main meta, main form, main style, main img").count() == 0
    assert page.evaluate("({}).polluted") is None


def test_the_playground_searches_describes_and_narrows_as_an_agent_does(page: Page, address: str) -> None:
    go(page, address, "agents")
    page.get_by_label("Search as an agent").fill("paint a wall")
    expect(page.locator(".found-list .id").first).to_have_text("shop.paint")
    expect(page.get_by_role("status").filter(has_text="tokens")).to_contain_text(
        re.compile(r"≈ \d+ tokens.*instead of ≈ [\d,]+ for the list of \d+ tools")
    )
    expect(page).to_have_url(re.compile(r"#/agents\?q=paint\+a\+wall$"))
    page.locator(".found-list a").first.click()
    expect(page.locator(".beside pre").first).to_contain_text('"arguments"')
    page.get_by_label("Fields of the result").fill("nmae")
    expect(page.locator("#select-fault")).to_contain_text("did you mean name?")
    page.get_by_label("Fields of the result").fill("name")
    expect(page.locator(".beside")).to_contain_text(re.compile(r"\d+ saved in the schema"))
    expect(page.locator(".beside pre").nth(1)).to_have_text("[{name}]")
    page.reload()
    expect(page.locator(".beside pre").first).to_contain_text("shop.paint")
    page.get_by_label("Search as an agent").fill("xyzzy plugh")
    expect(page.locator(".found-list .none")).to_be_visible()


def test_the_main_jobs_are_done_with_the_keyboard_alone(browser: Browser) -> None:
    made = shop()
    made.register_all(many(30))
    keep_calls(made)
    with served(to_http(made)) as address:
        opened = Visit(browser)
        page = opened.page
        page.goto(address)
        expect(page.locator(".rows li").first).to_be_visible()
        press = page.keyboard.press

        def tab_to(role: str, name: str) -> None:
            target = page.get_by_role(role, name=name).first  # type: ignore[arg-type]
            for _ in range(60):
                if target.evaluate("each => each === document.activeElement"):
                    return
                press("Tab")
            raise AssertionError(f"Tab does not lead to {name}")

        press("/")
        page.keyboard.type("count for a while")
        press("ArrowDown")
        press("Enter")
        expect(page.locator("h1")).to_have_text("shop.count")
        press("Control+Enter")
        expect(page.get_by_label("Go on")).to_be_focused()  # the question takes the focus
        page.keyboard.type("t")
        tab_to("button", "Answer")
        press("Enter")
        expect(page.locator(".answer .string")).to_contain_text("accept")
        tab_to("tab", "Data")
        press("ArrowRight")
        expect(page.get_by_role("tab", name="Envelope")).to_be_focused()
        tab_to("tab", "Output")
        press("End")
        expect(page.get_by_role("tab", name="As a model sees it")).to_be_focused()
        for name, title in (
            ("Overview", "Corner Shop"),
            ("Sources", "Sources"),
            ("Calls", "Calls"),
            ("Agents", "Agents"),
        ):
            page.locator(".skip").focus()
            tab_to("link", name)
            press("Enter")
            expect(page.locator("h1")).to_have_text(title)
        press("/")
        page.keyboard.type("paint")
        tab_to("link", "shop.paint")
        press("Enter")
        expect(page.locator(".beside pre").first).to_contain_text("shop.paint")
        opened.close(address)
