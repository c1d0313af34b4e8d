"""A registry as an MCP server: over HTTP as an ASGI app (`to_mcp`), and on the standard streams (`serve_stdio`)."""

# Imports inside functions: a server on the standard streams starts without asyncio, HTTP, hashes and provenance.

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from enfold.surfaces.mcp.http import MCPApp, to_mcp
    from enfold.surfaces.mcp.settings import MCPSettings
    from enfold.surfaces.mcp.stdio import run_stdio, serve_stdio

__all__ = ["MCPApp", "MCPSettings", "run_stdio", "serve_stdio", "to_mcp"]

# Each is imported when it is first used: a server on the standard streams starts without what HTTP needs.
_PLACES = {
    "MCPApp": "http",
    "MCPSettings": "settings",
    "to_mcp": "http",
    "run_stdio": "stdio",
    "serve_stdio": "stdio",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
