"""The resources of one server that somebody follows: each is asked for once, whoever follows it and how many do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Final

from enfold.errors import CallError
from enfold.log import Log
from enfold.mcp.json_rpc import ProtocolError
from enfold.sources.mcp.session import UpstreamSession
from enfold.sources.mcp.upstream_failures import LostError, protocol_failure

PARTING: Final = 2.0  # seconds in which a server may take in that nobody follows a resource any more

log: Final = Log("enfold.mcp")


class ResourceFollowers:
    """Who follows which resource of a server; `open_session` gives the connection on which it is asked for."""

    def __init__(self, open_session: Callable[[], Awaitable[UpstreamSession]]) -> None:
        self._open_session = open_session
        self._followers: dict[str, list[_Follower]] = {}
        self._asked: dict[str, UpstreamSession] = {}
        self._asking = asyncio.Lock()

    async def follow(self, uri: str) -> AsyncGenerator[str]:
        """The URI at once, when the server has been asked for it; then that of every change of it, or below it."""
        follower = _Follower()
        self._followers.setdefault(uri, []).append(follower)
        try:
            await self._ask_for(uri)
            yield uri
            while True:
                yield await follower.next()
        finally:
            self._followers[uri].remove(follower)
            await self._let_go(uri)

    def hear(self, uri: object) -> None:
        """Tell the followers of a resource that the server says has changed."""
        if isinstance(uri, str):
            for followed, followers in self._followers.items():
                if _covers(followed, uri):
                    for follower in followers:
                        follower.hear(uri)

    async def take_up(self, session: UpstreamSession) -> None:
        """Subscribe again at a server that is back, and tell all followers of a change: they may have missed one."""
        for uri in [uri for uri, followers in self._followers.items() if followers]:
            try:
                await session.follow(uri)
            except (ProtocolError, LostError, CallError) as error:
                log.debug("%s cannot be followed any more: %s", uri, error)
                continue
            self._asked[uri] = session
            self.hear(uri)

    def close(self, reason: CallError) -> None:
        """End all followers, and tell them why."""
        for followers in self._followers.values():
            for follower in followers:
                follower.end(reason)

    async def _ask_for(self, uri: str) -> None:
        async with self._asking:
            session = await self._open_session()
            if self._asked.get(uri) is session:
                return
            try:
                await session.follow(uri)
            except ProtocolError as error:
                raise protocol_failure(error) from None
            except LostError as lost:
                raise lost.for_caller(idempotent=True) from None
            self._asked[uri] = session

    async def _let_go(self, uri: str) -> None:
        if self._followers.get(uri):
            return
        self._followers.pop(uri, None)
        session = self._asked.pop(uri, None)
        if session is not None and session.is_open:
            with suppress(ProtocolError, LostError, CallError, TimeoutError):
                async with asyncio.timeout(PARTING):
                    await session.unfollow(uri)


class _Follower:
    """One follower; several changes that they have not read yet count as one."""

    def __init__(self) -> None:
        self._changed: dict[str, None] = {}
        self._ended: CallError | None = None
        self._is_told = asyncio.Event()

    def hear(self, uri: str) -> None:
        self._changed[uri] = None
        self._is_told.set()

    def end(self, reason: CallError) -> None:
        self._ended = reason
        self._is_told.set()

    async def next(self) -> str:
        while not self._changed:
            if self._ended is not None:
                raise self._ended
            self._is_told.clear()
            await self._is_told.wait()
        uri = next(iter(self._changed))
        del self._changed[uri]
        return uri


def _covers(followed: str, changed: str) -> bool:
    """Whether a change concerns what is followed: itself, or a part of it, as the protocol allows a server to say."""
    return changed == followed or changed.startswith(f"{followed.rstrip('/')}/")
