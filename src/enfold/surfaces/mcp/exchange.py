"""Clients of an MCP server as they describe themselves: per request, or once per session by a handshake. No I/O."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import msgspec
from msgspec import UNSET

from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError
from enfold.mcp.json_rpc import (
    CAPABILITIES_KEY,
    CLIENT_KEY,
    INVALID_PARAMS,
    LOG_LEVEL_KEY,
    UNSUPPORTED_VERSION,
    VERSION_KEY,
    OutgoingMessage,
    ProtocolError,
    RequestId,
    RPCMessage,
    RPCNotification,
    RPCRequest,
)
from enfold.mcp.messages import Cancelled, LogMessage, Progress, Resumable, read_error, read_loosely
from enfold.mcp.results import InputRequest, InputRequired, Result
from enfold.mcp.revisions import KNOWN, LATEST_HANDSHAKE, LEVELS, STATELESS, Revision, urgency_of
from enfold.mcp.tasks import StateSigner
from enfold.observability.records import OK
from enfold.operations import Context, Identity, Operation
from enfold.operations import LogMessage as LoggedMessage
from enfold.operations import Progress as ToldProgress
from enfold.operations.outcomes import NeedsInput
from enfold.operations.questions import Question
from enfold.surfaces.mcp.subscriptions import Changes

if TYPE_CHECKING:
    import asyncio

    from enfold.operations.operation import RecordedRun


Send: TypeAlias = Callable[[OutgoingMessage], None]

# Clients that are known to give their models text and structure side by side: these read, and are charged for, all twice.
TEXT_CLIENTS: Final = ("github-copilot-developer",)


# Requests of these methods belong to a revision without a handshake, whatever else they say.
STATELESS_METHODS: Final = ("server/discover", "subscriptions/listen")


class Caller(msgspec.Struct, eq=False):
    """A client as it speaks in one request, or in all requests of one session."""

    revision: Revision = LATEST_HANDSHAKE
    capabilities: dict[str, Any] = {}
    log_level: str | None = "info"


def read_caller(meta: dict[str, Any], text_clients: frozenset[str]) -> Caller:
    """Read the client from a stateless request; reject one without the required fields."""
    version, capabilities = meta.get(VERSION_KEY), meta.get(CAPABILITIES_KEY)
    if not isinstance(version, str) or not isinstance(capabilities, dict):
        raise ProtocolError(INVALID_PARAMS, f"A request needs {VERSION_KEY} and {CAPABILITIES_KEY} in its _meta")
    revision = KNOWN.get(version)
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
    """Return the clients that get results as text only: the operator's choice over the built-in list."""
    for name, form in forms.items():
        if form not in ("text", "both"):
            raise ValueError(f"Unknown result form {form!r} for the client {name}: use text or both")
    all_forms = {**dict.fromkeys(TEXT_CLIENTS, "text"), **forms}
    return frozenset(name.lower() for name, form in all_forms.items() if form == "text")


def revision_for(revision: Revision, info: Any, text_clients: frozenset[str]) -> Revision:
    """Return the revision for a client, which identifies itself by `clientInfo`."""
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
            send(RPCRequest(request_id, method, params))
            return await waiting
        finally:
            self._waiting.pop(request_id, None)

    def resolve(self, message: RPCMessage) -> None:
        """Deliver a response to its waiting request; others are ignored."""
        waiting = None if message.id is UNSET else self._waiting.get(message.id)
        if waiting is None or waiting.done():
            return
        if message.error is UNSET:
            waiting.set_result({} if message.result is UNSET else message.result)
        else:
            waiting.set_exception(read_error(message.error))


