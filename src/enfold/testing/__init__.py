"""One client per surface with the same methods, for the tests of a registry. No sockets, no processes.

`async with testing.http(registry) as client:` opens a client with `call`, `subscribe` and `list`; the other surfaces are
opened in the same way. `testing.open_client("http", registry)` selects the surface by its name in `SURFACES`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final, TypeAlias

from enfold.runtime.dependencies import override
from enfold.runtime.registry import Registry
from enfold.testing.asgi import HANDSHAKE, Conversation, HTTPClient, MCPClient, http, mcp
from enfold.testing.client import Client, Reply
from enfold.testing.in_process import calls, cgi, command_line, direct

__all__ = [
    "SURFACES",
    "Client",
    "Conversation",
    "HTTPClient",
    "MCPClient",
    "Reply",
    "calls",
    "cgi",
    "command_line",
    "direct",
    "http",
    "mcp",
    "open_client",
    "override",
]

Open: TypeAlias = Callable[..., AbstractAsyncContextManager[Client]]

# Register the client of a custom surface with `SURFACES["name"] = open_it`.
SURFACES: Final[dict[str, Open]] = {
    "direct": direct,
    "http": http,
    "mcp": mcp,
    "mcp_session": partial(mcp, revision=HANDSHAKE),
    "cgi": cgi,
    "command_line": command_line,
    "calls": calls,
}


def open_client(surface: str, registry: Registry, **options: Any) -> AbstractAsyncContextManager[Client]:
    """Open the test client of a surface by name; `options` are those of the function that opens it."""
    if surface not in SURFACES:
        raise ValueError(f"There is no surface {surface!r} to test: use one of {', '.join(SURFACES)}")
    return SURFACES[surface](registry, **options)
