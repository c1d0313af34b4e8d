"""A durable call as a value: its order, progress and outcome. No I/O, no clock."""

from __future__ import annotations

import os
from base64 import urlsafe_b64encode
from enum import StrEnum
from typing import Any, Final

import msgspec

from enfold.middleware.idempotency_store import Outcome
from enfold.operations import Identity, Progress
from enfold.operations.questions import Question

__all__ = [
    "ENDED",
    "EVERY_TASK",
    "NO_INPUT",
    "SERVER_TASK",
    "TASK_ID",
    "Attempt",
    "Elsewhere",
    "Exchange",
    "Order",
    "Outcome",
    "Status",
    "Task",
    "TaskFilter",
    "new_task_id",
    "owner_of",
    "status_message",
]

SERVER_TASK: Final = "enfold/server-task"  # the note that names the task of an MCP server which does the work
NO_INPUT: Final = msgspec.Raw(b"{}")
TASK_ID: Final = r"^[A-Za-z0-9_-]{32}\Z"


class Status(StrEnum):
    """The state of a task, in MCP's terms; `failed` is any CallError, `completed` may be a tool's own error result."""

    WORKING = "working"
    INPUT_REQUIRED = "input_required"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED: Final = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})


class Order(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a caller has ordered, and the terms; it never changes. Times are Unix milliseconds."""

    id: str
    owner: str
    operation: str
    input_json: msgspec.Raw = msgspec.field(name="input")
    created: int
    deadline: int  # for all attempts and all waiting together
    keep: float  # seconds that the task is kept after its deadline
    attempts: int  # how many workers may die of it
    retries: bool  # whether it is started again after its worker died
    identity: Identity | None = None
    key: str | None = None  # the caller's idempotency key
    digest: str = ""  # of the input, to tell a repeat from another order
    answers: dict[str, Any] = {}  # given in the call before it became a task
    capabilities: dict[str, Any] | None = None  # what its caller can be asked; None is everything
    request_id: str | None = None  # of the call that ordered it
    provenance: dict[str, Any] | None = None  # what is to be recorded: `{mode, parents}`
    select: str | None = None  # what of the result is wanted
    signature: str = ""  # of the process that accepted it, if workers require one

    @property
    def input(self) -> Any:
        """The input as its caller gave it; each reader gets their own."""
        return msgspec.json.decode(self.input_json)

    @property
    def expires(self) -> int:
        """When the task may be forgotten."""
        return self.deadline + int(self.keep * 1000)


class Elsewhere(msgspec.Struct, frozen=True, omit_defaults=True):
    """What another server says of its own task: how far it is, and how often it wants to be asked."""

    message: str | None = None
    poll_ms: int | None = None


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """One start of the handler. Times are Unix milliseconds."""

    worker: str  # the name under which its process holds tasks
    began: int
    ended: int | None = None
    # completed, failed, cancelled, asked, worker_died, worker_stopped
    reason: str = ""


class Exchange(msgspec.Struct, frozen=True, omit_defaults=True):
    """A question of a task, and its answer; both are cut to what a page shows."""

    key: str
    message: str
    asked: int
    answered: int | None = None
    answer: str = ""  # as JSON, without secrets


class Task(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a task at one moment. `fence` identifies the attempt that holds it; empty if no worker holds it."""

    order: Order
    updated: int
    status: Status = Status.WORKING
    fence: str = ""
    attempt: int = 0  # how often its handler was started
    deaths: int = 0  # how many workers died while they held it
    is_cancelling: bool = False  # its caller wants it to end
    progress: Progress | None = None
    questions: dict[str, Question] = {}  # those without an answer
    answers: dict[str, Any] = {}
    memory: dict[str, Any] = {}  # what the handler remembers from leg to leg
    notes: dict[str, Any] = {}  # what attempts noted for later ones
    outcome: Outcome | None = None  # left out in lists
    attempts: tuple[Attempt, ...] = ()  # the last ones, the oldest first
    exchanges: tuple[Exchange, ...] = ()  # the last questions, the oldest first
    elsewhere: Elsewhere | None = None  # of a task that another server runs; such tasks are never stored

    @property
    def id(self) -> str:
        return self.order.id

    @property
    def owner(self) -> str:
        return self.order.owner

    @property
    def operation(self) -> str:
        return self.order.operation

    @property
    def created(self) -> int:
        return self.order.created

    @property
    def ttl_ms(self) -> int:
        """How long the task is kept after its creation."""
        return self.order.expires - self.order.created

    @property
    def is_ended(self) -> bool:
        return self.status in ENDED

    @property
    def reply_headers(self) -> dict[str, str] | None:
        """The headers that its handler or middleware added to the response."""
        return None if self.outcome is None else self.outcome.headers or None

    @property
    def is_queued(self) -> bool:
        """Whether it waits for a worker."""
        return self.status is Status.WORKING and not self.fence

    @property
    def message(self) -> str | None:
        """The progress as text."""
        if self.status is Status.CANCELLED:
            return "cancelled"
        if self.is_cancelling and not self.is_ended:
            return "cancelling"
        if self.elsewhere is not None:
            return self.elsewhere.message
        return None if self.progress is None else status_message(self.progress)


class TaskFilter(msgspec.Struct, frozen=True):
    """Which tasks a list has; what is None takes all. Times are Unix milliseconds."""

    status: Status | None = None
    operation: str | None = None  # part of its id
    caller: str | None = None  # the id of the identity
    since: int | None = None  # created at this time or later
    until: int | None = None  # created before this time

    def takes(self, task: Task) -> bool:
        """Whether the task is one of them."""
        order = task.order
        return (
            (self.status is None or task.status is self.status)
            and (self.operation is None or self.operation.lower() in order.operation.lower())
            and (self.caller is None or (order.identity is not None and order.identity.id == self.caller))
            and (self.since is None or order.created >= self.since)
            and (self.until is None or order.created < self.until)
        )


EVERY_TASK: Final = TaskFilter()


def status_message(progress: Progress) -> str:
    """Format progress as far as the handler has reported it: `3 of 10: reading`."""
    done = f"{progress.progress:g}" + ("" if progress.total is None else f" of {progress.total:g}")
    return done if not progress.message else f"{done}: {progress.message}"


def new_task_id() -> str:
    """192 random bits, which cannot be guessed; in a shell it must not look like an option."""
    while (made := urlsafe_b64encode(os.urandom(24)).decode()).startswith("-"):
        pass
    return made


def owner_of(identity: Identity | None) -> str:
    """Return the owner of a task: the identity, and on whose behalf it acts. Anonymous callers share one owner."""
    if identity is None:
        return ""
    names = [identity.id] if identity.on_behalf_of is None else [identity.id, identity.on_behalf_of]
    return msgspec.json.encode(names).decode()