class Session(Caller, eq=False, kw_only=True):
    """A client after its handshake, for as long as its connection or session lasts."""

    running: dict[RequestId, Callable[[], object]] = msgspec.field(default_factory=dict)  # what cancels each request
    followed: dict[str, Callable[[], None]] = msgspec.field(default_factory=dict)  # by URI, what ends each subscription
    questions: PendingQuestions = msgspec.field(default_factory=PendingQuestions)
    has_set_level: bool = False  # whether it asked for log messages, from a level on
    endings: list[Callable[[], None]] = msgspec.field(default_factory=list)  # called when it ends
    is_over: bool = False

    def receive(self, message: RPCMessage) -> None:
        """Take the answer to one of our requests, or a notification that cancels one of the client's; ignore others."""
        if message.method is UNSET:
            self.questions.resolve(message)
        elif message.method == "notifications/cancelled" and (cancelled := read_loosely(message.params, Cancelled)):
            self.running.get(cancelled.request_id, lambda: None)()

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


class Channel(Protocol):
    """The connection a request came on."""

    def notify(self, message: OutgoingMessage) -> None:
        """Send a notification that belongs to the request."""

    def request(self, method: str, params: dict[str, Any]) -> Awaitable[dict[str, Any]]:
        """Ask the client, and wait for its answer."""

    def close_stream(self) -> None:
        """Close the connection, where the client can reconnect for the answer."""


class ClientExchange(msgspec.Struct, eq=False):
    """A request while it is answered; to handlers it is the peer they may ask."""

    id: RequestId
    method: str
    params: dict[str, Any]
    meta: dict[str, Any]
    client: Caller  # the session that the request belongs to, or the request itself where there are no sessions
    identity: Identity | None  # of this request: another one of the session may come with a token of other rights
    channel: Channel
    changes: Changes
    headers: dict[bytes, bytes] | None = None  # of the HTTP request that it came in
    is_truncated: bool = False  # whether the outcome is a stream that had more items
    is_relayed: bool = False  # whether `call_operation` names what is called
    subject: str = ""  # what is called, as its log messages name it
    answers: dict[str, Any] = {}
    memory: dict[str, Any] = {}
    progress: float | None = None  # the last that was told
    asked: dict[str, int] = {}  # how often a handler has asked each question in this round
    recording: RecordedRun | None = None  # of the call, where it is recorded
    # For observers: what was called, with which context, and the outcome.
    operation: Operation | None = None
    context: Context | None = None
    envelope: ResponseEnvelope[Any] | None = None
    code: str = OK
    status: int | None = None  # of an error of the protocol
    size: int | None = None  # of the request, in bytes

    @property
    def revision(self) -> Revision:
        return self.client.revision

    @property
    def session(self) -> Session | None:
        return self.client if isinstance(self.client, Session) else None

    @property
    def log_level(self) -> str | None:
        """From which level on the client wants log messages; the servers behind a gateway are asked for no others."""
        return self.client.log_level

    @property
    def is_stateless(self) -> bool:
        return self.client.revision.is_stateless

    def cacheable(self, result: Result, ttl_ms: int, *, is_private: bool) -> Result:
        """The result with what a stateless client needs to know to keep it for a while."""
        if self.is_stateless:
            result.ttl_ms, result.cache_scope = ttl_ms, "private" if is_private else "public"
        return result

    # telling

    def notify(self, told: ToldProgress | LoggedMessage) -> None:
        """Send progress or a log message of the handler to the client, if it asked for them."""
        if isinstance(told, ToldProgress):
            self._tell_progress(told)
        else:
            self._tell_log(told)

    def _tell_progress(self, told: ToldProgress) -> None:
        token = self.meta.get("progressToken")
        # Progress only grows; what falls back would confuse a client.
        if token is None or (self.progress is not None and told.progress <= self.progress):
            return
        self.progress = told.progress
        message = told.message if self.revision.has_annotations else None
        progress = Progress(token, told.progress, told.total, message)
        self.channel.notify(RPCNotification("notifications/progress", progress))

    def _tell_log(self, told: LoggedMessage) -> None:
        wanted, place = self.client.log_level, urgency_of(told.level)
        if wanted is None or place < urgency_of(wanted):
            return
        message = LogMessage(LEVELS[place], self.subject, _log_data(told))
        self.channel.notify(RPCNotification("notifications/message", message))

    # asking

    @property
    def capabilities(self) -> Mapping[str, Any]:
        return self.client.capabilities

    async def ask(self, questions: Mapping[str, Question]) -> dict[str, Any] | NeedsInput:
        missing = {key: question for key, question in questions.items() if key not in self.answers}
        if missing and self.is_stateless:
            return NeedsInput(missing)
        for key, question in missing.items():
            try:
                self.answers[key] = await self.channel.request(question.method, question.params)
            except ProtocolError as error:
                message = f"The client refused {question.method}: {error.message}"
                raise CallError("EXECUTION_ERROR", message, {"reason": "client", "status": error.code}) from None
        return {key: self.answers[key] for key in questions}

    def resource_updated(self, uri: str) -> None:
        self.changes.resource_updated(uri)

    def close_stream(self) -> None:
        self.channel.close_stream()


