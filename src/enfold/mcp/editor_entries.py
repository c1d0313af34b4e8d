"""MCP servers in the files of editors: the names of tables and keys, and the enabled entries. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

# Every editor has its own word for the same table, and for the same key.
TABLES: Final = ("mcpServers", "servers", "context_servers", "mcp_servers")
URL_KEYS: Final = ("url", "serverUrl", "httpUrl")


def is_enabled(entry: Any) -> bool:
    """Whether a server is to be opened; an entry that is no table is for its reader to refuse."""
    return not isinstance(entry, Mapping) or (entry.get("disabled") is not True and entry.get("enabled") is not False)
