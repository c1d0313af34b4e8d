"""Resources that clients follow here, followed in turn where they come from: once, however many clients there are."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from typing import Final, TypeAlias

from enfold.errors import CallError
from enfold.log import Log
from enfold.operation import Context
from enfold.registry import Registry
from enfold.surfaces.mcp.resource_uris import with_prefix, without_prefix

Release: TypeAlias = Callable[[], None]
Updated: TypeAlias = Callable[[str, str], None]

START_TIMEOUT: Final = 5.0  # seconds that a client waits for the source to begin, before it is told that we follow
BACKOFF: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)  # seconds before a source that is gone is tried again


class Following:
    """The resources that have an operation which tells of their changes, for as long as a client follows them."""

    def __init__(self, registry: Registry, updated: Updated) -> None:
        """`updated` is called with the URI that is followed, and with the one that has changed: itself, or a part."""
        self._registry = registry
        self._updated = updated
        self._followed: dict[str, _Followed] = {}

    async def follow(self, uri: str, operation_id: str, prefix: str = "") -> Release:
        """Follow a resource by the operation that tells of its changes; what is returned ends it.

        `prefix` stands before what its source calls it.
        """
        followed = self._followed.get(uri)
        if followed is None:
            followed = self._followed[uri] = _Followed(self._registry, self._updated, uri, operation_id, prefix)
        followed.clients += 1
        try:
            await followed.wait_for_start()
        except BaseException:  # the client has left
            self._release(followed)
            raise
        return lambda: self._release(followed)

    def stop(self) -> None:
        """Follow nothing any more."""
        for followed in self._followed.values():
            followed.task.cancel()
        self._followed = {}

    def _release(self, followed: _Followed) -> None:
        followed.clients -= 1
        if followed.clients == 0 and self._followed.get(followed.uri) is followed:
            del self._followed[followed.uri]
            followed.task.cancel()


class _Followed:
    """One resource that is followed at its source, and how many clients follow it here."""

    def __init__(self, registry: Registry, updated: Updated, uri: str, operation_id: str, prefix: str) -> None:
        import asyncio

        self._registry = registry
        self._updated = updated
        self.uri = uri
        self._operation_id = operation_id
        self._prefix = prefix
        self.clients = 0
        self._started = asyncio.Event()
        self._failures = 0  # in a row
        self.task = asyncio.get_running_loop().create_task(self._relay_changes())

    async def wait_for_start(self) -> None:
        import asyncio

        try:
            async with asyncio.timeout(START_TIMEOUT):
                await self._started.wait()
        except TimeoutError:
            return  # it goes on trying

    async def _relay_changes(self) -> None:
        """Pass on changes until it is cancelled; a source that is gone may come back."""
        import asyncio

        while True:
            try:
                await self._relay_until_end()
            except CallError as error:
                if not self._started.is_set():
                    Log("enfold.mcp").warning("%s cannot be followed: %s", self.uri, error.message)
            self._started.set()
            await asyncio.sleep(BACKOFF[min(self._failures, len(BACKOFF) - 1)])
            self._failures += 1

    async def _relay_until_end(self) -> None:
        own_uri = without_prefix(self.uri, self._prefix)
        # The caller may follow it, which was checked; here nobody in particular does.
        async with aclosing(self._registry.subscribe(self._operation_id, {"uri": own_uri}, Context())) as changes:
            async for change in changes:
                self._failures = 0
                # The first says that it has begun; if not for the first time, something may have happened meanwhile.
                if self._started.is_set():
                    changed = change.data.get("uri") if isinstance(change.data, dict) else None
                    changed_uri = changed if isinstance(changed, str) else own_uri
                    self._updated(self.uri, with_prefix(changed_uri, self._prefix))
                self._started.set()
