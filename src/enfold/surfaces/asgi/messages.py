"""The messages of ASGI: the types of its three arguments, the headers of a request, and an answer in one piece."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Final, TypeAlias

__all__ = [
    "IDENTITY",
    "IS_CLOSED",
    "JSON",
    "ASGIApp",
    "Header",
    "Headers",
    "Receive",
    "Scope",
    "Send",
    "header_table",
    "respond",
]

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Any]]
Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]
Header: TypeAlias = tuple[bytes, bytes]
Headers: TypeAlias = dict[bytes, bytes]

# Where an app that mounts another one says who calls.
# What an app that mounts others tells them: who calls, and whether who has no identity is to be refused.
IDENTITY: Final = "enfold.identity"
IS_CLOSED: Final = "enfold.is_closed"
JSON: Final[Header] = (b"content-type", b"application/json")


def header_table(scope: Scope) -> Headers:
    """The headers by name; one that comes in several lines is the list of them."""
    lines: Sequence[Header] = scope["headers"]
    headers: Headers = dict(lines)
    if len(headers) != len(lines):
        headers = {}
        for name, value in lines:
            headers[name] = headers[name] + b", " + value if name in headers else value
    return headers


async def respond(send: Send, status: int, body: bytes = b"", headers: Sequence[Header] = ()) -> None:
    """Send a whole answer."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})
