"""The page on this machine to which a browser returns after a login; it handles one response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from hmac import compare_digest
from typing import Any, Final, cast
from urllib.parse import parse_qsl, urlsplit

from enfold.errors import CallError

MAX_HEAD: Final = 64 * 1024
CLOSE_SECONDS: Final = 0.5  # for a page to arrive
REQUEST_SECONDS: Final = 30.0  # for a visitor to send its request
_LOCAL: Final = ("127.0.0.1", "localhost", "::1")

_PAGE: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
    '<body style="font: 1.1em sans-serif; margin: 4em auto; max-width: 32em"><h1>{title}</h1><p>{text}</p></body></html>'
)


class CallbackPage:
    """Waits for the answer; `redirect_uri` is where it is to be sent, and `state` is what it must repeat.

    Any page and any program may call us: what does not know the state is not the answer, and does not end the login.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.redirect_uri = ""
        self.state = ""
        self._answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._visits: set[asyncio.Task[Any]] = set()

    async def answer(self) -> str:
        """The query of the first request that knows the state."""
        return await self._answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read one request and answer it with a page for a person."""
        visit = cast("asyncio.Task[Any]", asyncio.current_task())  # each visit is served in a task of its own
        self._visits.add(visit)
        try:
            with suppress(OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with asyncio.timeout(REQUEST_SECONDS):  # whose error is one of the system's
                    head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._page_for(head.partition(b"\r\n")[0].decode("ascii")))
                await writer.drain()
        finally:
            self._visits.discard(visit)
            writer.close()

    async def finish(self) -> None:
        """Give pages that are being sent a moment, then close what is left."""
        if self._visits:
            _, late = await asyncio.wait(self._visits, timeout=CLOSE_SECONDS)
            for visit in late:
                visit.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _page_for(self, line: str) -> bytes:
        method, _, rest = line.partition(" ")
        path, _, query = rest.partition(" ")[0].partition("?")
        if method != "GET" or path != self.path or not self._is_answer(query):
            return _page("404 Not Found", "Nothing here", "This page only completes a login.")
        if not self._answer.done():
            self._answer.set_result(query)
        return _page("200 OK", "Thank you", "The login is complete. You can close this page.")

    def _is_answer(self, query: str) -> bool:
        state = dict(parse_qsl(query)).get("state", "")
        return bool(self.state) and compare_digest(state.encode(), self.state.encode())


@asynccontextmanager
async def open_callback_page(wanted: str, port: int, preferred: int = 0) -> AsyncIterator[CallbackPage]:
    """Listen on this machine alone; the port is that of the address, or the one given, or a free one.

    Where any will do, the preferred one is taken if it can be had.
    """
    parts = urlsplit(wanted)
    if parts.scheme != "http" or parts.hostname not in _LOCAL:
        raise CallError("VALIDATION_ERROR", f"redirect_uri must be an http address of this machine, not {wanted}")
    page = CallbackPage(parts.path or "/")
    place = "::1" if parts.hostname == "::1" else "127.0.0.1"
    server = await _listen(page, place, parts.port or port, preferred)
    host = f"[{parts.hostname}]" if parts.hostname == "::1" else parts.hostname
    page.redirect_uri = f"http://{host}:{server.sockets[0].getsockname()[1]}{page.path}"
    try:
        yield page
    finally:
        server.close()
        await page.finish()


async def _listen(page: CallbackPage, host: str, port: int, preferred: int) -> asyncio.Server:
    if preferred and not port:
        with suppress(OSError):
            return await asyncio.start_server(page.serve, host, preferred, limit=MAX_HEAD)
    try:
        return await asyncio.start_server(page.serve, host, port, limit=MAX_HEAD)
    except OSError:
        message = f"Port {port} of this machine is in use, and the login must come back to it"
        raise CallError("UNAVAILABLE", message, {"reason": "login"}) from None


def _page(status: str, title: str, text: str) -> bytes:
    body = _PAGE.format(title=title, text=text).encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
