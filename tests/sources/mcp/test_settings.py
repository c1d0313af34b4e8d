"""What a user names as a server, read into values."""

from __future__ import annotations

from typing import Any

import pytest

from enfold.sources.mcp.settings import read_servers


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"command": "npx", "args": "-y server"}, '"args" must be a list of strings'),
        ({"command": "npx", "env": ["KEY=value"]}, '"env" must be an object of strings'),
        ({"url": "https://mcp.example.org", "headers": "x"}, '"headers" must be an object of strings'),
        ({"mcpServers": {"files": "npx files"}}, "The entry of a server must be an object, not 'npx files'"),
        ({"mcpServers": {"files": {}}}, 'A server needs "command" or "url"'),
    ],
    ids=["args", "env", "headers", "entry", "empty"],
)
def test_an_entry_that_cannot_be_read_says_what_it_should_be(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        read_servers(entry)