def _log_data(told: LoggedMessage) -> Any:
    if told.data is None:
        return told.message
    return {"message": told.message, "data": told.data} if told.message else told.data


# --- rounds ---------------------------------------------------------------------------------------------------------

LIFETIME: Final = 3600.0  # seconds in which a user may answer
MAX_STATE: Final = 1_000_000


class RequestState(msgspec.Struct, frozen=True):
    """The answers a client has given so far, what the handler remembers, and the request both belong to."""

    request: str
    identity: str | None
    expires: float
    answers: dict[str, Any] = {}
    memory: dict[str, Any] = {}


class Rounds:
    """Carries answers from round to round; processes that serve the same clients share a secret."""

    def __init__(self, secret: bytes | None = None) -> None:
        self._signer = StateSigner(secret or os.urandom(32))

    def restore(self, exchange: ClientExchange, params: Resumable) -> None:
        """Restore the answers of earlier rounds, and add those that come with this one."""
        if params.request_state is not None:
            state = self._open(params.request_state, exchange)
            exchange.answers |= state.answers
            exchange.memory |= state.memory
        given = params.input_responses or {}
        exchange.answers |= {key: answer for key, answer in given.items() if isinstance(answer, dict)}

    def questions(self, exchange: ClientExchange, needed: NeedsInput) -> InputRequired:
        """Build the result that asks the client and carries the state for the next round."""
        asked = {key: InputRequest(each.method, each.params) for key, each in needed.questions.items()}
        caller, expires = _identity_id(exchange), time.time() + LIFETIME
        state = RequestState(_fingerprint(exchange), caller, expires, exchange.answers, exchange.memory)
        return InputRequired(input_requests=asked, request_state=self._signer.sign(msgspec.json.encode(state)))

    def _open(self, token: str, exchange: ClientExchange) -> RequestState:
        content = self._signer.content_of(token) if len(token) <= MAX_STATE else None
        if content is None:
            raise _refusal("it is not a state of this server, or has been changed")
        state = msgspec.json.decode(content, type=RequestState)
        if state.request != _fingerprint(exchange) or state.identity != _identity_id(exchange):
            raise _refusal("it belongs to another request")
        if state.expires < time.time():
            raise _refusal("it has expired")
        return state


def _fingerprint(exchange: ClientExchange) -> str:
    """Return what a state is bound to: the method, and the parameters that do not change between rounds."""
    from hashlib import sha256

    left_out = ("_meta", "inputResponses", "requestState")
    same = {name: value for name, value in exchange.params.items() if name not in left_out}
    return sha256(msgspec.json.encode([exchange.method, same], order="deterministic")).hexdigest()


def _identity_id(exchange: ClientExchange) -> str | None:
    return None if exchange.identity is None else exchange.identity.id


def _refusal(why: str) -> ProtocolError:
    return ProtocolError(INVALID_PARAMS, f"The request state is invalid: {why}")
