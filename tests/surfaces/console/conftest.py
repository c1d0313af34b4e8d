"""Fixtures of the console: a browser, a shop with every feature, and a page whose errors fail the test."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from tests.surfaces.console.app import ops
from tests.surfaces.console.visiting import Visit, launched, served

from enfold.operations import Policy
from enfold.provenance import Recorder, RecordStore
from enfold.surfaces.http import to_http
from enfold.surfaces.introspection import keep_calls
from enfold.surfaces.introspection.calls import Payloads
from enfold.surfaces.mcp import to_mcp


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = launched(playwright)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The shop with everything: calls and runs are kept, and MCP is mounted."""
    recorder = Recorder(store=RecordStore(tmp_path_factory.mktemp("console") / "runs.db"))
    payloads = Payloads()
    shop = ops.with_policy(Policy(payloads=payloads))
    keep_calls(shop, payloads)
    app = to_http(shop, recorder=recorder, mounts={"/mcp": to_mcp(shop, recorder=recorder)})
    with served(app) as address:
        yield address


@pytest.fixture
def visit(browser: Browser, place: str) -> Iterator[Page]:
    opened = Visit(browser)
    yield opened.page
    opened.close(place)
