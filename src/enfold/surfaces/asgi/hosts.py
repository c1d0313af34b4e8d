"""Which hosts a request may name, which origins may send it, and what browsers are told of that.

It is the defence against pages that call a local server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

from enfold.surfaces.asgi.messages import Header

__all__ = ["HostRefusal", "Hosts"]

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
_MOST_REMEMBERED: Final = 64

_MAX_AGE: Final = b"600"
_REQUEST_HEADERS: Final = (
    b"Accept, Authorization, Content-Type, Enfold-Format, Enfold-Timeout-Ms, Last-Event-ID, X-Request-Id, "
    b"Enfold-Capture-Provenance, Idempotency-Key, Prefer, Mcp-Method, Mcp-Name, Mcp-Protocol-Version, Mcp-Session-Id"
)
_EXPOSED: Final = (
    b"X-Request-Id, Enfold-Code, Enfold-Warnings, Enfold-Truncated, Location, Preference-Applied, Retry-After, "
    b"Mcp-Session-Id"
)


class HostRefusal(NamedTuple):
    """Why a request is refused: by its host or its origin, and in a sentence."""

    reason: Literal["host", "origin"]
    sentence: str


class Hosts:
    """The names this server goes by; without a list those of the loopback, and the address it listens at."""

    def __init__(self, allowed: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self._allowed = tuple(host.lower() for host in allowed)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        self.has_origins = bool(self._origins)
        # Hosts that passed, as they were written: most requests name the same one.
        self.passed: set[bytes] = set()

    def refusal(self, scope: Mapping[str, Any], headers: Mapping[bytes, bytes]) -> HostRefusal | None:
        """Why a request is refused; None where it is not."""
        host = headers.get(b"host", b"")
        if host not in self.passed and not self._knows(host, scope.get("server")):
            return HostRefusal("host", f"This server does not go by the name {_shown(host)}")
        origin = headers.get(b"origin")
        if origin is not None and not self._admits(origin, host):
            return HostRefusal("origin", f"Pages of {_shown(origin)} may not call this server")
        return None

    def is_listed(self, origin: bytes) -> bool:
        """Whether pages of an origin were allowed to call by name."""
        return "*" in self._origins or origin.decode("latin-1").lower() in self._origins

    def cors_headers(self, headers: Mapping[bytes, bytes]) -> list[Header]:
        """What lets a page of a listed origin read the answer."""
        if not self.has_origins:
            return []
        origin, vary = headers.get(b"origin"), (b"vary", b"Origin")
        if origin is None or not self.is_listed(origin):
            return [vary]
        return [(b"access-control-allow-origin", origin), (b"access-control-expose-headers", _EXPOSED), vary]

    def preflight_headers(self, headers: Mapping[bytes, bytes], methods: Iterable[str]) -> list[Header]:
        """What a browser wants to know before it sends the real request."""
        if b"access-control-request-method" not in headers or not self.is_listed(headers.get(b"origin", b"")):
            return []
        return [
            (b"access-control-allow-methods", ", ".join(methods).encode()),
            (b"access-control-allow-headers", _REQUEST_HEADERS),
            (b"access-control-max-age", _MAX_AGE),
        ]

    def _knows(self, host: bytes, server: Any) -> bool:
        name = _name(host)
        if self._allowed:
            known = any(_matches(name, allowed) for allowed in self._allowed)
        else:
            known = name in LOOPBACK or (server is not None and name == _address(server[0]))
        if known and len(self.passed) < _MOST_REMEMBERED:
            self.passed.add(host)
        return known

    def _admits(self, origin: bytes, host: bytes) -> bool:
        return self.is_listed(origin) or origin.partition(b"://")[2].lower() == host.lower() != b""


def _name(host: bytes) -> str:
    """The name in a `Host` header, without its port."""
    text = host.decode("latin-1").lower()
    name, colon, port = text.rpartition(":")
    return name if colon and (port.isdigit() or not port) and not text.endswith("]") else text


def _address(address: str) -> str:
    return f"[{address}]" if ":" in address else address.lower()


def _matches(name: str, allowed: str) -> bool:
    return allowed in ("*", name) or (allowed.startswith("*.") and name.endswith(allowed[1:]))


def _shown(text: bytes) -> str:
    return ascii(text[:100].decode("latin-1"))
