"""Forms with files in a real browser: those of the server's own pages run, those of other sites do not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Annotated, Any, Final

import pytest
from playwright.sync_api import Browser, Page
from tests.surfaces.console.visiting import served

from enfold import Context, MediaType, OperationRegistry
from enfold.surfaces.http import to_http

PNG: Final = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)

FILL: Final = """
    const form = document.createElement("form");
    form.action = address; form.method = "post"; form.enctype = "multipart/form-data";
    const input = document.createElement("input"); input.type = "file"; input.name = "content";
    const choice = new DataTransfer(); choice.items.add(new File(["stolen"], "a.txt")); input.files = choice.files;
    form.append(input); document.body.append(form);
"""
WAYS: Final = {
    "a form": f"""address => new Promise(end => {{ {FILL}
        const frame = document.createElement("iframe"); frame.name = "answer"; document.body.append(frame);
        form.target = "answer"; frame.onload = end; form.submit(); }})""",
    "a form without a referrer": f"""address => new Promise(end => {{
        const meta = document.createElement("meta"); meta.name = "referrer"; meta.content = "no-referrer";
        document.head.append(meta); {FILL}
        const frame = document.createElement("iframe"); frame.name = "answer"; document.body.append(frame);
        form.target = "answer"; frame.onload = end; form.submit(); }})""",
    "a request without CORS": """address => { const form = new FormData(); form.append("content", new Blob(["stolen"]));
        return fetch(address, {mode: "no-cors", method: "POST", body: form}).catch(() => null); }""",
    "a request with CORS": """address => { const form = new FormData(); form.append("content", new Blob(["stolen"]));
        return fetch(address, {method: "POST", body: form}).catch(() => null); }""",
    "a raw body": """address => fetch(address,
        {method: "POST", body: "stolen", headers: {"Content-Type": "application/octet-stream"}}).catch(() => null)""",
    "a beacon": """address => { const form = new FormData(); form.append("content", new Blob(["stolen"]));
        navigator.sendBeacon(address, form); }""",
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
    ops = OperationRegistry("lab")

    @ops.mutation(http="POST /uploads")
    def upload(content: bytes) -> int:
        ran.append(content.decode())
        return len(content)

    @ops.query
    def picture() -> Annotated[bytes, MediaType("image/png")]:
        return PNG

    @ops.query
    def page() -> Annotated[bytes, MediaType("text/html")]:
        return b"<script>document.title = 'ran'</script>"

    @ops.query
    def report(context: Context) -> Annotated[bytes, MediaType("text/html")]:
        context.set_header("Content-Disposition", 'attachment; filename="report of May.html"')
        return b"<h1>May</h1>"

    with ExitStack() as stack:
        own = stack.enter_context(served(to_http(ops)))
        yield own, stack.enter_context(served(_page))


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    yield context.new_page()
    context.close()


UPLOAD: Final = """async address => { const form = new FormData(); form.append("content", new File(["own"], "a.txt"));
    return (await fetch(address, {method: "POST", body: form})).json(); }"""


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"], ids=["cross-site", "same-site"])
@pytest.mark.parametrize("way", WAYS)
def test_another_site_uploads_nothing(page: Page, places: tuple[str, str], ran: list[str], way: str, host: str) -> None:
    own, other = places
    for path in ("functions/lab.upload", "uploads"):
        page.goto(other.replace("127.0.0.1", host))
        page.evaluate(WAYS[way], f"{own}{path}")
    page.goto(own)
    assert page.evaluate(UPLOAD, f"{own}functions/lab.upload") == {"result": 3}
    assert ran == ["own"]


def test_a_page_of_the_server_shows_the_picture_of_an_operation(page: Page, places: tuple[str, str]) -> None:
    own, _ = places
    page.goto(f"{own}functions/lab.picture")  # a page without a policy of its own, for the image below
    width = """address => new Promise((end, fail) => { const it = new Image(); it.onload = () => end(it.naturalWidth);
        it.onerror = fail; it.src = address; })"""
    assert page.evaluate(width, f"{own}functions/lab.picture") == 1
    sizes = "async address => (await (await fetch(address, {headers: {Accept: 'image/*'}})).blob()).size"
    assert page.evaluate(sizes, f"{own}functions/lab.picture") == len(PNG)


def test_a_page_that_an_operation_gives_is_saved_and_not_run(page: Page, places: tuple[str, str]) -> None:
    own, _ = places
    page.goto(own)
    for name, filename in (("page", "lab.page.html"), ("report", "report of May.html")):
        with page.expect_download() as download:
            page.evaluate("address => { location.href = address; }", f"{own}functions/lab.{name}")
        assert download.value.suggested_filename == filename
    assert page.title() != "ran"
