"""Which hosts a request may name, and which origins may ask: the defence against pages that call a local server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from enfold.errors import CallError

__all__ = ["Guard", "Header"]

Header: TypeAlias = tuple[bytes, bytes]
Headers: TypeAlias = Mapping[bytes, bytes]

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")

_MOST_REMEMBERED: Final = 64
_MAX_AGE: Final = b"600"
_METHODS: Final = b"GET, HEAD, POST, OPTIONS"
_REQUEST_HEADERS: Final = (
    b"Accept, Authorization, Content-Type, Enfold-Format, Enfold-Timeout-Ms, Last-Event-ID, X-Request-Id, "
    b"Enfold-Capture-Provenance, Mcp-Method, Mcp-Name, Mcp-Protocol-Version, Mcp-Session-Id"
)
_EXPOSED: Final = b"X-Request-Id, Enfold-Code, Enfold-Warnings, Enfold-Truncated, Retry-After, Mcp-Session-Id"


class Guard:
    """Knows the hosts this server goes by, and the origins that may call it from a browser.

    Without a list the hosts are those of the loopback and the address the server itself listens at.
    """

    def __init__(self, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self._hosts = tuple(host.lower() for host in hosts)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        self.has_origins = bool(self._origins)
        # Hosts that passed, as they were written: most requests name the same one.
        self.passed: set[bytes] = set()

    def check(self, scope: Mapping[str, Any], headers: Headers) -> None:
        """Refuse a request that names another host, or comes from a page of another origin."""
        host = headers.get(b"host", b"")
        if host not in self.passed:
            self._check_host(host, scope.get("server"))
        origin = headers.get(b"origin")
        if origin is not None and not self._admits(origin, host):
            raise _denied(f"Pages of {_shown(origin)} may not call this server", "origin")

    def _check_host(self, host: bytes, server: Any) -> None:
        name = _host_name(host)
        if self._hosts:
            known = any(_matches(name, allowed) for allowed in self._hosts)
        else:
            known = name in LOOPBACK or (server is not None and name == _server_name(server[0]))
        if not known:
            raise _denied(f"This server does not go by the name {_shown(host)}", "host")
        if len(self.passed) < _MOST_REMEMBERED:
            self.passed.add(host)

    def _admits(self, origin: bytes, host: bytes) -> bool:
        return self._is_listed(origin) or origin.partition(b"://")[2].lower() == host.lower() != b""

    def _is_listed(self, origin: bytes) -> bool:
        return "*" in self._origins or origin.decode("latin-1").lower() in self._origins

    def cors_headers(self, headers: Headers) -> list[Header]:
        """What lets a page of a listed origin read the answer."""
        origin = headers.get(b"origin")
        vary = (b"vary", b"Origin")
        if origin is None or not self._is_listed(origin):
            return [vary]
        return [(b"access-control-allow-origin", origin), (b"access-control-expose-headers", _EXPOSED), vary]

    def preflight_headers(self, headers: Headers) -> list[Header]:
        """What a browser wants to know before it sends the real request."""
        if b"access-control-request-method" not in headers or not self._is_listed(headers.get(b"origin", b"")):
            return []
        return [
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-allow-headers", _REQUEST_HEADERS),
            (b"access-control-max-age", _MAX_AGE),
        ]


def _host_name(host: bytes) -> str:
    """The name in a `Host` header, without its port."""
    text = host.decode("latin-1").lower()
    name, colon, port = text.rpartition(":")
    return name if colon and (port.isdigit() or not port) and not text.endswith("]") else text


def _server_name(address: str) -> str:
    return f"[{address}]" if ":" in address else address.lower()


def _matches(name: str, allowed: str) -> bool:
    return allowed in ("*", name) or (allowed.startswith("*.") and name.endswith(allowed[1:]))


def _denied(message: str, reason: str) -> CallError:
    return CallError("ACCESS_DENIED", message, {"reason": reason})


def _shown(text: bytes) -> str:
    return ascii(text[:100].decode("latin-1"))
