"""Other apps served below paths of this one, behind its checks of hosts and tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from enfold.surfaces.asgi import ABOVE, IDENTITY, IS_CLOSED, VERIFIER, ASGIApp, Scope, with_headers
from enfold.surfaces.authentication import Authentication
from enfold.surfaces.http.pages import OWN_PATHS, OWN_PREFIXES
from enfold.surfaces.http.stack import HTTPRequest
from enfold.surfaces.request import Request, Response
from enfold.surfaces.router import ALL_METHODS


class Mount:
    """An app at a path, and the steps before it."""

    __slots__ = ("_authentication", "_below", "_prefix", "app", "is_root")

    def __init__(self, prefix: str, app: ASGIApp, authentication: Authentication) -> None:
        self.app = app
        self._authentication = authentication
        self._prefix = prefix
        self._below = f"{prefix}/"
        self.is_root = not prefix

    def has(self, path: str) -> bool:
        """Whether a path leads to it; an app mounted at `/` gets what is not ours."""
        if path != self._prefix and not path.startswith(self._below):
            return False
        return not self.is_root or not (path.startswith(OWN_PREFIXES) or path in OWN_PATHS)

    async def forward(self, request: HTTPRequest) -> Response | None:
        """Let the app answer, after the checks of host, origin and token; its scope says who calls."""
        headers, exchange, hosts = request.headers, request.exchange, self._authentication.hosts
        exchange.extra_headers = hosts.check(exchange.scope, headers)
        if b"authorization" in headers:
            request.identity = await self._authentication.authenticate(exchange.scope, headers, exchange.receive)
        if request.method == "OPTIONS" and (preflight := hosts.preflight_headers(headers, ALL_METHODS)):
            return Response(b"", 204, [(b"allow", ", ".join(ALL_METHODS).encode()), *preflight])
        send = exchange.send if not exchange.extra_headers else with_headers(exchange.send, exchange.extra_headers)
        exchange.is_started = True  # from here on, the answer is the mounted app's
        await self.app(self._scope(exchange.scope, request), exchange.receive, send)
        return None

    def _scope(self, scope: Scope, request: Request) -> Scope:
        """Return the scope for a mounted app: its root, the caller, and whether callers need an identity."""
        authenticator = self._authentication.authenticator
        root = scope.get("root_path", "")
        return {
            **scope,
            "root_path": root + self._prefix,
            ABOVE: scope.get(ABOVE, root),
            IDENTITY: request.identity,
            VERIFIER: None if authenticator is None else authenticator.verifier,
            IS_CLOSED: self._authentication.is_closed,
        }


def find_mount(mounts: Iterable[Mount], path: str) -> Mount | None:
    """Return the app mounted at a path: the longest prefix wins."""
    for mount in mounts:
        if mount.has(path):
            return mount
    return None


def sorted_mounts(mounts: Mapping[str, ASGIApp]) -> list[tuple[str, ASGIApp]]:
    """Return apps by prefix, longest first."""
    prefixed = ((f"/{path.strip('/')}".rstrip("/"), app) for path, app in mounts.items())
    return sorted(prefixed, key=lambda mount: len(mount[0]), reverse=True)
