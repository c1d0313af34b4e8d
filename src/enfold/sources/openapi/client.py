"""Sending requests: one pooled client, its own redirects and retries, bounded bodies, and only allowed addresses."""

from __future__ import annotations

import asyncio
import random
import sys
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import msgspec

from enfold.errors import CallError
from enfold.sources.openapi.requests import Outgoing
from enfold.sources.openapi.responses import Answer, read_retry_after
from enfold.sources.openapi.servers import Reach

IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "QUERY"})
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
RETRIED: Final = frozenset({429, 502, 503, 504})
CONNECT_TIMEOUT: Final = 10.0

_FIRST_WAIT: Final = 0.1
_TIMEOUT: Final = {"connect": CONNECT_TIMEOUT, "read": None, "write": None, "pool": None}  # the call has its deadline
_HARMLESS: Final = frozenset({"accept", "content-type", "user-agent"})
_ABOUT_THE_BODY: Final = frozenset({"content-type", "content-length", "content-encoding", "transfer-encoding"})


class Limits(msgspec.Struct, frozen=True):
    """What a source allows: sizes in bytes after decompression, and how often it tries again."""

    response_bytes: int = 32 * 1024 * 1024
    request_bytes: int = 32 * 1024 * 1024
    event_bytes: int = 4 * 1024 * 1024
    document_bytes: int = 64 * 1024 * 1024
    retries: int = 2
    retry_wait: float = 2.0  # a server that asks for a longer pause is not waited for
    redirects: int = 5
    reconnects: int = 5


class HTTPClient:
    """The HTTP client of one source: httpx2 by default, or the user's own httpx or httpx2 client."""

    def __init__(self, reach: Reach, limits: Limits, client: Any = None) -> None:
        self._reach = reach
        self.limits = limits
        self._given = client
        self._client: Any = client
        self._loop: Any = None

    # --- whole answers

    async def fetch(self, request: Outgoing) -> Answer:
        """The answer to a request, its body read; redirects followed, and tried again where that is safe."""
        response = await self.open(request)
        try:
            return await self.read(response, request)
        finally:
            await response.aclose()

    async def read(self, response: Any, request: Outgoing) -> Answer:
        """The answer of an open response; one that is too large is refused before it is all here."""
        content = await self._content(response, request)
        headers = response.headers.multi_items()
        return Answer(response.status_code, response.reason_phrase, headers, content, request.method)

    async def _content(self, response: Any, request: Outgoing) -> bytes:
        limit = self.limits.response_bytes
        said = response.headers.get("content-length", "")
        if request.method != "HEAD" and said.isdecimal() and int(said) > limit:
            raise _too_large(limit)
        chunks: list[bytes] = []
        size = 0
        try:
            async for chunk in response.aiter_bytes():
                chunks.append(chunk)
                size = _within(limit, size + len(chunk))
        except Exception as error:
            raise self.told(error, request) from error
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    # --- open responses

    async def open(self, request: Outgoing) -> Any:
        """An open response, whatever its status; who opens it closes it."""
        self._check_size(request)
        attempt = 0
        while True:
            wait: float | None
            try:
                response = await self._follow(request)
            except CallError as error:
                if not error.retryable or attempt >= self.limits.retries:
                    raise
                wait = _backoff(attempt)
            else:
                wait = self._wait_before_retry(request, response, attempt)
                if wait is None:
                    return response
                await response.aclose()
            attempt += 1
            await asyncio.sleep(wait)

    def _wait_before_retry(self, request: Outgoing, response: Any, attempt: int) -> float | None:
        """The seconds to wait before another attempt; None where this answer is the one to keep."""
        if response.status_code not in RETRIED or request.method not in IDEMPOTENT or attempt >= self.limits.retries:
            return None
        asked = read_retry_after(response.headers.get("retry-after"))
        if asked is None:
            return _backoff(attempt)
        return asked + _backoff(0) if asked <= self.limits.retry_wait else None

    async def _follow(self, request: Outgoing) -> Any:
        """Send, and follow redirects to addresses that may be contacted."""
        for _ in range(self.limits.redirects + 1):
            response = await self._send(request)
            location = response.headers.get("location") if response.status_code in REDIRECTS else None
            if location is None:
                return response
            await response.aclose()
            request = self._redirected(request, response.status_code, location)
        raise CallError("EXECUTION_ERROR", f"More than {self.limits.redirects} redirects", {"reason": "redirects"})

    def _redirected(self, request: Outgoing, status: int, location: str) -> Outgoing:
        url = _joined(request.url, location.partition("#")[0])
        refusal = self._reach.refusal(url)
        if refusal is not None:
            raise CallError(
                "EXECUTION_ERROR", f"A redirect was refused: {refusal}", {"status": status, "location": location}
            )
        becomes_get = (status == 303 and request.method != "HEAD") or (
            status in (301, 302) and request.method == "POST"
        )
        return _moved(request, url, stays=self._reach.is_home(url), becomes_get=becomes_get)

    async def _send(self, request: Outgoing) -> Any:
        client = self._current()
        is_home = self._reach.is_home(request.url)
        # The user's client has its own headers and its own way to log in; both are for his own server only.
        options = {} if self._given is not None and is_home else {"auth": None}
        try:
            built = self._merged(client, request) if self._given is not None and is_home else _built(client, request)
            built.extensions["timeout"] = _TIMEOUT
            return await client.send(built, stream=True, follow_redirects=False, **options)
        except Exception as error:
            raise self.told(error, request) from error

    def _merged(self, client: Any, request: Outgoing) -> Any:
        built = client.build_request(request.method, request.url, headers=_headers(request), content=request.content)
        return built if client.params else _exactly(built, request)

    def _check_size(self, request: Outgoing) -> None:
        if request.content is not None and len(request.content) > self.limits.request_bytes:
            raise CallError(
                "PAYLOAD_TOO_LARGE", f"The request body is over the limit of {self.limits.request_bytes} bytes"
            )

    # --- the client itself

    def _current(self) -> Any:
        """The client of the running loop: connections of an earlier loop are dead."""
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._client, self._loop = _new_client(), loop
        return self._client

    async def aclose(self) -> None:
        """Close the connections; a client the user gave stays his."""
        client, self._client = self._client, None
        if self._given is None and client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()

    def told(self, error: Exception, request: Outgoing) -> CallError:
        """What the caller hears of a failure on the way."""
        if isinstance(error, CallError):
            return error
        library = _library(self._current())
        safe = request.method in IDEMPOTENT
        if isinstance(error, library.ConnectTimeout | library.ConnectError):
            return CallError("UNAVAILABLE", f"{self._host(request)} cannot be reached: {error}", retryable=True)
        if isinstance(error, library.TimeoutException):
            return CallError("TIMEOUT", f"{self._host(request)} did not answer in time", retryable=safe)
        if isinstance(error, library.DecodingError):
            return CallError("EXECUTION_ERROR", f"The response cannot be decompressed: {error}")
        if isinstance(error, library.LocalProtocolError | library.UnsupportedProtocol | library.InvalidURL):
            return CallError("VALIDATION_ERROR", f"The request cannot be sent: {error}")
        if isinstance(error, library.TransportError):
            return CallError("UNAVAILABLE", f"{self._host(request)} broke off: {error}", retryable=safe)
        return CallError("EXECUTION_ERROR", f"The request failed: {error}")

    def _host(self, request: Outgoing) -> str:
        return request.origin.partition("//")[2].rpartition("@")[2]


