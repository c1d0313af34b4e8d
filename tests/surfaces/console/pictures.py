"""Make the pictures of docs/console.md anew: `python -m tests.surfaces.console.pictures`. Look at each before it goes in.

Each picture shows a page on a wide and a narrow screen: the wide one in light colours and the narrow one in dark colours,
and with `-dark` in its name the other way round. They are joined, and written with their 200 most frequent colours.
"""

import base64
import struct
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from playwright.sync_api import Browser, Page, sync_playwright
from tests.conftest import ROOT
from tests.surfaces.console.busy import used
from tests.surfaces.console.visiting import launched

PLACE = ROOT / "docs/pictures"
WIDE, NARROW, HEIGHT = 1280, 390, 840
Scheme: TypeAlias = Literal["light", "dark"]
SCHEMES: Final[tuple[tuple[str, Scheme, Scheme], ...]] = (("", "light", "dark"), ("-dark", "dark", "light"))


class Shot(NamedTuple):
    """A page to take a picture of: its address, what is done there, and what is then waited for."""

    name: str
    address: str
    ready: str
    act: Callable[[Page], object] = Page.bring_to_front
    scroll: str = ""  # what is in view; the top of the page by default


def _fill(page: Page) -> None:
    page.get_by_label("shelf").select_option(label="all")
    page.get_by_label("at_most").fill("4")
    page.get_by_label("Record this run").check()
    page.keyboard.press("Control+Enter")


def _ask(page: Page) -> None:
    page.get_by_role("button", name="Fill in the example").click()
    page.keyboard.press("Control+Enter")


def _narrow(page: Page) -> None:
    page.get_by_label("Search as an agent").fill("how much is left on the shelves")
    page.get_by_role("link", name="shop.stock").click()
    page.get_by_label("Fields of the result").fill("article,left")


SHOTS = (
    Shot("overview", "overview", ".tile .chart"),
    Shot("operations", "operations", ".rows li"),
    Shot("operation", "operations/shop.stock", ".answer table", _fill),
    Shot("running", "operations/shop.deliver", ".running .asked", _ask, ".answers"),
    Shot(
        "about",
        "operations/shop.deliver",
        ".about",
        lambda page: page.get_by_role("tab", name="As a model").click(),
        ".about",
    ),
    Shot(
        "content",
        "operations/shop.leaflet",
        ".answer audio",
        lambda page: page.keyboard.press("Control+Enter"),
        ".answers",
    ),
    Shot("sources", "sources", "mark", lambda page: page.get_by_text("1 definition changed").click()),
    Shot("calls", "calls", ".card .tree", lambda page: page.get_by_role("button", name="shop.add").first.click()),
    Shot(
        "runs",
        "runs",
        ".graph .node:nth-of-type(5)",
        lambda page: page.get_by_role("button", name="shop.audit").nth(1).click(),
    ),
    Shot("run", "runs/{run}", ".graph"),
    Shot("tasks", "tasks", "tbody tr"),
    Shot("task", "tasks", ".timeline", lambda page: page.get_by_role("link", name="shop.refund").click()),
    Shot("agents", "agents", "text=Narrowed schema", _narrow),
)


def main() -> None:
    PLACE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, used(Path(folder)) as (address, run), sync_playwright() as playwright:
        browser = launched(playwright)
        for shot in SHOTS:
            for ending, wide, narrow in SCHEMES:
                taken = [
                    _taken(browser, address, shot, run, WIDE, wide),
                    _taken(browser, address, shot, run, NARROW, narrow),
                ]
                (PLACE / f"console-{shot.name}{ending}.png").write_bytes(_joined(browser, taken))
        browser.close()


def _taken(browser: Browser, address: str, shot: Shot, run: str, width: int, scheme: Scheme) -> bytes:
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": HEIGHT})
    page = context.new_page()
    page.add_init_script("sessionStorage.setItem('enfold-token', 'ann')")
    place = shot.address.format(run=run)
    page.goto(f"{address}#/{place}")
    page.locator(f'main[data-at="#/{place}"]').wait_for()
    shot.act(page)
    page.locator(shot.ready).first.wait_for()
    page.evaluate("scrollTo(0, 0); document.activeElement.blur()")
    if shot.scroll and (width == NARROW or shot.scroll == ".about"):
        page.locator(shot.scroll).first.evaluate("each => each.scrollIntoView()")
    taken = page.screenshot()
    context.close()
    return taken


# The pixels of two pictures beside each other, as places in a palette of their most frequent colours.
JOIN = """async ([wide, narrow, colours]) => {
    const images = await Promise.all([wide, narrow].map(async (data) => createImageBitmap(await (await fetch(`data:image/png;base64,${data}`)).blob())));
    const canvas = new OffscreenCanvas(images[0].width + images[1].width + 12, images[0].height), pen = canvas.getContext("2d");
    pen.fillStyle = "#888";
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.drawImage(images[0], 0, 0);
    pen.drawImage(images[1], images[0].width + 12, 0);
    const { data } = pen.getImageData(0, 0, canvas.width, canvas.height), counts = new Map();
    const colour = (at) => (data[at] << 16) | (data[at + 1] << 8) | data[at + 2];
    for (let at = 0; at < data.length; at += 4) counts.set(colour(at), (counts.get(colour(at)) || 0) + 1);
    const often = [...counts].sort((one, other) => other[1] - one[1]).map(([each]) => each), coarse = new Map();
    for (const each of often.slice(colours / 2)) if (!coarse.has(each & 0xf0f0f0)) coarse.set(each & 0xf0f0f0, each);
    const palette = [...often.slice(0, colours / 2), ...[...coarse.values()].slice(0, colours / 2)];
    const distance = (one, other) => [16, 8, 0].reduce((sum, shift) => sum + (((one >> shift) & 255) - ((other >> shift) & 255)) ** 2, 0);
    const nearest = new Map(palette.map((each, place) => [each, place]));
    for (const each of counts.keys()) if (!nearest.has(each)) nearest.set(each, palette.reduce((best, other, place) => (distance(each, other) < distance(each, palette[best]) ? place : best), 0));
    let text = "";
    for (let at = 0; at < data.length; at += 4) text += String.fromCharCode(nearest.get(colour(at)));
    return { width: canvas.width, height: canvas.height, palette, pixels: btoa(text) };
}"""


def _joined(browser: Browser, parts: list[bytes]) -> bytes:
    page = browser.new_page()
    made = page.evaluate(JOIN, [*(base64.b64encode(each).decode() for each in parts), 200])
    page.close()
    width, height, pixels = made["width"], made["height"], base64.b64decode(made["pixels"])
    lines = b"".join(b"\0" + pixels[line * width : (line + 1) * width] for line in range(height))
    colours = b"".join(each.to_bytes(3, "big") for each in made["palette"])
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"PLTE", colours), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


if __name__ == "__main__":
    main()
