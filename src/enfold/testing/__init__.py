"""One client per surface with the same verbs, for the tests of a registry. No sockets, no processes.

`async with testing.http(registry) as client:` gives a client with `call`, `subscribe` and `list`; the other surfaces are
opened alike. `testing.open_client("http", registry)` takes the surface by its name in `SURFACES`.
"""

from enfold.testing.asgi_client import Conversation, HTTPClient, http
from enfold.testing.by_surface import SURFACES, open_client
from enfold.testing.cgi_client import cgi
from enfold.testing.in_process import calls, direct
from enfold.testing.mcp_client import MCPClient, mcp
from enfold.testing.replies import Client, Reply
from enfold.testing.shell_client import command_line

__all__ = [
    "SURFACES",
    "Client",
    "Conversation",
    "HTTPClient",
    "MCPClient",
    "Reply",
    "calls",
    "cgi",
    "command_line",
    "direct",
    "http",
    "mcp",
    "open_client",
]
