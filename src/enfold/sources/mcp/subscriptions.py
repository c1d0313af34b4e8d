"""The resources of one server that callers follow: each is subscribed to once, however many follow it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Final

import msgspec

from enfold.errors import CallError
from enfold.mcp.json_rpc import ProtocolError
from enfold.observability.log import Log
from enfold.sources.mcp.failures import LostError, protocol_failure
from enfold.sources.mcp.session import Session

UNSUBSCRIBE_SECONDS: Final = 2.0  # that a server may take to unsubscribe

log: Final = Log("enfold.mcp")


class ResourceSubscriptions(msgspec.Struct, eq=False):
    """Who follows which resource of a server; `open_session` gives the session on which it is subscribed to."""

    _open_session: Callable[[], Awaitable[Session]]
    _followers: dict[str, list[_Follower]] = {}
    _sessions: dict[str, Session] = {}  # on which each resource is subscribed to
    _subscribing: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)

    async def follow(self, uri: str) -> AsyncGenerator[str]:
        """The URI as soon as the server is subscribed to; then that of every change of it, or below it."""
        follower = _Follower()
        self._followers.setdefault(uri, []).append(follower)
        try:
            await self._subscribe(uri)
            yield uri
            while True:
                yield await follower.next_change()
        finally:
            self._followers[uri].remove(follower)
            await self._unsubscribe_unfollowed(uri)

    def tell_change(self, uri: str) -> None:
        """Notify the followers of a changed resource."""
        for followed, followers in self._followers.items():
            if _covers(followed, uri):
                for follower in followers:
                    follower.add_change(uri)

    async def resubscribe(self, session: Session) -> None:
        """Subscribe again at a server that is back, and tell all followers of a change: they may have missed one."""
        for uri in [uri for uri, followers in self._followers.items() if followers]:
            try:
                await session.follow(uri)
            except (ProtocolError, LostError, CallError) as error:
                log.debug("%s can no longer be watched: %s", uri, error)
                continue
            self._sessions[uri] = session
            self.tell_change(uri)

    def close(self, reason: CallError) -> None:
        """End all followers, and tell them why."""
        for followers in self._followers.values():
            for follower in followers:
                follower.end(reason)

    async def _subscribe(self, uri: str) -> None:
        async with self._subscribing:
            session = await self._open_session()
            if self._sessions.get(uri) is session:
                return
            try:
                await session.follow(uri)
            except ProtocolError as error:
                raise protocol_failure(error) from None
            except LostError as lost:
                raise lost.for_caller(idempotent=True) from None
            self._sessions[uri] = session

    async def _unsubscribe_unfollowed(self, uri: str) -> None:
        """Unsubscribe from a resource without followers; a new follower subscribes again afterwards."""
        with suppress(ProtocolError, LostError, CallError, TimeoutError):
            async with asyncio.timeout(UNSUBSCRIBE_SECONDS), self._subscribing:
                if not self._followers.get(uri):
                    self._followers.pop(uri, None)
                    session = self._sessions.pop(uri, None)
                    if session is not None and session.is_open:
                        await session.unfollow(uri)


class _Follower(msgspec.Struct, eq=False):
    """One follower; several changes of a resource that they have not read yet count as one."""

    _changes: dict[str, None] = {}
    _end: CallError | None = None
    _has_news: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    def add_change(self, uri: str) -> None:
        self._changes[uri] = None
        self._has_news.set()

    def end(self, reason: CallError) -> None:
        self._end = reason
        self._has_news.set()

    async def next_change(self) -> str:
        while not self._changes:
            if self._end is not None:
                raise self._end
            self._has_news.clear()
            await self._has_news.wait()
        uri = next(iter(self._changes))
        del self._changes[uri]
        return uri


def _covers(followed: str, changed: str) -> bool:
    """Whether a change concerns what is followed: itself, or a part of it, as the protocol allows."""
    return changed == followed or changed.startswith(f"{followed.rstrip('/')}/")
