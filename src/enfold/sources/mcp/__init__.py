"""MCP servers as a source: `async with from_mcp(command, url or configuration) as operations`."""

# Imports inside functions: the settings are read with every configuration, connections are opened only for MCP servers.

from typing import TYPE_CHECKING, Any

from enfold.sources.mcp.settings import Connection, Content
from enfold.sources.options import MCPLimits

if TYPE_CHECKING:
    from enfold.sources.mcp.source import MCPOperations, from_mcp

__all__ = ["Connection", "Content", "MCPLimits", "MCPOperations", "from_mcp"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from enfold.sources.mcp import source

    return getattr(source, name)
