"""Other apps served below paths of this one: how a request finds them, and how they see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from enfold.auth.challenges import WELL_KNOWN
from enfold.auth.tokens import Verifier
from enfold.operations import Identity
from enfold.surfaces.asgi import ABOVE, IDENTITY, IS_CLOSED, VERIFIER, ASGIApp, Header, Scope, Send

Mount: TypeAlias = tuple[str, ASGIApp]

# The paths that an app has beside those of its operations, and their methods.
PAGES: Final = {
    "/healthz": ("GET", "HEAD", "OPTIONS"),
    "/readyz": ("GET", "HEAD", "OPTIONS"),
    "/openapi.json": ("GET", "HEAD", "OPTIONS"),
    "/call": ("POST", "OPTIONS"),
    "/operations": ("GET", "HEAD", "OPTIONS"),
}
# `/healthz` under the name that other frameworks give it; unlike `PAGES`, an app mounted at `/` has it first.
HEALTH: Final = "/health"
OWN_PREFIXES: Final = ("/functions/", WELL_KNOWN)


def own_path(scope: Scope) -> str:
    """The path below the place where this app is itself mounted."""
    path: str = scope["path"]
    root = scope.get("root_path")
    return path.removeprefix(root) if root else path


def find_mount(mounts: Sequence[Mount], scope: Scope) -> Mount | None:
    """The mounted app a path leads to: the longest prefix counts, and one mounted at `/` gets what nobody else has."""
    if not mounts:
        return None
    path = own_path(scope) if scope.get("root_path") else scope["path"]
    for mount in mounts:
        if path == mount[0] or path.startswith(f"{mount[0]}/"):
            return mount if mount[0] or not _is_own_path(path) else None
    return None


def sorted_mounts(mounts: Mapping[str, ASGIApp]) -> tuple[Mount, ...]:
    """Mounts by their prefixes, the longest first."""
    prefixed = ((f"/{path.strip('/')}".rstrip("/"), app) for path, app in mounts.items())
    return tuple(sorted(prefixed, key=lambda mount: len(mount[0]), reverse=True))


def _is_own_path(path: str) -> bool:
    return path.startswith(OWN_PREFIXES) or path in PAGES


def mounted_scope(
    prefix: str, scope: Scope, identity: Identity | None, verifier: Verifier | None, *, is_closed: bool
) -> Scope:
    """The scope as a mounted app sees it: its own root, who calls, and whether nobody comes in without an identity."""
    root = scope.get("root_path", "")
    mounted = {"root_path": root + prefix, ABOVE: scope.get(ABOVE, root)}
    return {**scope, **mounted, IDENTITY: identity, VERIFIER: verifier, IS_CLOSED: is_closed}


def with_headers(send: Send, headers: Sequence[Header]) -> Send:
    """A `send` that adds headers to the answer."""

    async def send_with_headers(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *headers]}
        await send(message)

    return send_with_headers
