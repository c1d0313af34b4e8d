"""What makes a request plain, as nearly all are: nothing in it asks for more than a result."""

from __future__ import annotations

from typing import Final

from enfold.surfaces.http.exchange import Scope
from enfold.surfaces.http.guard import Guard
from enfold.surfaces.http.routes import Route, Routes
from enfold.surfaces.reading import CAPTURE_HEADER

__all__ = ["plain_route"]

# Each of these asks for something: to be somebody, to be answered in another way, or in some time.
_SPECIAL: Final = frozenset(
    {
        b"authorization",
        b"content-encoding",
        b"enfold-format",
        b"enfold-timeout-ms",
        b"origin",
        b"x-request-id",
        CAPTURE_HEADER,
    }
)
_ACCEPTED: Final = (None, b"*/*", b"application/json")
_UNKNOWN_LENGTH: Final = b"9" * 20


def plain_route(scope: Scope, routes: Routes, guard: Guard, digits: int) -> Route | None:
    """The operation that a plain request calls, or None; the length of its body is known, and has at most some digits."""
    route = routes.known.get(scope.get("path", ""))
    if route is None or route.execute is None or scope.get("method") != "POST" or scope["query_string"]:
        return None
    headers = dict(scope["headers"])
    given = headers.get
    if (
        given(b"content-type") == b"application/json"
        and given(b"host") in guard.passed
        and given(b"accept") in _ACCEPTED
        and len(given(b"content-length", _UNKNOWN_LENGTH)) <= digits
        and _SPECIAL.isdisjoint(headers)
    ):
        return route
    return None
