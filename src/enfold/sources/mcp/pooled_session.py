"""One shared session with a server: opened when it is needed, and opened again when it was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from enfold.errors import CallError
from enfold.sources.mcp.dispatcher import Notice
from enfold.sources.mcp.mcp_callers import MCPCaller
from enfold.sources.mcp.mcp_settings import ServerSettings
from enfold.sources.mcp.session import UpstreamSession, open_session
from enfold.sources.mcp.upstream_failures import closed_connection


class PooledSession:
    """The session that all calls to a server share, in one era of the protocol."""

    def __init__(
        self,
        settings: ServerSettings,
        source: MCPCaller,
        log_level: str,
        notice: Notice,
        on_reconnect: Callable[[UpstreamSession], Awaitable[None]],
        on_state: Callable[[], None],
        *,
        shows_output: bool,
    ) -> None:
        """`on_state` is called when the session was opened, or may have been lost.

        `shows_output` says that whoever opens it first may see what a process printed that cannot be started.
        """
        self._settings = settings
        self._source = source
        self._log_level = log_level
        self._notice = notice
        self._on_reconnect = on_reconnect
        self._on_state = on_state
        self.why = ""  # there is no session
        self._shows_output = shows_output
        self.current: UpstreamSession | None = None
        self._opening = asyncio.Lock()
        self._is_closed = False
        self._was_open = False

    @property
    def is_up(self) -> bool:
        return self.current is not None and self.current.is_open

    async def session(self) -> UpstreamSession:
        """The open session; many callers at once open it only once."""
        session = self.current
        if session is not None and session.is_open:
            return session
        async with self._opening:
            if self.current is not None and self.current.is_open:
                return self.current
            return await self._reopen()

    async def drop(self, session: UpstreamSession) -> None:
        """Close a session that is of no use any more; the next call opens another."""
        if self.current is session:
            self.current = None
            await session.close()

    async def close(self) -> None:
        self._is_closed = True
        session, self.current = self.current, None
        if session is not None:
            await session.close()

    async def _reopen(self) -> UpstreamSession:
        if self.current is not None:
            await self.drop(self.current)
        self._check_open()
        shows_output = self._shows_output and not self._was_open
        try:
            session = await open_session(self._settings, self._notice, self._source, shows_output=shows_output)
        except CallError as error:
            self._lose(error.message)
            raise
        session.when_lost(self._lose)
        try:
            self._check_open()
        except CallError:
            await session.close()
            raise
        self.current = session
        await session.listen()
        await session.hear_logs(self._log_level)
        if self._was_open:
            await self._on_reconnect(session)
        self._was_open = True
        self._on_state()
        return session

    def _lose(self, why: str) -> None:
        self.why = why
        self._on_state()

    def _check_open(self) -> None:
        if self._is_closed:
            raise closed_connection(self._settings.name)
