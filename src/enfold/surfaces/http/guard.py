"""Who may call over HTTP: the hosts and origins that are let in, and what a browser is told of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from enfold.errors import CallError
from enfold.surfaces.hosts import Headers, Hosts

__all__ = ["Guard", "Header"]

Header: TypeAlias = tuple[bytes, bytes]

_MAX_AGE: Final = b"600"
_METHODS: Final = b"GET, HEAD, POST, OPTIONS"
_REQUEST_HEADERS: Final = (
    b"Accept, Authorization, Content-Type, Enfold-Format, Enfold-Timeout-Ms, Last-Event-ID, X-Request-Id, "
    b"Enfold-Capture-Provenance, Mcp-Method, Mcp-Name, Mcp-Protocol-Version, Mcp-Session-Id"
)
_EXPOSED: Final = b"X-Request-Id, Enfold-Code, Enfold-Warnings, Enfold-Truncated, Retry-After, Mcp-Session-Id"


class Guard:
    """Keeps out who names another host or comes from another page, and tells browsers who may come in."""

    def __init__(self, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self._hosts = Hosts(hosts, origins)
        self.has_origins = self._hosts.has_origins
        self.passed = self._hosts.passed

    def check(self, scope: Mapping[str, Any], headers: Headers) -> None:
        """Refuse a request that names another host, or comes from a page of another origin."""
        refused = self._hosts.refusal(scope, headers)
        if refused is not None:
            raise CallError("ACCESS_DENIED", refused.sentence, {"reason": refused.reason})

    def cors_headers(self, headers: Headers) -> list[Header]:
        """What lets a page of a listed origin read the answer."""
        origin = headers.get(b"origin")
        vary = (b"vary", b"Origin")
        if origin is None or not self._hosts.is_listed(origin):
            return [vary]
        return [(b"access-control-allow-origin", origin), (b"access-control-expose-headers", _EXPOSED), vary]

    def preflight_headers(self, headers: Headers) -> list[Header]:
        """What a browser wants to know before it sends the real request."""
        if b"access-control-request-method" not in headers or not self._hosts.is_listed(headers.get(b"origin", b"")):
            return []
        return [
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-allow-headers", _REQUEST_HEADERS),
            (b"access-control-max-age", _MAX_AGE),
        ]
