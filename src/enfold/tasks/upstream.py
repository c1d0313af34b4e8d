"""Tasks of upstream MCP servers, which callers follow through this one.

A caller that follows tasks gets a signed handle, which names the operation, the server's task and the owner; nothing is
stored here. `tasks/get`, `tasks/update` and `tasks/cancel` for a handle become a `TaskQuestion`, which travels in the
context of a call of the operation: so its answer is redacted, checked and shaped like any result. The MCP source
(`enfold.sources.mcp.tasks`) asks its server, or polls the task for callers that wait.

Where the call runs as a durable task here, no handle is made: the task notes which server task does its work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from enfold.errors import CallError
from enfold.mcp.tasks import StateSigner, poll_seconds
from enfold.middleware.idempotency_store import failure, success
from enfold.operations import Context, Identity
from enfold.operations.access import is_hidden
from enfold.operations.mcp_kind import kind_of
from enfold.operations.outcomes import Deferred, envelope_of
from enfold.operations.questions import Question
from enfold.runtime.registry import Registry
from enfold.tasks.model import NO_INPUT, Elsewhere, Order, Outcome, Status, Task
from enfold.tasks.store import now_ms

if TYPE_CHECKING:
    from enfold.runtime.prepared import PreparedOperation

HANDLE_PREFIX: Final = "s."  # of every handle; our own task ids contain no dot
MAX_HANDLE: Final = 1_000  # characters
MAX_LIFETIME: Final = 366 * 86_400_000  # milliseconds that a handle is valid at most
CANCEL_SECONDS: Final = 2.0  # seconds that a server may take to cancel a task
MAX_MESSAGE: Final = 2_000  # characters of a status message

# Makes the task that a caller gets from what the server reports; None if no handle can be made of it.
TakeTask: TypeAlias = Callable[[Mapping[str, Any]], Any]
# The key that signs handles, or a function that returns it when the first is signed.
Secret: TypeAlias = bytes | Callable[[], bytes] | None


class TaskQuestion(msgspec.Struct):
    """A question about a server's task, asked of the operation that began it.

    The outcome is the result of the call once the task has ended, and `Deferred` until then.
    """

    task_id: str  # at its server
    answers: Mapping[str, Any] | None = None  # to send first
    cancels: bool = False  # whether to cancel it first
    take: TakeTask | None = None  # makes the task of what the server reports while it runs
    reported: Mapping[str, Any] | None = None  # the task as the server reports it, once it has


class HandleContent(msgspec.Struct, frozen=True, array_like=True):
    """What a handle contains: the operation that began the task, its id at the server, its owner and times (Unix ms)."""

    operation: str
    task_id: str
    owner: str  # a digest: a handle does not reveal the identity
    created: int
    expires: int


class UpstreamTasks:
    """Makes handles of server tasks, and asks the servers about them."""

    def __init__(self, registry: Registry, secret: Secret, lifetime: float) -> None:
        """A handle is valid for `lifetime` seconds if the server sets no limit."""
        self._registry = registry
        self._secret = secret
        self._lifetime = int(lifetime * 1000)
        self._signer: StateSigner | None = None

    def taken(self, operation: str, owner: str, reported: Mapping[str, Any]) -> Task | None:
        """Return the task that a server has started, with its handle as the id; None if no handle can be made."""
        task_id, now = reported.get("taskId"), now_ms()
        if not isinstance(task_id, str) or not 0 < len(task_id) <= MAX_HANDLE:
            return None
        place = HandleContent(operation, task_id, _digest(owner), now, now + _lifetime(reported, self._lifetime))
        handle = HANDLE_PREFIX + self._signing().sign(msgspec.json.encode(place))
        return None if len(handle) > MAX_HANDLE else _task(handle, owner, place, reported)

    def opened(self, handle: str, owner: str | None, identity: Identity | None) -> HandleContent | None:
        """Return the content of a handle for its owner or an administrator (`owner` None); None for others or a forged one."""
        content = None if len(handle) > MAX_HANDLE else self._signing().content_of(handle.removeprefix(HANDLE_PREFIX))
        if content is None:
            return None
        place = msgspec.json.decode(content, type=HandleContent)
        if (owner is not None and place.owner != _digest(owner)) or place.expires <= now_ms():
            return None
        if place.operation in self._registry:
            access = self._registry.get_spec(place.operation).access_control
            return None if is_hidden(access, identity) else place
        return place

    async def ask(self, handle: str, place: HandleContent, question: TaskQuestion) -> Task | None:
        """Return the task as its server reports it; None if the server no longer knows it."""
        prepared = self._begun_with(place.operation)
        if prepared is None or place.expires <= now_ms():
            return None
        question.take = partial(_task, handle, place.owner, place)
        try:
            outcome = await prepared.execute({}, _asking(question))
            if isinstance(outcome, Deferred):
                return outcome.task
            ended = success(envelope_of(outcome))
        except CallError as error:
            if question.reported is None:
                if _is_unknown(error, question):
                    return None
                raise
            ended = failure(error)
        return _task(handle, place.owner, place, question.reported or {}, ended)

    async def cancel(self, operation: str, task_id: str) -> None:
        """Cancel a task at its server, and ignore the answer."""
        with suppress(CallError):
            prepared, question = self._begun_with(operation), TaskQuestion(task_id, cancels=True)
            if prepared is not None:
                await prepared.execute({}, _asking(question, CANCEL_SECONDS))

    def _begun_with(self, operation: str) -> PreparedOperation | None:
        """Return the operation that started a task, through which its server is asked about it."""
        if operation not in self._registry:
            if any(source.kind == "mcp" and source.state != "up" for source in self._registry.services.sources):
                raise CallError("UNAVAILABLE", "The server that runs this task may be unavailable: retry later")
            return None
        found = self._registry.prepared(operation)
        # Another operation may have come to have the id: it would be run.
        if found.operation.origin.kind != "mcp" or kind_of(found.spec) != "tool":
            return None
        return found.variant(found.spec.replace(input_schema={}), is_observed=False)

    def _signing(self) -> StateSigner:
        if self._signer is None:
            secret = self._secret() if callable(self._secret) else self._secret
            self._signer = StateSigner(secret or os.urandom(32), b"task ")
        return self._signer


def _asking(question: TaskQuestion, timeout: float | None = None) -> Context:
    context = Context(timeout=timeout)
    context.task_question = question
    return context


def _task(
    handle: str, owner: str, place: HandleContent, reported: Mapping[str, Any], outcome: Outcome | None = None
) -> Task | None:
    """Read a task from its server's report; None if it is not a task."""
    try:
        status = Status(str(reported.get("status")))
    except ValueError:
        return None
    order = Order(handle, owner, place.operation, NO_INPUT, place.created, place.expires, 0.0, 1, retries=False)
    message, interval = reported.get("statusMessage"), reported.get("pollIntervalMs")
    return Task(
        order,
        max(place.created, min(now_ms(), _moment(reported.get("lastUpdatedAt")))),
        status,
        questions=_questions(reported.get("inputRequests")),
        outcome=outcome,
        elsewhere=Elsewhere(
            message[:MAX_MESSAGE] if isinstance(message, str) else None,
            None if interval is None else int(poll_seconds(interval) * 1000),
        ),
    )


