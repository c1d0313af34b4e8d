"""A real browser at a real server: how tests and pictures of the console visit it."""

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Playwright, Request, expect
from tests.conftest import not_run

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
expect.set_options(timeout=20_000)


def launched(playwright: Playwright) -> Browser:
    """Debian's Chromium; Playwright's own is not available."""
    place = next((each for each in ("/usr/bin/chromium", "/usr/bin/chromium-browser") if Path(each).exists()), None)
    if place is None:
        not_run("chromium")
    return playwright.chromium.launch(executable_path=place, args=FLAGS)


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


class Visit:
    """A page, and what went on around it: messages in the browser's console, and requests."""

    def __init__(self, browser: Browser, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page: Page = self.context.new_page()
        self.messages: list[str] = []
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("dialog", self._refuse)
        self.urls: list[str] = []
        self.page.on("request", self._note)

    def _note(self, request: Request) -> None:
        self.urls.append(request.url)

    def _hear(self, message: ConsoleMessage) -> None:
        # Chromium writes a line of its own for every answer of 4xx and 5xx; that is no message of the page.
        if not message.text.startswith("Failed to load resource: the server responded with a status of "):
            self.messages.append(message.text)

    def _refuse(self, dialog: Dialog) -> None:
        self.messages.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def close(self, address: str) -> None:
        self.context.close()
        assert self.messages == []
        assert {urlsplit(url).netloc for url in self.urls} <= {urlsplit(address).netloc, ""}  # data: has no host


def go(page: Page, place: str, address: str) -> None:
    page.goto(f"{place}#/{address}")
    expect(page.locator(f'main[data-at="#/{address}"]')).to_be_visible()
