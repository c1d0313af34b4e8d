"""MCP servers as a source: `async with from_mcp(command, url or configuration) as operations`."""

from enfold.sources.limits import MCPLimits
from enfold.sources.mcp.settings import Connection, Content
from enfold.sources.mcp.source import MCPOperations, from_mcp

__all__ = ["Connection", "Content", "MCPLimits", "MCPOperations", "from_mcp"]
