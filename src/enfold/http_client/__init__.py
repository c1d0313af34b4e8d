"""One bounded HTTP client below all sources: OpenAPI calls, documents, MCP over HTTP and OAuth go through it."""

# Imports inside functions: a user's own client needs none of ours, and names in plain ASCII no idna.

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from enfold.errors import CallError
from enfold.http_client.errors import WebError
from enfold.http_client.messages import Request, Response
from enfold.version import install_command

if TYPE_CHECKING:
    from enfold.http_client.client import HttpxClient, WebClient
    from enfold.http_client.connection import Allows

    AnyClient: TypeAlias = WebClient | HttpxClient

__all__ = ["Request", "Response", "WebError", "open_client"]


def open_client(given: Any = None, allows: Allows | None = None) -> AnyClient:
    """The user's httpx or httpx2 client behind our verbs, or our own; what neither needs is not imported."""
    if given is not None:
        from enfold.http_client.client import HttpxClient

        return HttpxClient(given)
    try:
        from enfold.http_client.client import WebClient
    except ImportError:
        message = f"A server at a URL needs httptools: {install_command('mcp')}"
        raise CallError("UNAVAILABLE", message, retryable=False) from None
    return WebClient(allows)
