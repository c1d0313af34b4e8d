"""Notifications of changes: of a server's lists, and of the resources that clients follow. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from msgspec import UNSET, UnsetType

from enfold.mcp.json_rpc import SUBSCRIPTION_KEY, RequestId, notification
from enfold.surfaces.mcp.catalog import Lists

KINDS: Final = frozenset({"tools", "prompts", "resources"})


class ChangeListener:
    """A client that is notified of changes: of which lists, of which resources, and under which subscription."""

    __slots__ = ("_send", "id", "kinds", "may_be_told", "uris")

    def __init__(
        self,
        send: Callable[[dict[str, Any]], None],
        kinds: Collection[str],
        uris: Collection[str],
        id: RequestId | UnsetType = UNSET,
        may_be_told: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """`may_be_told` says whether a part of a followed resource may be named to the client."""
        self._send = send
        self.kinds = kinds
        self.uris = uris
        self.id = id
        self.may_be_told = may_be_told

    def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        if self.id is not UNSET:
            params = {**(params or {}), "_meta": {SUBSCRIPTION_KEY: self.id}}
        self._send(notification(method, params))


class Changes:
    """Who listens to a server, and the lists as they were last told of."""

    def __init__(self, read_lists: Callable[[], Lists]) -> None:
        self._read_lists = read_lists
        self._last_lists: Lists = {}
        self._listeners: set[ChangeListener] = set()
        self._is_scheduled = False
        # How notifications are sent: at once, until a transport with an event loop says otherwise.
        self.schedule: Callable[[Callable[[], None]], object] = lambda run: run()

    def listen(self, listener: ChangeListener) -> Callable[[], None]:
        """Notify a listener of every change from now on; what is returned ends it."""
        if not self._listeners:
            self._last_lists = self._read_lists()
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def resource_updated(self, uri: str, changed: str | None = None) -> None:
        """Notify everyone who follows a resource that it has changed, or that a part of it has."""
        for listener in list(self._listeners):
            if uri in listener.uris:
                is_part = changed is not None and changed != uri and listener.may_be_told(changed)
                listener.notify("notifications/resources/updated", {"uri": changed if is_part else uri})

    def lists_changed(self) -> None:
        """Notify soon that something was registered or removed, perhaps by another thread: many changes as one."""
        if self._listeners and not self._is_scheduled:
            self._is_scheduled = True
            self.schedule(self._send_changes)

    def _send_changes(self) -> None:
        self._is_scheduled = False
        before, self._last_lists = self._last_lists, self._read_lists()
        for kind in [kind for kind, specs in self._last_lists.items() if specs != before[kind]]:
            for listener in [each for each in list(self._listeners) if kind in each.kinds]:
                listener.notify(f"notifications/{kind}/list_changed")
