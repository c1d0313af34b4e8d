"""The session that all calls to a server share: opened by whichever transport and revision the server speaks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import msgspec

from enfold.errors import CallError
from enfold.mcp.json_rpc import METHOD_NOT_FOUND, UNSUPPORTED_VERSION, ProtocolError, RPCNotification, fields_of
from enfold.mcp.messages import Initialize, Params, read_loosely
from enfold.mcp.results import DiscoverResult, InitializeResult
from enfold.mcp.revisions import HANDSHAKE, KNOWN, LATEST, LATEST_HANDSHAKE, Revision
from enfold.observability.log import Log
from enfold.operations import Context
from enfold.operations.questions import EVERY_QUESTION
from enfold.sources.mcp.callers import MCPCaller
from enfold.sources.mcp.failures import LostError, closed_connection, protocol_failure
from enfold.sources.mcp.http import HTTPConnection, Web, open_event_stream
from enfold.sources.mcp.session import Notice, Session, client_info
from enfold.sources.mcp.settings import Address, Command, Dialect, ServerSettings
from enfold.sources.mcp.stdio import start_process

# The revision that we and a server have agreed on, and what the server said of itself meanwhile.
Agreement: TypeAlias = tuple[Revision, InitializeResult | DiscoverResult]

log: Final = Log("enfold.mcp")

# Statuses after which no other transport is tried: the address is right, and refuses.
_FINAL_STATUSES: Final = (401, 403, 429, 503)


class PooledSession:
    """The session that all calls to a server share, in one era of the protocol; opened with the first call, and again."""

    def __init__(
        self,
        settings: ServerSettings,
        notice: Notice,
        on_reconnect: Callable[[Session], Awaitable[None]],
        on_state: Callable[[], None],
        *,
        shows_output: bool,
    ) -> None:
        """`on_state` is called when the session was opened, or may have been lost.

        `shows_output`: the first to open it sees what a process printed that cannot be started.
        """
        self._settings = settings
        self._source = MCPCaller(Context(), settings.connection)  # answers what belongs to no call
        self._notice = notice
        self._on_reconnect = on_reconnect
        self._on_state = on_state
        self.why = ""  # there is no session
        self._shows_output = shows_output
        self.current: Session | None = None
        self._opening = asyncio.Lock()
        self._is_closed = False
        self._was_open = False

    @property
    def is_up(self) -> bool:
        return self.current is not None and self.current.is_open

    async def session(self) -> Session:
        """The open session; many callers at once open it only once."""
        session = self.current
        if session is not None and session.connection.is_open:
            return session
        async with self._opening:
            return self.current if self.current is not None and self.current.is_open else await self._reopen()

    async def drop(self, session: Session) -> None:
        """Close a session that is of no use any more; the next call opens another."""
        if self.current is session:
            self.current = None
            await session.close()

    async def close(self) -> None:
        self._is_closed = True
        session, self.current = self.current, None
        if session is not None:
            await session.close()

    async def _reopen(self) -> Session:
        if self.current is not None:
            await self.drop(self.current)
        self._check_open()
        try:
            session = await self._open()
        except CallError as error:
            self._lose(error.message)
            raise
        session.on_loss = self._lose
        try:
            self._check_open()
        except CallError:
            await session.close()
            raise
        self.current = session
        await session.listen()
        await session.set_log_level(self._settings.connection.log_level)
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

    # --- opening

    async def _open(self) -> Session:
        """Reach the server and agree with it; UNAVAILABLE where that fails or takes too long."""
        settings, server = self._settings, self._settings.server
        try:
            async with asyncio.timeout(settings.limits.connect):
                return await (self._start(server) if isinstance(server, Command) else self._reach(server))
        except TimeoutError:
            message = f"{settings.name} did not respond within {settings.limits.connect:g} seconds"
            raise CallError("UNAVAILABLE", message, {"reason": "handshake"}) from None
        except LostError as lost:
            failure, told = lost.for_caller(idempotent=True), ""
            if lost.output and self._shows_output and not self._was_open:
                told = f": {lost.output}"
            elif lost.output:
                log.warning("%s: %s", failure.message, lost.output)
            raise CallError(failure.code, f"{failure.message}{told}", failure.details, failure.retryable) from None
        except ProtocolError as error:
            message, failure = f"{settings.name} rejected the handshake: {error.message}", protocol_failure(error)
            raise CallError("UNAVAILABLE", message, failure.details) from None

    async def _start(self, command: Command) -> Session:
        protocol = self._settings.connection.protocol
        try:
            return await self._over_pipes(command, protocol)
        except LostError:
            if protocol != "auto":
                raise
        # Some servers end when the first message is none they know.
        other = LATEST if self._settings.handshake_first else LATEST_HANDSHAKE
        return await self._over_pipes(command, other.name)

    async def _over_pipes(self, command: Command, protocol: Dialect) -> Session:
        session = self._new_session()
        await start_process(command, session)
        return await _begin(session, protocol, handshake_first=self._settings.handshake_first)

    async def _reach(self, address: Address) -> Session:
        protocol = self._settings.connection.protocol
        if address.transport == "sse":
            return await self._over_event_stream(address)
        try:
            session = self._new_session()
            HTTPConnection(Web(address, self._settings), session)
            return await _begin(session, protocol)
        except (CallError, ProtocolError) as error:
            if address.transport == "http" or protocol == LATEST.name or not _may_be_older(error):
                raise
            refused = error
        try:
            return await self._over_event_stream(address)
        except (CallError, LostError):
            raise refused from None

    async def _over_event_stream(self, address: Address) -> Session:
        session = self._new_session()
        await open_event_stream(Web(address, self._settings), session)
        return await _begin(session, LATEST_HANDSHAKE.name)

    def _new_session(self) -> Session:
        settings = self._settings
        return Session(settings.name, self._notice, self._source, settings.limits, settings.secrets)


def _may_be_older(error: Exception) -> bool:
    """Whether an address refused as one does that only knows the oldest transport."""
    status = error.details.get("status") if isinstance(error, CallError) else None
    return isinstance(status, int) and 400 <= status < 500 and status not in _FINAL_STATUSES


# --- revisions ----------------------------------------------------------------------------------------------------


async def _begin(session: Session, protocol: Dialect, *, handshake_first: bool = False) -> Session:
    try:
        if protocol == "auto" and handshake_first:
            agreement = await _negotiate_from_handshake(session)
        else:
            agreement = await _negotiate(session, protocol)
    except BaseException:
        await session.close()
        raise
    session.agree(*agreement)
    return session


async def _negotiate(session: Session, protocol: Dialect) -> Agreement:
    """The newest revision if the server knows it, else the handshake of the older ones."""
    if protocol != "auto":
        revision = _revision(protocol)
        return await (_discover(session) if revision.is_stateless else _shake_hands(session, revision))
    discovery = asyncio.ensure_future(_discover(session))
    try:
        async with asyncio.timeout(session.limits.probe):
            return await asyncio.shield(discovery)
    except (TimeoutError, ProtocolError):
        return await _handshake_beside(session, discovery)
    except CallError as error:
        if error.details.get("status") in _FINAL_STATUSES:
            raise
        return await _handshake_beside(session, discovery)
    finally:
        discovery.cancel()


async def _handshake_beside(session: Session, discovery: asyncio.Future[Agreement]) -> Agreement:
    """The handshake, unless the server was only slow and now answers the newest revision's question after all."""
    handshake = asyncio.ensure_future(_shake_hands(session, LATEST_HANDSHAKE))
    try:
        if not discovery.done():
            await asyncio.wait((discovery, handshake), return_when=asyncio.FIRST_COMPLETED)
            if discovery.done() and discovery.exception() is None:
                return discovery.result()
        return await handshake
    except ProtocolError as error:
        if error.code not in (UNSUPPORTED_VERSION, METHOD_NOT_FOUND):
            raise
    finally:
        handshake.cancel()
    # It was only slow to answer the first question, and knows no handshake.
    return await _discover(session)


