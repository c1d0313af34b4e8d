"""One request of a client while it is answered: its parameters, its client, and the channel back to it."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError
from enfold.mcp.json_rpc import ProtocolError, RequestId, notification
from enfold.mcp.levels import LEVELS, urgency_of
from enfold.mcp.revisions import Revision
from enfold.observing.call_record import OK
from enfold.operation import Context, Identity, LogMessage, Operation, Progress
from enfold.operation.asking import InputRequired, Question
from enfold.surfaces.mcp.changes import Changes
from enfold.surfaces.mcp.clients import Caller, Session

if TYPE_CHECKING:
    from enfold.operation.ports import RecordedRun


class Channel(Protocol):
    """The connection a request came on."""

    def send(self, message: dict[str, Any]) -> None:
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
    caller: Caller
    identity: Identity | None  # of this request: another one of the session may come with a token of other rights
    channel: Channel
    changes: Changes
    headers: dict[bytes, bytes] | None = None  # of the HTTP request that it came in
    is_relayed: bool = False  # whether `call_operation` names what is called
    subject: str = ""  # what is called, as its log messages name it
    answers: dict[str, Any] = {}
    memory: dict[str, Any] = {}
    progress: float | None = None  # the last that was told
    asked: dict[str, int] = {}  # how often a handler has asked each question in this round
    recording: RecordedRun | None = None  # of the call, where it is recorded
    # What observers are told of the call: what was called, under which context, and what it came to.
    operation: Operation | None = None
    context: Context | None = None
    envelope: ResponseEnvelope[Any] | None = None
    code: str = OK
    status: int | None = None  # of an error of the protocol
    size: int | None = None  # of the request, in bytes

    @property
    def revision(self) -> Revision:
        return self.caller.revision

    @property
    def client(self) -> Caller:
        """The session that the request belongs to, or the request itself where there are no sessions."""
        return self.caller

    @property
    def session(self) -> Session | None:
        return self.caller if isinstance(self.caller, Session) else None

    @property
    def log_level(self) -> str | None:
        """From which level on the client wants log messages; the servers behind a gateway are asked for no others."""
        return self.caller.log_level

    @property
    def is_stateless(self) -> bool:
        return self.caller.revision.is_stateless

    # telling

    def notify(self, told: Progress | LogMessage) -> None:
        """Send progress or a log message of the handler to the client, if it asked for them."""
        if isinstance(told, Progress):
            self._tell_progress(told)
        else:
            self._tell_log(told)

    def _tell_progress(self, told: Progress) -> None:
        token = self.meta.get("progressToken")
        # Progress only grows; what falls back would confuse a client.
        if token is None or (self.progress is not None and told.progress <= self.progress):
            return
        self.progress = told.progress
        params = {"progressToken": token, "progress": told.progress}
        if told.total is not None:
            params["total"] = told.total
        if told.message is not None and self.revision.has_annotations:
            params["message"] = told.message
        self.channel.send(notification("notifications/progress", params))

    def _tell_log(self, told: LogMessage) -> None:
        wanted, place = self.caller.log_level, urgency_of(told.level)
        if wanted is None or place < urgency_of(wanted):
            return
        params = {"level": LEVELS[place], "logger": self.subject, "data": _log_data(told)}
        self.channel.send(notification("notifications/message", params))

    # asking

    @property
    def capabilities(self) -> Mapping[str, Any]:
        return self.caller.capabilities

    async def ask(self, questions: Mapping[str, Question]) -> dict[str, Any]:
        missing = {key: question for key, question in questions.items() if key not in self.answers}
        if missing and self.is_stateless:
            raise InputRequired(missing)
        for key, question in missing.items():
            self.answers[key] = await self._ask_now(question)
        return {key: self.answers[key] for key in questions}

    async def _ask_now(self, question: Question) -> dict[str, Any]:
        try:
            return await self.channel.request(question.method, question.params)
        except ProtocolError as error:
            details = {"reason": "client", "status": error.code}
            raise CallError(
                "EXECUTION_ERROR", f"The client refused {question.method}: {error.message}", details
            ) from None

    def resource_updated(self, uri: str) -> None:
        self.changes.resource_updated(uri)

    def close_stream(self) -> None:
        self.channel.close_stream()


def _log_data(told: LogMessage) -> Any:
    if told.data is None:
        return told.message
    return {"message": told.message, "data": told.data} if told.message else told.data
