"""Other apps served below paths of this one: how a request finds them, and how they see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from enfold.identities.challenges import WELL_KNOWN
from enfold.operation import Identity
from enfold.surfaces.asgi.messages import IDENTITY, IS_CLOSED, ASGIApp, Header, Receive, Scope, Send

__all__ = ["PAGES", "Mount", "below", "close_websocket", "in_order", "mount_of", "own_path", "with_headers"]

Mount: TypeAlias = tuple[str, ASGIApp]

# The paths that an app has beside those of its operations, and their methods.
PAGES: Final = {
    "/healthz": ("GET", "HEAD", "OPTIONS"),
    "/readyz": ("GET", "HEAD", "OPTIONS"),
    "/openapi.json": ("GET", "HEAD", "OPTIONS"),
    "/call": ("POST", "OPTIONS"),
    "/operations": ("GET", "HEAD", "OPTIONS"),
}
OWN_PREFIXES: Final = ("/functions/", WELL_KNOWN)


def own_path(scope: Scope) -> str:
    """The path below the place where this app is itself mounted."""
    path: str = scope["path"]
    root = scope.get("root_path")
    return path.removeprefix(root) if root else path


def mount_of(mounts: Sequence[Mount], scope: Scope) -> Mount | None:
    """The mounted app a path leads to: the longest prefix counts, and one mounted at `/` gets what nobody else has."""
    if not mounts:
        return None
    path = own_path(scope) if scope.get("root_path") else scope["path"]
    for mount in mounts:
        if path == mount[0] or path.startswith(f"{mount[0]}/"):
            return mount if mount[0] or not _is_ours(path) else None
    return None


def in_order(mounts: Mapping[str, ASGIApp]) -> tuple[Mount, ...]:
    """Mounts by their prefixes, the longest first."""
    prefixed = ((f"/{path.strip('/')}".rstrip("/"), app) for path, app in mounts.items())
    return tuple(sorted(prefixed, key=lambda mount: len(mount[0]), reverse=True))


def _is_ours(path: str) -> bool:
    return path.startswith(OWN_PREFIXES) or path in PAGES


def below(prefix: str, scope: Scope, identity: Identity | None, *, is_closed: bool) -> Scope:
    """The scope as a mounted app sees it: its own root, who calls, and whether nobody comes in without an identity."""
    root = scope.get("root_path", "") + prefix
    return {**scope, "root_path": root, IDENTITY: identity, IS_CLOSED: is_closed}


def with_headers(send: Send, headers: Sequence[Header]) -> Send:
    """A way out that adds headers to whatever answer goes through it."""
    if not headers:
        return send

    async def send_with_headers(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *headers]}
        await send(message)

    return send_with_headers


async def close_websocket(receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.close", "code": 1008})
