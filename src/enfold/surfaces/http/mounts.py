"""Other apps served below paths of this one: how a request finds them, and how they see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from enfold.operation import Identity
from enfold.surfaces.asgi.messages import IDENTITY, ASGIApp, Header, Receive, Scope, Send

__all__ = ["Mount", "below", "close_websocket", "mount_of", "own_path", "with_headers"]

Mount: TypeAlias = tuple[str, ASGIApp]


def own_path(scope: Scope) -> str:
    """The path below the place where this app is itself mounted."""
    path: str = scope["path"]
    root = scope.get("root_path")
    return path.removeprefix(root) if root else path


def mount_of(mounts: Sequence[Mount], scope: Scope) -> Mount | None:
    """The mounted app a path leads to."""
    if not mounts:
        return None
    path = own_path(scope) if scope.get("root_path") else scope["path"]
    for mount in mounts:
        if path == mount[0] or path.startswith(f"{mount[0]}/"):
            return mount
    return None


def below(prefix: str, scope: Scope, identity: Identity | None) -> Scope:
    """The scope as a mounted app sees it: its own root, and who calls under `enfold.identity`."""
    return {**scope, "root_path": scope.get("root_path", "") + prefix, IDENTITY: identity}


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