def _lifetime(reported: Mapping[str, Any], default: int) -> int:
    given = reported.get("ttlMs")
    if not isinstance(given, int | float) or isinstance(given, bool) or given <= 0:
        return default
    return int(min(given, MAX_LIFETIME))


def _moment(text: object) -> int:
    try:
        return int(datetime.fromisoformat(str(text)).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        return 0


def _questions(requests: object) -> dict[str, Question]:
    """Return the questions of a task; since the call, its server knows what the caller can answer."""
    asked = requests if isinstance(requests, Mapping) else {}
    return {key: _question(each) for key, each in asked.items() if isinstance(each, Mapping)}


def _question(request: Mapping[str, Any]) -> Question:
    params = request.get("params")
    return Question(str(request.get("method")), dict(params) if isinstance(params, Mapping) else {}, ())


def _is_unknown(error: CallError, question: TaskQuestion) -> bool:
    """Whether a server says that it has no such task; a VALIDATION_ERROR for answers may be about the answers."""
    is_refused = error.code == "VALIDATION_ERROR" and question.answers is None
    return "rpc_code" in error.details and (error.code == "OPERATION_NOT_FOUND" or is_refused)


def _digest(owner: str) -> str:
    from hashlib import sha256  # only for tasks of other servers

    return sha256(owner.encode()).hexdigest()[:32]
