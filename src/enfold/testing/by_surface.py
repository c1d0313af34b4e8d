"""The clients by the names of their surfaces: `open_client("http", registry)`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final, TypeAlias

from enfold.registry import Registry
from enfold.testing.asgi_client import http
from enfold.testing.cgi_client import cgi
from enfold.testing.in_process import calls, direct
from enfold.testing.mcp_client import HANDSHAKE, mcp
from enfold.testing.replies import Client
from enfold.testing.shell_client import command_line

__all__ = ["SURFACES", "Open", "open_client"]

Open: TypeAlias = Callable[..., AbstractAsyncContextManager[Client]]

# Open for more: the client of a surface of one's own is `SURFACES["name"] = open_it`.
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
    """The client of a surface by its name; `options` are those of the function that opens it."""
    if surface not in SURFACES:
        raise ValueError(f"There is no surface {surface!r} to test: use one of {', '.join(SURFACES)}")
    return SURFACES[surface](registry, **options)