async def _negotiate_from_handshake(session: Session) -> Agreement:
    """The handshake if the server knows it, else the newest revision."""
    try:
        return await _shake_hands(session, LATEST_HANDSHAKE)
    except ProtocolError as error:
        refusal = error
    try:
        return await _discover(session)
    except ProtocolError:
        raise refusal from None


async def _discover(session: Session) -> Agreement:
    try:
        answer = await _ask_for_versions(session)
    except ProtocolError as error:
        supported = fields_of(error.data).get("supported")
        if error.code != UNSUPPORTED_VERSION or not isinstance(supported, list) or LATEST.name not in supported:
            raise
        answer = await _ask_for_versions(session)  # it knows the revision after all
    if LATEST.name not in answer.supported_versions:
        raise ProtocolError(UNSUPPORTED_VERSION, f"The server does not support {LATEST.name}")
    return LATEST, answer


async def _ask_for_versions(session: Session) -> DiscoverResult:
    session.speak(LATEST)
    answer = await session.request("server/discover", Params())
    return read_loosely(answer, DiscoverResult) or DiscoverResult()


async def _shake_hands(session: Session, revision: Revision) -> Agreement:
    session.speak(None)
    # All kinds of questions: they are passed on to the caller. In the newest revision each request names the caller's.
    params = Initialize(revision.name, dict(EVERY_QUESTION), client_info())
    answer = read_loosely(await session.request("initialize", params), InitializeResult)
    if answer is None:
        raise ProtocolError(UNSUPPORTED_VERSION, "The server did not send a protocol version")
    agreed = _revision(answer.protocol_version)
    session.speak(agreed)
    await session.connection.send(RPCNotification("notifications/initialized"))
    return agreed, answer


def _revision(name: str) -> Revision:
    """The revision of a name; one that we do not know is taken for the last before it that we do."""
    older = [revision for revision in HANDSHAKE if revision.name <= name] or HANDSHAKE[:1]
    return KNOWN.get(name) or msgspec.structs.replace(older[-1], name=name)
