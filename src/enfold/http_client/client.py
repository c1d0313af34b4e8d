"""The built-in client, the adapter for a user's httpx or httpx2 client, and redirects for both."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Container
from typing import Any, Final

from enfold.http_client.connection import CONNECT, Allows, Connection, Key, Pool, ResponseReader, proxy_for
from enfold.http_client.errors import IDEMPOTENT_METHODS, WebError
from enfold.http_client.messages import DEFAULTS, Headers, Request, Response, write
from enfold.http_client.urls import joined, read_endpoint, split_url

MAX_ROUTES: Final = 1000


class WebClient:
    """An HTTP/1.1 client without cookies or cache."""

    def __init__(self, allows: Allows | None = None) -> None:
        """`allows` decides whether an IP address of an endpoint may be contacted; by default all may."""
        self._allows = allows
        self._pools: dict[asyncio.AbstractEventLoop, Pool] = {}
        self._routes: dict[str, Key] = {}

    async def send(self, request: Request, *, is_own: bool = True) -> Response:
        """Return an open response of any status; `is_own` matters only to clients that add headers for their own server."""
        del is_own
        key = self._routes.get(request.origin) or self._route(request.origin)
        data = write(request, *key)
        pool = self._pools.get(asyncio.get_running_loop()) or self._new_pool()
        while (connection := pool.acquire(key)) is not None:
            try:
                return await _exchange(connection, request, data)
            except _StaleError:
                # The server closed an idle connection; it is unknown whether it has read the request.
                if request.method not in IDEMPOTENT_METHODS:
                    raise
        return await _exchange(await pool.open(key), request, data)

    def _route(self, origin: str) -> Key:
        """Return the endpoint and proxy of an origin, cached for a limited number."""
        endpoint = read_endpoint(origin)
        if len(self._routes) >= MAX_ROUTES:
            self._routes.clear()
        key = self._routes[origin] = endpoint, proxy_for(endpoint)
        return key

    def _new_pool(self) -> Pool:
        """Return the pool of the running loop; a source may be called from several loops."""
        pool = Pool(self._allows)
        alive = {loop: each for loop, each in self._pools.copy().items() if not loop.is_closed()}
        self._pools = {**alive, asyncio.get_running_loop(): pool}
        return pool

    async def aclose(self) -> None:
        """Close all connections; pending requests fail."""
        pools, self._pools = self._pools, {}
        for loop, pool in pools.items():
            if loop is asyncio.get_running_loop():
                pool.close()
            elif not loop.is_closed():
                loop.call_soon_threadsafe(pool.close)


class _StaleError(WebError):
    """A kept-alive connection was closed without a response."""


async def _exchange(connection: Connection, request: Request, data: bytes) -> Response:
    exchange = ResponseReader(request.method)
    is_kept = connection.is_used
    try:
        connection.send(exchange, data)
        await exchange.head()
    except WebError as error:
        connection.close()
        if is_kept and error.kind == "broken" and not exchange.is_begun:
            raise _StaleError(error.kind, error.sentence) from None
        raise
    except BaseException:
        connection.close()
        raise
    headers = [(name.decode("latin-1"), _text(value)) for name, value in exchange.headers]
    return Response(request, exchange.status, _text(exchange.reason), headers, exchange, connection.peer)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


# Callers have their own deadlines.
_TIMEOUT: Final = {"connect": CONNECT, "read": None, "write": None, "pool": None}


class HttpxClient:
    """Adapter for a user's client, which keeps no response state and is not closed."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._library = _library(client)
        self._cookies = self._library.Cookies(client.cookies)

    async def send(self, request: Request, *, is_own: bool = True) -> Response:
        """Return an open response of any status; the client's own headers are added only where `is_own`."""
        options = {} if is_own else {"auth": None}
        try:
            built = self._merged(request) if is_own else self._bare(request)
            built.extensions["timeout"] = _TIMEOUT
            found = await self._client.send(built, stream=True, follow_redirects=False, **options)
        except Exception as error:
            raise self.failure(error) from error
        headers = [(name.lower(), value) for name, value in found.headers.multi_items()]
        if found.is_stream_consumed:  # a transport that has read and decompressed it
            headers = [pair for pair in headers if pair[0] != "content-encoding"]
        return Response(request, found.status_code, found.reason_phrase, headers, _Body(self, found))

    async def aclose(self) -> None:
        """Leave the user's client open."""

    def _merged(self, request: Request) -> Any:
        headers = [*request.headers, *_missing(request, "accept-encoding")]
        own_cookies = [value for name, value in headers if name.lower() == "cookie"]
        built = self._client.build_request(
            request.method, request.url, headers=_encoded(headers), content=request.content
        )
        # Cookies from earlier responses may belong to another caller.
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
        """Convert an error of the library."""
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
    """Return the raw body of a response, if its transport still has it."""

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
    """Return the module of a client: httpx and httpx2 have the same API."""
    for base in type(client).__mro__:
        name = base.__module__.partition(".")[0]
        if name in ("httpx2", "httpx"):
            return sys.modules[name]
    raise TypeError(f"A client must be an AsyncClient of httpx2 or httpx, not {type(client).__name__}")


def _missing(request: Request, *names: str) -> Headers:
    present = {name.lower() for name, _ in request.headers}
    return [(name, value) for name, value in DEFAULTS if name in names and name not in present]


def _encoded(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers]


def _exactly(built: Any, request: Request) -> Any:
    """Return the request with the exact target, which the library would normalize."""
    target = request.target.encode()
    if built.url.raw_path != target:
        built.extensions["target"] = target
    return built


REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})

_HARMLESS: Final = frozenset({"accept", "accept-encoding", "content-type", "user-agent"})
_ABOUT_THE_BODY: Final = frozenset({"content-type", "content-length", "content-encoding"})


async def follow(
    send: Callable[[Request], Awaitable[Response]],
    request: Request,
    keeps: Callable[[str, int], bool],
    most: int,
    statuses: Container[int] = REDIRECTS,
) -> Response:
    """Follow redirects and return the final response.

    `keeps` decides for the next URL and the status whether headers, including credentials, are kept; it raises if the URL
    must not be requested.
    """
    for _ in range(most + 1):
        response = await send(request)
        if response.status not in statuses:
            return response
        url = await _next_url(response)
        request = moved(request, url, response.status, keeps_headers=keeps(url, response.status))
    raise WebError("redirect", f"More than {most} redirects")


async def _next_url(response: Response) -> str:
    await response.close()
    location = response.header("location")
    if location is None:
        raise WebError("redirect", f"HTTP {response.status} is a redirect without a location")
    return joined(response.url, location)


def moved(request: Request, url: str, status: int, *, keeps_headers: bool) -> Request:
    """Return the request for another URL as the status requires, without credentials in the URL."""
    headers = request.headers
    becomes_get = (status == 303 and request.method != "HEAD") or (status in (301, 302) and request.method == "POST")
    if not keeps_headers:
        headers = [(name, value) for name, value in headers if name.lower() in _HARMLESS]
    if becomes_get:
        headers = [(name, value) for name, value in headers if name.lower() not in _ABOUT_THE_BODY]
    origin, target = split_url(url)
    scheme, _, authority = origin.partition("://")
    origin = request.origin if keeps_headers and "@" in request.origin else f"{scheme}://{authority.rpartition('@')[2]}"
    return Request(
        "GET" if becomes_get else request.method, origin, target, headers, None if becomes_get else request.content
    )
