"""How quick the console is with 2,000 operations, by the browser's own clock: `python -m tests.surfaces.console.timing`.

Figures and no assertions: they are meaningful only on a quiet machine, so the load is printed with them.
"""

import argparse
import os
from statistics import median
from typing import Any

from playwright.sync_api import Browser, sync_playwright
from tests.surfaces.console.app import many
from tests.surfaces.console.visiting import launched, served

from enfold.surfaces.http import to_http

WORDS = ("i", "invoice", "invoice 7", "", "update stock")
WATCH = """
    new MutationObserver((_, self) => {
        if (!document.querySelector(".rows li")) return;
        self.disconnect();
        window.listed = performance.now();
        requestAnimationFrame(() => setTimeout(() => (window.shown = performance.now())));
    }).observe(document, { childList: true, subtree: true });
"""
SHOWN = """() => new Promise((resolve) => {
    const look = () => (window.shown && performance.getEntriesByName("first-contentful-paint").length ? resolve() : setTimeout(look, 20));
    look();
})"""
TIMES = """() => {
    const [page] = performance.getEntriesByType("navigation");
    return {
        "first paint": performance.getEntriesByName("first-contentful-paint")[0].startTime,
        "list there": window.listed,
        "list shown": window.shown,
        "page parsed": page.domInteractive,
        "requests": performance.getEntriesByType("resource").length,
        "kB": Math.round([page, ...performance.getEntriesByType("resource")].reduce((sum, each) => sum + each.transferSize, 0) / 1000),
    };
}"""
FILTER = """(text) => new Promise((resolve) => {
    const search = document.querySelector("input[type=search]"), began = performance.now();
    search.value = text;
    search.dispatchEvent(new Event("input"));
    document.body.offsetHeight;
    const drawn = performance.now() - began;
    requestAnimationFrame(() => setTimeout(() => resolve([drawn, performance.now() - began])));
})"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=10)
    options = parser.parse_args()
    with served(to_http(many(2_000))) as address, sync_playwright() as playwright:
        browser = launched(playwright)
        _visit(browser, address, again=False)  # the server and the browser are warm from here on
        _report("first visit", [_visit(browser, address, again=False) for _ in range(options.times)])
        _report("again", [_visit(browser, address, again=True) for _ in range(options.times)])
        browser.close()


def _visit(browser: Browser, address: str, *, again: bool) -> dict[str, float]:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.add_init_script(WATCH)
    for _ in range(1 + again):
        page.goto(address)
        page.evaluate(SHOWN)
    found: dict[str, float] = page.evaluate(TIMES)
    filtered: list[list[float]] = [page.evaluate(FILTER, text) for text in WORDS]
    found["slowest filter, laid out"] = max(drawn for drawn, _ in filtered)
    found["slowest filter, shown"] = max(shown for _, shown in filtered)
    context.close()
    return found


def _report(name: str, found: list[dict[str, Any]]) -> None:
    print(f"{name}, {len(found)} times, load {os.getloadavg()[0]:.1f}")  # noqa: T201
    for each in found[0]:
        numbers = [one[each] for one in found]
        print(f"  {each:<26} best {min(numbers):6.1f}   median {median(numbers):6.1f}")  # noqa: T201


if __name__ == "__main__":
    main()
