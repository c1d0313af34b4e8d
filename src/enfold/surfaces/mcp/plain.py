"""A plain call: a stateless `tools/call` that asks for nothing but its result, as nearly all do. It is read in one step."""

from __future__ import annotations

from collections.abc import Awaitable
from types import CoroutineType
from typing import Any, Final, Literal

import msgspec

from enfold.mcp.messages import CAPABILITIES_KEY, CLIENT_KEY, VERSION_KEY, RequestId
from enfold.mcp.revisions import STATELESS
from enfold.runtime import resume
from enfold.surfaces.mcp.reply import EVENTS
from enfold.surfaces.mcp.work import Receive

__all__ = ["Arriving", "PlainCall", "is_plain", "read_plain"]

_VERSIONS: Final = frozenset(revision.name.encode() for revision in STATELESS)


class _Meta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: str = msgspec.field(name=VERSION_KEY)
    capabilities: dict[str, Any] = msgspec.field(name=CAPABILITIES_KEY)
    client: dict[str, Any] = msgspec.field(name=CLIENT_KEY, default={})


class _Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    meta: _Meta = msgspec.field(name="_meta")
    arguments: dict[str, Any] = {}


class PlainCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The message of a plain call; one with any other field asks for more."""

    jsonrpc: Literal["2.0"]
    id: RequestId
    method: Literal["tools/call"]
    params: _Params


def is_plain(headers: dict[bytes, bytes]) -> bool:
    """Whether the headers may be those of a plain call, whose client prefers one message to a stream."""
    return (
        headers.get(b"mcp-method") == b"tools/call"
        and headers.get(b"mcp-protocol-version") in _VERSIONS
        and headers.get(b"content-type") == b"application/json"
        and headers.get(b"accept", EVENTS).startswith(b"application/json")
        and b"mcp-session-id" not in headers
    )


def read_plain(body: bytes, headers: dict[bytes, bytes]) -> PlainCall | None:
    """The plain call in a body, if it is one, and its headers repeat what is in it."""
    try:
        call = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    params = call.params
    is_repeated = (
        headers.get(b"mcp-name") == params.name.encode()
        and headers[b"mcp-protocol-version"] == params.meta.version.encode()
    )
    return call if is_repeated else None


_decode: Final = msgspec.json.Decoder(PlainCall).decode


class Arriving:
    """A request's body as far as it is here: nobody waits for the rest, and who reads it later gets all of it."""

    __slots__ = ("_first", "_message", "_receive")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._message: dict[str, Any] | None = None
        self._first: Awaitable[Any] | None = receive()
        if type(self._first) is CoroutineType:
            try:
                self._first = resume(self._first, self._first.send(None))
            except StopIteration as done:
                self._message, self._first = done.value, None

    @property
    def body(self) -> bytes | None:
        """The whole body, if it is here."""
        message = self._message
        is_whole = message is not None and not message.get("more_body") and message["type"] == "http.request"
        return message.get("body", b"") if message is not None and is_whole else None

    async def receive(self) -> Any:
        """What the server's own `receive` gives, from the beginning."""
        if self._first is not None:
            first, self._first = self._first, None
            return await first
        message, self._message = self._message, None
        return await self._receive() if message is None else message
