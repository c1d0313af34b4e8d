"""MCP servers as a source: `async with from_mcp(command, url or configuration) as operations`."""

# Imports inside functions: a server that is a process needs no HTTP, one without a login no OAuth, a plain result no format.

from enfold.sources.mcp.mcp_settings import MCPLimits
from enfold.sources.mcp.servers import MCPOperations, from_mcp

__all__ = ["MCPLimits", "MCPOperations", "from_mcp"]
