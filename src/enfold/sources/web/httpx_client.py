"""A user's own httpx or httpx2 client behind the verbs of ours; what it adds to requests is for its own server only."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import Any, Final

from enfold.sources.web.http_messages import DEFAULTS, Headers, Request, Response
from enfold.sources.web.pool import CONNECT
from enfold.sources.web.web_error import WebError

# Whoever calls has a deadline of its own.
_TIMEOUT: Final = {"connect": CONNECT, "read": None, "write": None, "pool": None}


class HttpxClient:
    """The client stays the user's: nothing of an answer is kept in it, and it is not closed."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._library = _library(client)
        self._cookies = self._library.Cookies(client.cookies)

    async def send(self, request: Request, *, is_own: bool = True) -> Response:
        """An open response, whatever its status; what the client adds by itself it adds where `is_own`."""
        options = {} if is_own else {"auth": None}
        try:
            built = self._merged(request) if is_own else self._bare(request)
            built.extensions["timeout"] = _TIMEOUT
            found = await self._client.send(built, stream=True, follow_redirects=False, **options)
        except Exception as error:
            raise self.failure(error) from error
        headers = [(name.lower(), value) for name, value in found.headers.multi_items()]
        if found.is_stream_consumed:  # a transport that had it all, and has unpacked it
            headers = [pair for pair in headers if pair[0] != "content-encoding"]
        return Response(request, found.status_code, found.reason_phrase, headers, _Body(self, found))

    async def aclose(self) -> None:
        """A client the user gave stays theirs."""

    def _merged(self, request: Request) -> Any:
        headers = [*request.headers, *_missing(request, "accept-encoding")]
        own_cookies = [value for name, value in headers if name.lower() == "cookie"]
        built = self._client.build_request(
            request.method, request.url, headers=_encoded(headers), content=request.content
        )
        # Cookies of earlier answers are in the client by now, and may be another caller's.
        built.headers.pop("cookie", None)
        if own_cookies:
            built.headers["cookie"] = "; ".join(own_cookies)
        else:
            self._cookies.set_cookie_header(built)
        return built if self._client.params else _exactly(built, request)

    def _bare(self, request: Request) -> Any:
        headers = [*request.headers, *_missing(request, *(name for name, _ in DEFAULTS))]
        built = self._library.Request(request.method, request.url, headers=_encoded(headers), content=request.content)
        return _exactly(built, request)

    def failure(self, error: Exception) -> Exception:
        """What an error of the library means."""
        library, sentence = self._library, str(error) or type(error).__name__
        if isinstance(error, library.ConnectTimeout | library.ConnectError):
            return WebError("unreachable", sentence)
        if isinstance(error, library.TimeoutException):
            return WebError("late", sentence)
        if isinstance(error, library.DecodingError):
            return WebError("unreadable", f"The response cannot be decompressed: {sentence}")
        if isinstance(error, library.LocalProtocolError | library.UnsupportedProtocol | library.InvalidURL):
            return WebError("unsendable", sentence)
        if isinstance(error, library.TransportError | library.StreamError):
            return WebError("broken", sentence)
        return error


class _Body:
    """The body of a response as it is on the wire, where its transport still has it so."""

    def __init__(self, client: HttpxClient, response: Any) -> None:
        self._client = client
        self._response = response
        self._chunks: AsyncIterator[bytes] | None = None

    async def chunk(self) -> bytes:
        if self._chunks is None:
            is_read = self._response.is_stream_consumed
            self._chunks = self._response.aiter_bytes() if is_read else self._response.aiter_raw()
        try:
            async for chunk in self._chunks:
                if chunk:
                    return bytes(chunk)
        except Exception as error:
            raise self._client.failure(error) from error
        return b""

    async def close(self) -> None:
        await self._response.aclose()


def _library(client: Any) -> Any:
    """The module a client belongs to: httpx and httpx2 have the same names in it."""
    for base in type(client).__mro__:
        name = base.__module__.partition(".")[0]
        if name in ("httpx2", "httpx"):
            return sys.modules[name]
    raise TypeError(f"A client is an AsyncClient of httpx2 or httpx, not {type(client).__name__}")


def _missing(request: Request, *names: str) -> Headers:
    present = {name.lower() for name, _ in request.headers}
    return [(name, value) for name, value in DEFAULTS if name in names and name not in present]


def _encoded(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers]


def _exactly(built: Any, request: Request) -> Any:
    """The request with the target on the wire as we wrote it, where the library would write it otherwise."""
    target = request.target.encode()
    if built.url.raw_path != target:
        built.extensions["target"] = target
    return built
