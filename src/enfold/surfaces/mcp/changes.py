"""Telling clients what has changed: the lists of a server, and the resources they follow. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from msgspec import UNSET, UnsetType

from enfold.mcp.json_rpc import SUBSCRIPTION_KEY, RequestId, notification
from enfold.surfaces.mcp.catalog import Lists

KINDS: Final = frozenset({"tools", "prompts", "resources"})


class ChangeListener:
    """A client that is told of changes: of which lists, of which resources, and under which subscription."""

    __slots__ = ("_send", "id", "kinds", "may_hear_of", "uris")

    def __init__(
        self,
        send: Callable[[dict[str, Any]], None],
        kinds: Collection[str],
        uris: Collection[str],
        id: RequestId | UnsetType = UNSET,
        may_hear_of: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """`may_hear_of` is asked for the parts of a resource that have changed."""
        self._send = send
        self.kinds = kinds
        self.uris = uris
        self.id = id
        self.may_hear_of = may_hear_of

    def tell(self, method: str, params: dict[str, Any] | None = None) -> None:
        if self.id is not UNSET:
            params = {**(params or {}), "_meta": {SUBSCRIPTION_KEY: self.id}}
        self._send(notification(method, params))


class Changes:
    """Who listens to a server, and what they have been told."""

    def __init__(self, read_lists: Callable[[], Lists]) -> None:
        self._read_lists = read_lists
        self._told: Lists = {}
        self._listeners: set[ChangeListener] = set()
        self._is_telling = False
        # How a change is told: at once, until a transport with an event loop says otherwise.
        self.schedule: Callable[[Callable[[], None]], object] = lambda tell: tell()

    def listen(self, listener: ChangeListener) -> Callable[[], None]:
        """Tell a listener of every change from now on; the answer ends it."""
        if not self._listeners:
            self._told = self._read_lists()
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def resource_updated(self, uri: str, changed: str | None = None) -> None:
        """Tell everyone who follows a resource that it has changed, or that a part of it has."""
        for listener in list(self._listeners):
            if uri in listener.uris:
                is_part = changed is not None and changed != uri and listener.may_hear_of(changed)
                listener.tell("notifications/resources/updated", {"uri": changed if is_part else uri})

    def lists_changed(self) -> None:
        """Something was registered or removed, perhaps by another thread; it is told soon, and many changes as one."""
        if self._listeners and not self._is_telling:
            self._is_telling = True
            self.schedule(self._send_changes)

    def _send_changes(self) -> None:
        self._is_telling = False
        before, self._told = self._told, self._read_lists()
        for kind in [kind for kind, specs in self._told.items() if specs != before[kind]]:
            for listener in [each for each in list(self._listeners) if kind in each.kinds]:
                listener.tell(f"notifications/{kind}/list_changed")
