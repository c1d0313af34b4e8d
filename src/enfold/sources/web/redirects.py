"""Redirects: where one leads, what the next request is, and how many there may be."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container
from typing import Final

from enfold.sources.web.http_messages import Request, Response
from enfold.sources.web.urls import joined, split_url
from enfold.sources.web.web_error import WebError

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
    """The response at the end of all redirects.

    `keeps` tells of the next address and the status whether it gets the same headers as the one before, which
    credentials are among; it raises where that address is not asked at all.
    """
    for _ in range(most + 1):
        response = await send(request)
        if response.status not in statuses:
            return response
        url = await _next_url(response)
        request = moved(request, url, response.status, keeps_headers=keeps(url, response.status))
    raise WebError("redirect", f"More than {most} redirects")


async def _next_url(response: Response) -> str:
    """Where a redirect leads; it is of no more use then."""
    await response.close()
    location = response.header("location")
    if location is None:
        raise WebError("redirect", f"HTTP {response.status} is a redirect, but does not say where to")
    return joined(response.url, location)


def moved(request: Request, url: str, status: int, *, keeps_headers: bool) -> Request:
    """The request at another address, as the status asks for it; a user name in a URL is not carried over."""
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
