"""Notifications of changes: of a server's lists, and of the resources that clients follow. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from enfold.errors import CallError
from enfold.mcp.json_rpc import SUBSCRIPTION_KEY, OutgoingMessage, RequestId, RPCNotification, fields_of
from enfold.mcp.messages import Params, Updated
from enfold.mcp.results import TaskDetails
from enfold.observability.log import Log
from enfold.operations import Context
from enfold.runtime.registry import Registry
from enfold.surfaces.mcp.catalog import Lists
from enfold.surfaces.mcp.uris import with_prefix, without_prefix

if TYPE_CHECKING:
    import asyncio

KINDS: Final = frozenset({"tools", "prompts", "resources"})


class ChangeListener(msgspec.Struct, frozen=True, eq=False):
    """A client that is notified of changes: of which lists, of which resources, and under which subscription."""

    _send: Callable[[OutgoingMessage], None]
    kinds: Collection[str]
    uris: Collection[str]
    id: RequestId | UnsetType = UNSET
    may_be_told: Callable[[str], bool] = lambda _: False  # whether part of a followed resource may be named to it

    def notify(self, method: str, params: Params | TaskDetails | UnsetType = UNSET) -> None:
        if self.id is not UNSET:
            params = msgspec.structs.replace(params or Params(), meta={SUBSCRIPTION_KEY: self.id})
        self._send(RPCNotification(method, params))


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
        """Notify a listener of every change. Returns a function that stops this."""
        if not self._listeners:
            self._last_lists = self._read_lists()
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def resource_updated(self, uri: str, changed: str | None = None) -> None:
        """Notify the followers of a resource that it, or a part of it, has changed."""
        for listener in list(self._listeners):
            if uri in listener.uris:
                is_part = changed is not None and changed != uri and listener.may_be_told(changed)
                listener.notify("notifications/resources/updated", Updated(changed if is_part and changed else uri))

    def lists_changed(self) -> None:
        """Notify soon of registered or removed operations, combining many changes. Thread-safe."""
        if self._listeners and not self._is_scheduled:
            self._is_scheduled = True
            self.schedule(self._send_changes)

    def _send_changes(self) -> None:
        self._is_scheduled = False
        before, self._last_lists = self._last_lists, self._read_lists()
        for kind in [kind for kind, specs in self._last_lists.items() if specs != before[kind]]:
            for listener in [each for each in list(self._listeners) if kind in each.kinds]:
                listener.notify(f"notifications/{kind}/list_changed")


Release: TypeAlias = Callable[[], None]
TellUpdate: TypeAlias = Callable[[str, str], None]

START_TIMEOUT: Final = 5.0  # seconds that a client waits for the source to begin, before the subscription is confirmed
BACKOFF: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)  # seconds before a source that is gone is tried again


class Following:
    """The resources that have an operation which reports their changes, for as long as a client follows them."""

    def __init__(self, registry: Registry, updated: TellUpdate) -> None:
        """`updated` is called with the followed URI and the changed one: itself, or a part."""
        self._registry = registry
        self._updated = updated
        self._followed: dict[str, _Followed] = {}

    async def follow(self, uri: str, operation_id: str, prefix: str = "") -> Release:
        """Follow a resource by the operation that reports its changes; what is returned ends it.

        `prefix` stands before what its source calls it.
        """
        import asyncio

        followed = self._followed.get(uri)
        if followed is None:
            started = asyncio.Event()
            relay = asyncio.get_running_loop().create_task(self._relay(uri, operation_id, prefix, started))
            followed = self._followed[uri] = _Followed(uri, relay, started)
        followed.clients += 1
        try:
            async with asyncio.timeout(START_TIMEOUT):
                await followed.started.wait()
        except TimeoutError:
            pass  # it goes on trying
        except BaseException:  # the client has left
            self._release(followed)
            raise
        return lambda: self._release(followed)

    def stop(self) -> None:
        """Follow nothing any more."""
        for followed in self._followed.values():
            followed.relay.cancel()
        self._followed = {}

    def _release(self, followed: _Followed) -> None:
        followed.clients -= 1
        if followed.clients == 0 and self._followed.get(followed.uri) is followed:
            del self._followed[followed.uri]
            followed.relay.cancel()

    async def _relay(self, uri: str, operation_id: str, prefix: str, started: asyncio.Event) -> None:
        """Pass on changes until it is cancelled; a source that is gone may come back."""
        import asyncio

        own_uri, failures = without_prefix(uri, prefix), 0  # in a row
        while True:
            try:
                # The caller's access was checked; the subscription itself has no caller.
                async with aclosing(self._registry.subscribe(operation_id, {"uri": own_uri}, Context())) as changes:
                    async for change in changes:
                        failures = 0
                        # The first says that it has begun; if not for the first time, something may have happened meanwhile.
                        if started.is_set():
                            changed = fields_of(change.data).get("uri")
                            changed_uri = changed if isinstance(changed, str) else own_uri
                            self._updated(uri, with_prefix(changed_uri, prefix))
                        started.set()
            except CallError as error:
                if not started.is_set():
                    Log("enfold.mcp").warning("%s cannot be followed: %s", uri, error.message)
            started.set()
            await asyncio.sleep(BACKOFF[min(failures, len(BACKOFF) - 1)])
            failures += 1


class _Followed(msgspec.Struct, eq=False):
    """One resource that is followed at its source, and how many clients follow it here."""

    uri: str
    relay: asyncio.Task[None]
    started: asyncio.Event
    clients: int = 0
