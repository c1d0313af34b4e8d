"""A session with a server: opened by whichever transport and revision it speaks, then used for requests and subscriptions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Final

import msgspec

import enfold
from enfold.errors import CallError
from enfold.mcp.json_rpc import (
    CAPABILITIES_KEY,
    CLIENT_KEY,
    LOG_LEVEL_KEY,
    METHOD_NOT_FOUND,
    UNSUPPORTED_VERSION,
    VERSION_KEY,
    ProtocolError,
    RPCNotification,
    fields_of,
)
from enfold.mcp.messages import (
    Initialize,
    Listen,
    Params,
    SetLevel,
    Subscribe,
    WantedNotifications,
    read_loosely,
)
from enfold.mcp.results import DiscoverResult, InitializeResult
from enfold.mcp.revisions import HANDSHAKE, KNOWN, LATEST, LATEST_HANDSHAKE, Revision, urgency_of
from enfold.observability.log import Log
from enfold.operations import Context
from enfold.operations.questions import EVERY_QUESTION
from enfold.sources.mcp.callers import LISTEN, MCPCaller
from enfold.sources.mcp.dispatcher import Dispatcher, LostError, Notice, closed_connection, protocol_failure
from enfold.sources.mcp.http import HTTPConnection, Web, open_event_stream
from enfold.sources.mcp.settings import Address, Command, Dialect, ServerSettings
from enfold.sources.mcp.stdio import start_process

log: Final = Log("enfold.mcp")

SETUP_SECONDS: Final = 2.0  # that a server may take to set its log level, or to confirm a subscription

# Statuses after which no other transport is tried: the address is right, and refuses.
_FINAL_STATUSES: Final = (401, 403, 429, 503)


class UpstreamSession:
    """One open session, in an agreed revision."""

    def __init__(self, dispatcher: Dispatcher, revision: Revision, answer: InitializeResult | DiscoverResult) -> None:
        """`answer` is what the server said of itself when it was first asked."""
        self.connection = dispatcher.connection
        self.revision = revision
        self._dispatcher = dispatcher
        dispatcher.takes_turns = not revision.is_stateless and not dispatcher.connection.has_call_streams
        self.capabilities = answer.capabilities
        self.instructions = answer.instructions or ""
        self._log_level: str | None = None  # that was set at an older server
        self._followed: dict[str, asyncio.Task[Any]] = {}

    @property
    def is_open(self) -> bool:
        return self.connection.is_open

    def when_lost(self, callback: Callable[[str], None]) -> None:
        """Call back with the reason when the connection is lost."""
        self._dispatcher.on_loss = callback

    def request(
        self,
        method: str,
        params: Params,
        caller: MCPCaller | None = None,
        *,
        meta: Mapping[str, Any] = {},
        capabilities: Mapping[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        begun: asyncio.Event | None = None,
    ) -> Awaitable[dict[str, Any]]:
        """The result of a request; where its caller listens, the server is asked for progress and log messages.

        `meta` is passed on; `capabilities` are what the server may ask, in a revision in which each request says so.
        """
        if self.revision.is_stateless:
            meta = {**meta, **_stateless_meta(self.revision, capabilities or {})}
            if caller is not None and caller.log_level is not None:
                meta[LOG_LEVEL_KEY] = caller.log_level
        return self._dispatcher.call(method, params, caller, meta=meta, headers=headers, begun=begun)

    async def set_log_level(self, level: str) -> None:
        """Set the log level of an older server; in the newest revision each request names it."""
        is_enough = self._log_level is not None and urgency_of(self._log_level) <= urgency_of(level)
        if self.revision.is_stateless or "logging" not in self.capabilities or is_enough:
            return
        self._log_level = level
        try:
            async with asyncio.timeout(SETUP_SECONDS):
                await self.request("logging/setLevel", SetLevel(level))
        except (TimeoutError, ProtocolError, CallError, LostError) as error:
            log.debug("%s did not change its log level: %s", self._dispatcher.name, error)

    async def listen(self) -> None:
        """Subscribe to changes of the server's lists."""
        if self.revision.is_stateless:
            self._dispatcher.spawn(self._keep_listening(WantedNotifications.of(self.capabilities)))
            return
        open_stream = getattr(self.connection, "listen", None)
        if open_stream is not None:
            await open_stream()

    async def follow(self, uri: str) -> None:
        """Subscribe to changes of a resource."""
        if not self.revision.is_stateless:
            await self.request("resources/subscribe", Subscribe(uri))
            return
        begun = asyncio.Event()
        wanted = WantedNotifications.of((), [uri])
        self._followed[uri] = self._dispatcher.spawn(self._keep_listening(wanted, begun))
        with suppress(TimeoutError):  # a server that does not confirm may still have begun
            async with asyncio.timeout(SETUP_SECONDS):
                await begun.wait()

    async def unfollow(self, uri: str) -> None:
        if not self.revision.is_stateless:
            await self.request("resources/unsubscribe", Subscribe(uri))
            return
        following = self._followed.pop(uri, None)
        if following is not None:
            following.cancel()
            await asyncio.wait({following})

    async def _keep_listening(self, wanted: WantedNotifications, begun: asyncio.Event | None = None) -> None:
        wait = 1.0
        while self.is_open:
            try:
                await self.request(LISTEN, Listen(wanted), begun=begun)
            except (ProtocolError, CallError) as error:
                log.debug("%s does not report changes: %s", self._dispatcher.name, error)
                break
            except LostError:
                wait = min(wait * 2, 60.0)
            await asyncio.sleep(wait)
        if begun is not None:
            begun.set()  # release the waiter

    async def close(self) -> None:
        self._dispatcher.close_turns(closed_connection(self._dispatcher.name))
        await self.connection.close()


