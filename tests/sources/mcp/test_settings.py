"""What a user names as a server, read into values."""

from __future__ import annotations

from importlib import import_module
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


def test_the_path_of_a_configuration_is_refused_with_the_function_that_opens_it() -> None:
    with pytest.raises(ValueError, match=r"mcp\.json is a configuration: open it with ") as refused:
        read_servers("mcp.json")
    module, _, name = str(refused.value).rpartition(" ")[2].rpartition(".")
    assert callable(getattr(import_module(module), name))
