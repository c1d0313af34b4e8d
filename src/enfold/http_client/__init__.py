"""The HTTP client of all sources, with limits: OpenAPI calls, documents, MCP over HTTP and OAuth use it."""

# Imports inside functions: a user's client does not need the built-in one, and ASCII names do not need idna.

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from enfold.errors import missing_package
from enfold.http_client.errors import WebError
from enfold.http_client.messages import Request, Response

if TYPE_CHECKING:
    from enfold.http_client.client import HttpxClient, WebClient
    from enfold.http_client.connection import Allows

    AnyClient: TypeAlias = WebClient | HttpxClient

__all__ = ["Request", "Response", "WebError", "open_client"]


def open_client(given: Any = None, allows: Allows | None = None) -> AnyClient:
    """Return an adapter for the user's httpx or httpx2 client, or the built-in client."""
    if given is not None:
        from enfold.http_client.client import HttpxClient

        return HttpxClient(given)
    try:
        from enfold.http_client.client import WebClient
    except ImportError:
        raise missing_package("A server at a URL requires httptools", "mcp") from None
    return WebClient(allows)