def _new_client() -> Any:
    import httpx2

    return httpx2.AsyncClient(follow_redirects=False)


def _library(client: Any) -> Any:
    """The module a client belongs to: httpx and httpx2 have the same names in it."""
    for base in type(client).__mro__:
        name = base.__module__.partition(".")[0]
        if name in ("httpx2", "httpx"):
            return sys.modules[name]
    raise TypeError(f"A client is an AsyncClient of httpx2 or httpx, not {type(client).__name__}")


def _built(client: Any, request: Outgoing) -> Any:
    """The request with our own defaults and nothing from the client: no cookie of an earlier answer is sent."""
    present = {name.lower() for name, _ in request.headers}
    encodings = client.headers.get("accept-encoding", "gzip")
    defaults = {"user-agent": "enfold", "accept": "*/*", "accept-encoding": encodings}
    headers = _headers(request) + [
        (name.encode(), value.encode()) for name, value in defaults.items() if name not in present
    ]
    built = _library(client).Request(request.method, request.url, headers=headers, content=request.content)
    return _exactly(built, request)


def _headers(request: Outgoing) -> list[tuple[bytes, bytes]]:
    headers = [(name.encode(), value.encode()) for name, value in request.headers]
    if request.cookies:
        headers.append((b"Cookie", "; ".join(request.cookies).encode()))
    return headers


def _exactly(built: Any, request: Outgoing) -> Any:
    """The request with the target on the wire as we wrote it, where the library would write it otherwise."""
    target = request.target.encode()
    if built.url.raw_path != target:
        built.extensions["target"] = target
    return built


def _joined(url: str, location: str) -> str:
    try:
        return urljoin(url, location)
    except ValueError:  # nothing that can be read as an address; as it stands it will be refused
        return location


def _moved(request: Outgoing, url: str, *, stays: bool, becomes_get: bool) -> Outgoing:
    """The request at another address; away from home it keeps only what describes its body and its answer."""
    headers = request.headers
    if not stays:
        headers = [(name, value) for name, value in headers if name.lower() in _HARMLESS]
    if becomes_get:
        headers = [(name, value) for name, value in headers if name.lower() not in _ABOUT_THE_BODY]
    parts = urlsplit(url)
    return Outgoing(
        "GET" if becomes_get else request.method,
        f"{parts.scheme}://{parts.netloc}",
        parts.path or "/",
        [parts.query] if parts.query else [],
        headers,
        request.cookies if stays else [],
        None if becomes_get else request.content,
    )


def _backoff(attempt: int) -> float:
    return _FIRST_WAIT * (1 << attempt) * (0.5 + random.random())  # noqa: S311  # jitter needs no secrecy


def _within(limit: int, size: int) -> int:
    if size > limit:
        raise _too_large(limit)
    return size


def _too_large(limit: int) -> CallError:
    return CallError("PAYLOAD_TOO_LARGE", f"The response is over the limit of {limit} bytes", {"limit": limit})
