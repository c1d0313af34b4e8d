"""Clients of an MCP server as they describe themselves: per request, or once per session by a handshake. No I/O."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
from msgspec import UNSET

from enfold.mcp.json_rpc import (
    CAPABILITIES_KEY,
    CLIENT_KEY,
    INVALID_PARAMS,
    LOG_LEVEL_KEY,
    UNSUPPORTED_VERSION,
    VERSION_KEY,
    ProtocolError,
    RequestId,
    RPCMessage,
    request,
)
from enfold.mcp.levels import LEVELS
from enfold.mcp.revisions import LATEST_HANDSHAKE, STATELESS, Revision, find_revision

if TYPE_CHECKING:
    import asyncio

Send: TypeAlias = Callable[[dict[str, Any]], None]

# Clients that are known to give their models text and structure side by side: these read, and are charged for, all twice.
TEXT_CLIENTS: Final = ("github-copilot-developer",)


class Caller(msgspec.Struct, eq=False):
    """A client as it speaks in one request, or in all requests of one session."""

    revision: Revision = LATEST_HANDSHAKE
    capabilities: dict[str, Any] = {}
    log_level: str | None = "info"


def read_caller(meta: dict[str, Any], text_clients: frozenset[str]) -> Caller:
    """What a stateless request says about its client; one that leaves out what it must say is refused."""
    version, capabilities = meta.get(VERSION_KEY), meta.get(CAPABILITIES_KEY)
    if not isinstance(version, str) or not isinstance(capabilities, dict):
        raise ProtocolError(INVALID_PARAMS, f"A request needs {VERSION_KEY} and {CAPABILITIES_KEY} in its _meta")
    revision = find_revision(version)
    if revision is None or not revision.is_stateless:
        data = {"supported": [known.name for known in STATELESS], "requested": version}
        raise ProtocolError(UNSUPPORTED_VERSION, "Unsupported protocol version", data)
    level = meta.get(LOG_LEVEL_KEY)
    spoken = revision_for(revision, meta.get(CLIENT_KEY), text_clients)
    return Caller(spoken, capabilities, None if level is None else check_level(level))


def check_level(level: object) -> str:
    if level not in LEVELS:
        raise ProtocolError(INVALID_PARAMS, f"There is no log level {level!r:.40}: use {', '.join(LEVELS)}")
    return str(level)


# --- results as text alone ----------------------------------------------------------------------------------------


def read_text_clients(forms: Mapping[str, Any]) -> frozenset[str]:
    """The clients that get results as text, without structure: those that the operator chose, over those that we know."""
    for name, form in forms.items():
        if form not in ("text", "both"):
            raise ValueError(f"There is no form {form!r} for the client {name}: use text or both")
    all_forms = {**dict.fromkeys(TEXT_CLIENTS, "text"), **forms}
    return frozenset(name.lower() for name, form in all_forms.items() if form == "text")


def revision_for(revision: Revision, info: Any, text_clients: frozenset[str]) -> Revision:
    """The revision as it is spoken with a client, which says in its `clientInfo` who it is."""
    name = info.get("name") if isinstance(info, dict) else None
    if not isinstance(name, str) or name.lower() not in text_clients or not revision.has_structure:
        return revision
    return msgspec.structs.replace(revision, is_text_alone=True)


# --- sessions -----------------------------------------------------------------------------------------------------


class PendingQuestions:
    """Our requests to one client that it has not answered yet."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[RequestId, asyncio.Future[dict[str, Any]]] = {}

    async def ask(self, send: Send, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request and wait for its result; a ProtocolError where the client refuses."""
        import asyncio

        request_id = f"enfold-{os.urandom(8).hex()}"
        waiting: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = waiting
        try:
            send(request(request_id, method, params))
            return await waiting
        finally:
            self._waiting.pop(request_id, None)

    def resolve(self, message: RPCMessage) -> None:
        """Hand an answer to whoever waits for it; one that nobody waits for is ignored."""
        waiting = None if message.id is UNSET else self._waiting.get(message.id)
        if waiting is None or waiting.done():
            return
        if message.error is UNSET:
            waiting.set_result({} if message.result is UNSET else message.result)
        else:
            waiting.set_exception(ProtocolError(message.error.get("code", 0), str(message.error.get("message", ""))))


class Session(Caller, eq=False, kw_only=True):
    """A client after its handshake, for as long as its connection or session lasts."""

    followed: dict[str, Callable[[], None]] = msgspec.field(default_factory=dict)  # by URI, what ends each subscription
    questions: PendingQuestions = msgspec.field(default_factory=PendingQuestions)
    has_set_level: bool = False  # whether it asked for log messages, from a level on
    endings: list[Callable[[], None]] = msgspec.field(default_factory=list)  # called when it ends
    is_over: bool = False

    def when_over(self, callback: Callable[[], None]) -> None:
        """Call back when the session ends, or at once where it has ended."""
        if self.is_over:
            callback()
        else:
            self.endings.append(callback)

    def finish(self) -> None:
        """End every subscription to a resource, and call back who waits for the end."""
        self.is_over = True
        while self.followed:
            self.followed.popitem()[1]()
        while self.endings:
            self.endings.pop()()
