"""A protected MCP server and its authorization server, on free ports of this machine."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import uvicorn

from enfold import Identity, OperationRegistry, Tokens
from enfold.surfaces.mcp import to_mcp

ops = OperationRegistry()


@ops.query(access={"required_scopes": ["vault:read"]})
async def treasure() -> str:
    """List the contents of the vault."""
    return "a ruby ring"


class Authority(BaseHTTPRequestHandler):
    """An authorization server with one user, Ann, who consents to everything. A real one asks her and validates the request."""

    def do_GET(self) -> None:
        page = urlsplit(self.path)
        if page.path == "/.well-known/oauth-authorization-server":
            self._reply(200, self._described())
        elif page.path == "/authorize":
            asked = {name: values[0] for name, values in parse_qs(page.query).items()}
            back = urlencode({"code": "one-time-code", "state": asked["state"], "iss": self._issuer()})
            self._reply(302, {}, location=f"{asked['redirect_uri']}?{back}")
        else:
            self._reply(404, {})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/register":
            self._reply(201, {"client_id": "enfold-at-home"})
        else:
            self._reply(200, {"access_token": "ann-token", "token_type": "Bearer", "expires_in": 3600})

    def _issuer(self) -> str:
        return f"http://{self.headers['host']}"

    def _described(self) -> dict[str, Any]:
        return {
            "issuer": self._issuer(),
            "authorization_endpoint": f"{self._issuer()}/authorize",
            "token_endpoint": f"{self._issuer()}/token",
            "registration_endpoint": f"{self._issuer()}/register",
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none"],
        }

    def _reply(self, status: int, value: Any, location: str = "") -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        if location:
            self.send_header("location", location)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Suppress the access log."""


@contextmanager
def open_town() -> Iterator[str]:
    """Run both servers, and yield the URL of the protected one."""
    authority = ThreadingHTTPServer(("127.0.0.1", 0), Authority)
    issuer = f"http://127.0.0.1:{authority.server_port}"
    tokens = Tokens({"ann-token": Identity("ann", frozenset({"vault:read"}))})
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(to_mcp(ops, tokens=tokens, authorization_servers=[issuer]), log_level="error")
    )
    threads = [
        threading.Thread(target=authority.serve_forever, daemon=True),
        threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
    finally:
        authority.shutdown()
        authority.server_close()
        server.should_exit = True
        for thread in threads:
            thread.join()
        listening.close()
