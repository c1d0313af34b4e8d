"""Tasks of other servers that callers follow through us: a signed handle names server task and owner; nothing is stored here."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from enfold.errors import CallError
from enfold.mcp.tasks import StateSigner, poll_seconds
from enfold.middleware.idempotency_store import failure, success
from enfold.operations import Context, Identity
from enfold.operations.access import is_hidden
from enfold.operations.handing_over import TASK_QUESTION, TaskQuestion
from enfold.operations.mcp_kind import kind_of
from enfold.operations.questions import Question
from enfold.runtime.registry import Registry
from enfold.tasks.model import Elsewhere, Order, Outcome, Status, Task
from enfold.tasks.store import now_ms

if TYPE_CHECKING:
    from enfold.runtime.prepared import PreparedOperation

SEALED: Final = "s."  # how the id of such a task begins; no id of ours has a dot
MAX_HANDLE: Final = 1_000  # characters
MAX_LIFETIME: Final = 366 * 86_400_000  # milliseconds that a handle is good for at most
CANCELLING: Final = 2.0  # seconds that a server may take to hear that a task is not wanted any more
MAX_MESSAGE: Final = 2_000  # characters of a status message

# What signs the handles, or gives it when the first is signed.
Secret: TypeAlias = bytes | Callable[[], bytes] | None


class HandedOverTask(msgspec.Struct, frozen=True, array_like=True):
    """What a handle says: which operation began the task, its id at its server, whose it is, and until when. Unix ms."""

    operation: str
    task_id: str
    owner: str  # a digest: whose it is is nobody's business
    created: int
    expires: int


class SealedTasks:
    """Makes handles of other servers' tasks, and asks those servers about them."""

    def __init__(self, registry: Registry, secret: Secret, lifetime: float) -> None:
        """`lifetime` is for how many seconds a handle is good where its server sets no limit."""
        self._registry = registry
        self._secret = secret
        self._lifetime = int(lifetime * 1000)
        self._signer: StateSigner | None = None

    def taken(self, operation: str, owner: str, told: Mapping[str, Any]) -> Task | None:
        """A task that a server has begun, under the handle that its caller gets; None where no handle can be made."""
        task_id, now = told.get("taskId"), now_ms()
        if not isinstance(task_id, str) or not 0 < len(task_id) <= MAX_HANDLE:
            return None
        place = HandedOverTask(operation, task_id, _digest(owner), now, now + _lifetime(told, self._lifetime))
        handle = SEALED + self._signing().sign(msgspec.json.encode(place))
        return None if len(handle) > MAX_HANDLE else _task(handle, owner, place, told)

    def opened(self, handle: str, owner: str | None, identity: Identity | None) -> HandedOverTask | None:
        """The content of a handle, for its owner or for who sees all tasks (`owner` None); None for others and for a forged one."""
        content = None if len(handle) > MAX_HANDLE else self._signing().content_of(handle.removeprefix(SEALED))
        if content is None:
            return None
        place = msgspec.json.decode(content, type=HandedOverTask)
        if (owner is not None and place.owner != _digest(owner)) or place.expires <= now_ms():
            return None
        if place.operation in self._registry:
            access = self._registry.get_spec(place.operation).access_control
            return None if is_hidden(access, identity) else place
        return place

    async def ask(self, handle: str, place: HandedOverTask, question: TaskQuestion) -> Task | None:
        """The task as its server tells of it; None where nobody knows it any more."""
        prepared = self._begun_with(place.operation)
        if prepared is None or place.expires <= now_ms():
            return None
        outcome: Outcome | None = None
        try:
            outcome = success(await prepared.execute({}, Context(meta={TASK_QUESTION: question})))
        except CallError as error:
            if question.told is None:
                if _is_unknown(error, question):
                    return None
                raise
            outcome = failure(error) if error.is_final else None
        return _task(handle, place.owner, place, question.told or {}, outcome)

    async def cancel(self, operation: str, task_id: str) -> None:
        """Tell a server that nobody wants its task any more, and ignore its answer."""
        with suppress(CallError):
            prepared, question = self._begun_with(operation), TaskQuestion(task_id, cancels=True)
            if prepared is not None:
                await prepared.execute({}, Context(meta={TASK_QUESTION: question}, timeout=CANCELLING))

    def _begun_with(self, operation: str) -> PreparedOperation | None:
        """The operation that began a task, through which its server is asked about it."""
        if operation not in self._registry:
            if any(source.kind == "mcp" and source.state != "up" for source in self._registry.sources):
                raise CallError(
                    "UNAVAILABLE", "The server that runs this task may be one that is away: ask again later"
                )
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


async def watch(ask: Callable[[], Awaitable[Task]]) -> AsyncGenerator[Task]:
    """The task now, and after every change, as often as its server wants to be asked, until it has ended."""
    before: Task | None = None
    while True:
        task = await ask()
        if task != before:
            yield task
        if task.is_ended:
            return
        before = task
        interval = None if task.elsewhere is None else task.elsewhere.poll_ms
        await asyncio.sleep(poll_seconds({"pollIntervalMs": interval}))


def _task(
    handle: str, owner: str, place: HandedOverTask, told: Mapping[str, Any], outcome: Outcome | None = None
) -> Task | None:
    """A task from what its server says of it; None where that is no task."""
    try:
        status = Status(str(told.get("status")))
    except ValueError:
        return None
    order = Order(handle, owner, place.operation, {}, place.created, place.expires, 0.0, 1, retries=False)
    message, interval = told.get("statusMessage"), told.get("pollIntervalMs")
    return Task(
        order,
        max(place.created, min(now_ms(), _moment(told.get("lastUpdatedAt")))),
        status,
        questions=_questions(told.get("inputRequests")),
        outcome=outcome,
        elsewhere=Elsewhere(
            message[:MAX_MESSAGE] if isinstance(message, str) else None,
            None if interval is None else int(poll_seconds(told) * 1000),
        ),
    )


def _lifetime(told: Mapping[str, Any], default: int) -> int:
    given = told.get("ttlMs")
    if not isinstance(given, int | float) or isinstance(given, bool) or given <= 0:
        return default
    return int(min(given, MAX_LIFETIME))


def _moment(text: object) -> int:
    try:
        return int(datetime.fromisoformat(str(text)).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        return 0


def _questions(requests: object) -> dict[str, Question]:
    """What a task wants answers to; whether its caller can answer was told to its server when it began."""
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
