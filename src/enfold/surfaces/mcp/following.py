"""Resources that clients follow here, followed in turn where they come from: once, however many clients there are."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError
from enfold.log import Log
from enfold.operation import Context
from enfold.registry import Registry
from enfold.surfaces.mcp.resource_uris import with_prefix, without_prefix

if TYPE_CHECKING:
    import asyncio

Release: TypeAlias = Callable[[], None]

BEGINNING: Final = 5.0  # seconds that a client waits for the source to begin, before it is told that we follow
WAITS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)  # seconds before a source that is gone is tried again


class Following:
    """The resources that have an operation which tells of their changes, for as long as a client follows them."""

    def __init__(self, registry: Registry, updated: Callable[[str, str], None]) -> None:
        """`updated` is called with the URI that is followed, and with the one that has changed: itself, or a part."""
        self._registry = registry
        self._updated = updated
        self._followed: dict[str, _Followed] = {}

    async def follow(self, uri: str, operation_id: str, prefix: str = "") -> Release:
        """Follow a resource by the operation that tells of its changes; the answer ends it.

        `prefix` stands before what its source calls it.
        """
        followed = self._followed.get(uri)
        if followed is None:
            followed = self._followed[uri] = self._begin(uri, operation_id, prefix)
        followed.clients += 1
        try:
            await followed.wait()
        except BaseException:  # the client has left
            self._release(uri, followed)
            raise
        return lambda: self._release(uri, followed)

    def stop(self) -> None:
        """Let go of everything."""
        for followed in self._followed.values():
            followed.task.cancel()
        self._followed = {}

    def _begin(self, uri: str, operation_id: str, prefix: str) -> _Followed:
        import asyncio

        begun = asyncio.Event()
        return _Followed(asyncio.get_running_loop().create_task(self._carry(uri, operation_id, prefix, begun)), begun)

    async def _carry(self, uri: str, operation_id: str, prefix: str, begun: asyncio.Event) -> None:
        """Pass on changes until the last client leaves; a source that is gone may come back."""
        import asyncio

        for wait in chain(WAITS, repeat(WAITS[-1])):
            try:
                await self._carry_once(uri, operation_id, prefix, begun)
            except CallError as error:
                if not begun.is_set():
                    _log_failure(uri, error)
            begun.set()
            await asyncio.sleep(wait)

    async def _carry_once(self, uri: str, operation_id: str, prefix: str, begun: asyncio.Event) -> None:
        own_uri = without_prefix(uri, prefix)
        # The caller may follow it, which was checked; here nobody in particular does.
        async with aclosing(self._registry.subscribe(operation_id, {"uri": own_uri}, Context())) as changes:
            async for change in changes:
                # The first says that it has begun; if not for the first time, something may have happened meanwhile.
                if begun.is_set():
                    self._updated(uri, with_prefix(_changed(change, own_uri), prefix))
                begun.set()

    def _release(self, uri: str, followed: _Followed) -> None:
        followed.clients -= 1
        if followed.clients == 0 and self._followed.get(uri) is followed:
            del self._followed[uri]
            followed.task.cancel()


class _Followed:
    """One resource, and how many clients follow it."""

    __slots__ = ("_begun", "clients", "task")

    def __init__(self, task: asyncio.Task[None], begun: asyncio.Event) -> None:
        self.task = task
        self.clients = 0
        self._begun = begun

    async def wait(self) -> None:
        import asyncio

        try:
            async with asyncio.timeout(BEGINNING):
                await self._begun.wait()
        except TimeoutError:
            return  # it goes on trying


def _changed(change: ResponseEnvelope[Any], followed: str) -> str:
    uri = change.data.get("uri") if isinstance(change.data, dict) else None
    return uri if isinstance(uri, str) else followed


def _log_failure(uri: str, error: CallError) -> None:
    Log("enfold.mcp").warning("%s cannot be followed: %s", uri, error.message)