class PooledSession:
    """The session that all calls to a server share, in one era of the protocol; opened with the first call, and again."""

    def __init__(
        self,
        settings: ServerSettings,
        notice: Notice,
        on_reconnect: Callable[[UpstreamSession], Awaitable[None]],
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
        if session is not None and session.connection.is_open:
            return session
        async with self._opening:
            return self.current if self.current is not None and self.current.is_open else await self._reopen()

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
        try:
            session = await self._open()
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

    async def _open(self) -> UpstreamSession:
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

    async def _start(self, command: Command) -> UpstreamSession:
        protocol = self._settings.connection.protocol
        try:
            return await self._over_pipes(command, protocol)
        except LostError:
            if protocol != "auto":
                raise
        # Some servers end when the first message is none they know.
        other = LATEST if self._settings.handshake_first else LATEST_HANDSHAKE
        return await self._over_pipes(command, other.name)

    async def _over_pipes(self, command: Command, protocol: Dialect) -> UpstreamSession:
        dispatcher = self._dispatcher()
        await start_process(command, dispatcher)
        return await _begin(dispatcher, protocol, handshake_first=self._settings.handshake_first)

    async def _reach(self, address: Address) -> UpstreamSession:
        protocol = self._settings.connection.protocol
        if address.transport == "sse":
            return await self._over_event_stream(address)
        try:
            dispatcher = self._dispatcher()
            HTTPConnection(Web(address, self._settings), dispatcher)
            return await _begin(dispatcher, protocol)
        except (CallError, ProtocolError) as error:
            if address.transport == "http" or protocol == LATEST.name or not _may_be_older(error):
                raise
            refused = error
        try:
            return await self._over_event_stream(address)
        except (CallError, LostError):
            raise refused from None

    async def _over_event_stream(self, address: Address) -> UpstreamSession:
        dispatcher = self._dispatcher()
        await open_event_stream(Web(address, self._settings), dispatcher)
        return await _begin(dispatcher, LATEST_HANDSHAKE.name)

    def _dispatcher(self) -> Dispatcher:
        settings = self._settings
        return Dispatcher(settings.name, self._notice, self._source, settings.limits, settings.secrets)


def _may_be_older(error: Exception) -> bool:
    """Whether an address refused as one does that only knows the oldest transport."""
    status = error.details.get("status") if isinstance(error, CallError) else None
    return isinstance(status, int) and 400 <= status < 500 and status not in _FINAL_STATUSES


# --- revisions ----------------------------------------------------------------------------------------------------


async def _begin(dispatcher: Dispatcher, protocol: Dialect, *, handshake_first: bool = False) -> UpstreamSession:
    try:
        if protocol == "auto" and handshake_first:
            return await _negotiate_from_handshake(dispatcher)
        return await _negotiate(dispatcher, protocol)
    except BaseException:
        await dispatcher.connection.close()
        raise


async def _negotiate(dispatcher: Dispatcher, protocol: Dialect) -> UpstreamSession:
    """The newest revision if the server knows it, else the handshake of the older ones."""
    if protocol != "auto":
        revision = _revision(protocol)
        return await (_discover(dispatcher) if revision.is_stateless else _shake_hands(dispatcher, revision))
    discovery = asyncio.ensure_future(_discover(dispatcher))
    try:
        async with asyncio.timeout(dispatcher.limits.probe):
            return await asyncio.shield(discovery)
    except (TimeoutError, ProtocolError):
        return await _handshake_beside(dispatcher, discovery)
    except CallError as error:
        if error.details.get("status") in _FINAL_STATUSES:
            raise
        return await _handshake_beside(dispatcher, discovery)
    finally:
        discovery.cancel()


async def _handshake_beside(dispatcher: Dispatcher, discovery: asyncio.Future[UpstreamSession]) -> UpstreamSession:
    """The handshake, unless the server was only slow and now answers the newest revision's question after all."""
    handshake = asyncio.ensure_future(_shake_hands(dispatcher, LATEST_HANDSHAKE))
    try:
        if not discovery.done():
            await asyncio.wait((discovery, handshake), return_when=asyncio.FIRST_COMPLETED)
            if discovery.done() and discovery.exception() is None:
                dispatcher.revision = LATEST
                return discovery.result()
        return await handshake
    except ProtocolError as error:
        if error.code not in (UNSUPPORTED_VERSION, METHOD_NOT_FOUND):
            raise
    finally:
        handshake.cancel()
    # It was only slow to answer the first question, and knows no handshake.
    return await _discover(dispatcher)


async def _negotiate_from_handshake(dispatcher: Dispatcher) -> UpstreamSession:
    """The handshake if the server knows it, else the newest revision."""
    try:
        return await _shake_hands(dispatcher, LATEST_HANDSHAKE)
    except ProtocolError as error:
        refusal = error
    try:
        return await _discover(dispatcher)
    except ProtocolError:
        raise refusal from None


async def _discover(dispatcher: Dispatcher) -> UpstreamSession:
    dispatcher.revision = LATEST
    try:
        answer = await _ask_for_versions(dispatcher)
    except ProtocolError as error:
        supported = fields_of(error.data).get("supported")
        if error.code != UNSUPPORTED_VERSION or not isinstance(supported, list) or LATEST.name not in supported:
            raise
        answer = await _ask_for_versions(dispatcher)  # it knows the revision after all
    if LATEST.name not in answer.supported_versions:
        raise ProtocolError(UNSUPPORTED_VERSION, f"The server does not support {LATEST.name}")
    return UpstreamSession(dispatcher, LATEST, answer)


async def _ask_for_versions(dispatcher: Dispatcher) -> DiscoverResult:
    answer = await dispatcher.call("server/discover", Params(), meta=_stateless_meta(LATEST, {}))
    return read_loosely(answer, DiscoverResult) or DiscoverResult()


async def _shake_hands(dispatcher: Dispatcher, revision: Revision) -> UpstreamSession:
    dispatcher.revision = None
    # All kinds of questions: they are passed on to the caller. In the newest revision each request names the caller's.
    params = Initialize(revision.name, dict(EVERY_QUESTION), _client_info())
    answer = read_loosely(await dispatcher.call("initialize", params), InitializeResult)
    if answer is None:
        raise ProtocolError(UNSUPPORTED_VERSION, "The server did not send a protocol version")
    dispatcher.revision = agreed = _revision(answer.protocol_version)
    await dispatcher.connection.send(RPCNotification("notifications/initialized"))
    return UpstreamSession(dispatcher, agreed, answer)


def _revision(name: str) -> Revision:
    """The revision of a name; one that we do not know is taken for the last before it that we do."""
    older = [revision for revision in HANDSHAKE if revision.name <= name] or HANDSHAKE[:1]
    return KNOWN.get(name) or msgspec.structs.replace(older[-1], name=name)


def _stateless_meta(revision: Revision, capabilities: Mapping[str, Any]) -> dict[str, Any]:
    return {VERSION_KEY: revision.name, CAPABILITIES_KEY: dict(capabilities), CLIENT_KEY: _client_info()}


@cache
def _client_info() -> dict[str, str]:
    return {"name": "enfold", "version": enfold.__version__}
