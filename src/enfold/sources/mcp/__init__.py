"""MCP servers as a source: `async with from_mcp(command, url or configuration) as operations`."""

from enfold.sources.mcp.settings import Connection, Content
from enfold.sources.mcp.source import MCPOperations, from_mcp
from enfold.sources.options import MCPLimits

__all__ = ["Connection", "Content", "MCPLimits", "MCPOperations", "from_mcp"]
