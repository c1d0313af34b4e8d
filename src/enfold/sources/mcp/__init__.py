"""MCP servers as a source: `async with from_mcp(command, url or configuration) as operations`."""

from enfold.sources.mcp.mcp_limits import Limits
from enfold.sources.mcp.servers import MCPOperations, from_mcp

__all__ = ["Limits", "MCPOperations", "from_mcp"]
