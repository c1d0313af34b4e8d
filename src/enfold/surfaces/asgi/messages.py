"""The messages of ASGI: the types of its three arguments, the headers of a request, and an answer in one piece."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, Final, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Any]]
Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]
Header: TypeAlias = tuple[bytes, bytes]
Headers: TypeAlias = dict[bytes, bytes]

# What an app that mounts others tells them: who calls, who says so, and whether who has no identity is to be refused.
IDENTITY: Final = "enfold.identity"
VERIFIER: Final = "enfold.verifier"
IS_CLOSED: Final = "enfold.is_closed"
ABOVE: Final = "enfold.above"  # the path below which the app lies that has mounted this one
JSON: Final[Header] = (b"content-type", b"application/json")
_BODILESS: Final = frozenset({204, 304})  # they have no body, whose length nobody may state


def header_table(scope: Scope) -> Headers:
    """The headers by name; one that comes in several lines is the list of them."""
    lines: Sequence[Header] = scope["headers"]
    headers: Headers = dict(lines)
    if len(headers) != len(lines):
        headers = {}
        for name, value in lines:
            headers[name] = headers[name] + b", " + value if name in headers else value
    return headers


def origin_of(scope: Scope, headers: Mapping[bytes, bytes]) -> str:
    """Where the client sees us, for whoever has checked the host."""
    return f"{scope.get('scheme', 'http')}://{headers.get(b'host', b'localhost').decode('latin-1')}"


def root_of(scope: Scope) -> str:
    """The path below which the client sees us, or the app that has mounted us."""
    root: str = scope.get(ABOVE, scope.get("root_path", ""))
    return root


async def until_disconnected(scope: Scope, headers: Headers, receive: Receive) -> None:
    """Drop what a refused request has sent, all but its host, and wait until its client disconnects."""
    host = headers.get(b"host", b"localhost")
    headers.clear()
    headers[b"host"] = host
    if isinstance(lines := scope["headers"], list):
        lines.clear()
    while not (await receive())["type"].endswith(".disconnect"):
        pass


async def respond(
    send: Send, status: int, body: bytes = b"", headers: Sequence[Header] = (), *, is_head: bool = False
) -> None:
    """Send a whole answer; to a HEAD request, all but its body."""
    length = () if status in _BODILESS else ((b"content-length", b"%d" % len(body)),)
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *length]})
    await send({"type": "http.response.body", "body": b"" if is_head else body})
