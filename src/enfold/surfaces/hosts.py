"""Which hosts a request may name, which origins may send it, and the CORS headers.

This prevents pages of other sites from calling a local server.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from enfold.errors import CallError
from enfold.operations.access import words

if TYPE_CHECKING:
    from enfold.surfaces.asgi import Header  # CGI starts without asyncio

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
_MAX_CACHED: Final = 64
_PLAIN_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]*")
_OTHER_SITES: Final = frozenset({b"cross-site", b"same-site"})

_MAX_AGE: Final = b"600"
_REQUEST_HEADERS: Final = (
    b"Accept, Authorization, Content-Type, Enfold-Answers, Enfold-Client, Enfold-Format, Enfold-Select, Enfold-Timeout-Ms, Last-Event-ID, "
    b"X-Request-Id, Enfold-Capture-Provenance, Idempotency-Key, Prefer, Mcp-Method, Mcp-Name, Mcp-Protocol-Version, Mcp-Session-Id"
)
_EXPOSED: Final = (
    b"X-Request-Id, Enfold-Code, Enfold-Format, Enfold-Shape, Enfold-Warnings, Enfold-Truncated, Enfold-Run-Id, Location, Preference-Applied, "
    b"Retry-After, Mcp-Session-Id"
)


class Hosts:
    """The names this server goes by; without a list those of the loopback, and the address it listens at."""

    def __init__(self, allowed: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self._allowed = tuple(host.lower() for host in words(allowed))
        self._origins = frozenset(origin.lower().rstrip("/") for origin in words(origins))
        self._known: set[bytes] = set()  # hosts as they were written: most requests name the same one

    def check(self, scope: Mapping[str, Any], headers: Mapping[bytes, bytes]) -> Sequence[Header]:
        """Refuse a request that names another host, or comes from a page of another origin. Returns the CORS headers."""
        host = headers.get(b"host", b"")
        if host not in self._known and not self._is_allowed_host(host, scope.get("server")):
            name = _name(host)[:100]
            option = f"--allow-host {name}" if _PLAIN_NAME.fullmatch(name) else "--allow-host"
            message = f"Host {name!a} is not allowed. Add it with {option}."
            raise CallError("ACCESS_DENIED", message, {"reason": "host"})
        origin = headers.get(b"origin")
        if origin is not None and not self._is_allowed_origin(origin, host):
            raise CallError(
                "ACCESS_DENIED",
                f"Origin {_quoted(origin)} is not allowed. Add it with --allow-origin.",
                {"reason": "origin"},
            )
        return self._cors_headers(origin) if self._origins else ()

    def _cors_headers(self, origin: bytes | None) -> list[Header]:
        vary = (b"vary", b"Origin")
        if origin is None or not self.is_listed(origin):
            return [vary]
        return [(b"access-control-allow-origin", origin), (b"access-control-expose-headers", _EXPOSED), vary]

    def check_site(self, headers: Mapping[bytes, bytes]) -> None:
        """Refuse what a page of another site makes a browser request: images, scripts, frames and links have no Origin.

        Browsers say where a request comes from (`Sec-Fetch-Site`) over HTTPS and to the loopback alone.
        """
        site = headers.get(b"sec-fetch-site")
        if site in _OTHER_SITES and not self.is_listed(headers.get(b"origin", b"")):
            message = "Requests from pages of other sites are not allowed. Allow an origin with --allow-origin."
            raise CallError("ACCESS_DENIED", message, {"reason": "origin"})

    def is_listed(self, origin: bytes) -> bool:
        """Whether pages of an origin were allowed to call by name."""
        return "*" in self._origins or origin.decode("latin-1").lower() in self._origins

    def preflight_headers(self, headers: Mapping[bytes, bytes], methods: Iterable[str]) -> list[Header]:
        """Return the headers that a browser asks for before the actual request (CORS preflight)."""
        if b"access-control-request-method" not in headers or not self.is_listed(headers.get(b"origin", b"")):
            return []
        return [
            (b"access-control-allow-methods", ", ".join(methods).encode()),
            (b"access-control-allow-headers", _REQUEST_HEADERS),
            (b"access-control-max-age", _MAX_AGE),
        ]

    def _is_allowed_host(self, host: bytes, server: Any) -> bool:
        name = _name(host)
        if self._allowed:
            is_allowed = any(_matches(name, allowed) for allowed in self._allowed)
        else:
            is_allowed = name in LOOPBACK or (server is not None and name == _address(server[0]))
        if is_allowed and len(self._known) < _MAX_CACHED:
            self._known.add(host)
        return is_allowed

    def _is_allowed_origin(self, origin: bytes, host: bytes) -> bool:
        return self.is_listed(origin) or origin.partition(b"://")[2].lower() == host.lower() != b""


def _name(host: bytes) -> str:
    text = host.decode("latin-1").lower()
    name, colon, port = text.rpartition(":")
    return name if colon and (port.isdigit() or not port) and not text.endswith("]") else text


def _address(address: str) -> str:
    return f"[{address}]" if ":" in address else address.lower()


def _matches(name: str, allowed: str) -> bool:
    return allowed in ("*", name) or (allowed.startswith("*.") and name.endswith(allowed[1:]))


def _quoted(text: bytes) -> str:
    return ascii(text[:100].decode("latin-1"))
