"""Make the pictures of docs/console.md anew: `python -m tests.surfaces.console.pictures`. Look at each before it goes in."""

import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright
from tests.conftest import ROOT
from tests.surfaces.console.busy import used
from tests.surfaces.console.visiting import launched

PLACE = ROOT / "docs/pictures"


def main() -> None:
    PLACE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, used(Path(folder)) as (address, run), sync_playwright() as playwright:
        browser = launched(playwright)
        for scheme in ("light", "dark"):
            context = browser.new_context(color_scheme=scheme, viewport={"width": 1180, "height": 760})
            page = context.new_page()
            page.add_init_script("sessionStorage.setItem('enfold-token', 'ann')")
            _draw(page, address, run, scheme)
        browser.close()


def _draw(page: Page, address: str, run: str, scheme: str) -> None:
    def draw(name: str, place: str, ready: str) -> None:
        page.goto(f"{address}#/{place}")
        page.locator(f'main[data-at="#/{place}"]').wait_for()
        if name == "operation":
            _look(page)
        if name == "calls":
            page.get_by_role("button", name="shop.add").first.click()
        page.locator(ready).first.wait_for()
        page.evaluate("scrollTo(0, 0); document.activeElement.blur()")
        page.screenshot(path=PLACE / f"console-{name}{'-dark' if scheme == 'dark' else ''}.png")

    draw("operations", "operations", ".rows li")
    if scheme == "light":
        draw("operation", "operations/shop.stock", ".answer table")
        draw("sources", "sources", ".card")
        draw("calls", "calls", ".card .tree")
        draw("runs", "runs", "tbody tr")
        draw("run", f"runs/{run}", ".graph")
        draw("tasks", "tasks", "tbody tr")
        draw("overview", "overview", ".tile")


def _look(page: Page) -> None:
    page.get_by_label("shelf").select_option(label="all")
    page.get_by_label("at_most").fill("4")
    page.get_by_label("Record this run").check()
    page.keyboard.press("Control+Enter")


if __name__ == "__main__":
    main()
