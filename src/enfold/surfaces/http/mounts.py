"""Other apps served below paths of this one, behind its checks of hosts and tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from enfold.surfaces.asgi import ASGIApp
from enfold.surfaces.authentication import Authentication
from enfold.surfaces.http.pages import OWN_PATHS, OWN_PREFIXES
from enfold.surfaces.http.stack import Authenticate, CheckHosts, Forward
from enfold.surfaces.router import Handler


class Mount:
    """An app at a path, and the steps before it."""

    __slots__ = ("_below", "_prefix", "app", "handle")

    def __init__(self, prefix: str, app: ASGIApp, authentication: Authentication) -> None:
        forward: Handler = Forward(prefix, app, authentication)
        if authentication.authenticator is not None:
            forward = Authenticate(authentication, forward, forward)
        self.app = app
        self.handle = CheckHosts(authentication.hosts, forward)
        self._prefix = prefix
        self._below = f"{prefix}/"

    def has(self, path: str) -> bool:
        """Whether a path leads to it; an app mounted at `/` gets what is not ours."""
        if path != self._prefix and not path.startswith(self._below):
            return False
        return self._prefix != "" or not (path.startswith(OWN_PREFIXES) or path in OWN_PATHS)


def find_mount(mounts: Iterable[Mount], path: str) -> Mount | None:
    """The app that a path leads to: the longest prefix counts."""
    for mount in mounts:
        if mount.has(path):
            return mount
    return None


def sorted_mounts(mounts: Mapping[str, ASGIApp]) -> list[tuple[str, ASGIApp]]:
    """Apps by their prefixes, the longest first."""
    prefixed = ((f"/{path.strip('/')}".rstrip("/"), app) for path, app in mounts.items())
    return sorted(prefixed, key=lambda mount: len(mount[0]), reverse=True)
