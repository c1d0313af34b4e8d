"""The port of task stores: twelve methods, implemented for memory, SQLite and JetStream."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from enfold.errors import CallError
from enfold.idempotency.first_results import refuse_other_input
from enfold.operation import Progress
from enfold.operation.asking import Question
from enfold.tasks import transitions
from enfold.tasks.kept_bytes import TaskLimits
from enfold.tasks.task import Order, Outcome, Task

MAX_ANSWERS: Final = 1_000_000  # bytes of all answers to one task

Served: TypeAlias = Callable[[], Collection[str]]  # the ids of the operations that a worker can run now


class Claim(msgspec.Struct, frozen=True):
    """An attempt that a worker has begun; `task.fence` is good for this attempt alone."""

    task: Task
    token: Any = None  # what the store needs besides

    @property
    def id(self) -> str:
        return self.task.order.id


class Asking(msgspec.Struct, frozen=True):
    """An attempt that ends with questions to the caller, by their keys."""

    questions: dict[str, Question]
    memory: dict[str, Any] = {}


class Abandoned(msgspec.Struct, frozen=True):
    """An attempt that ends without an outcome, because its worker must stop."""


Claims: TypeAlias = list[Claim]
Ending: TypeAlias = Outcome | Asking | Abandoned


class Cancel(msgspec.Struct, frozen=True):
    """The caller wants the task to end."""


class Answers(msgspec.Struct, frozen=True):
    """What the caller answers, by the keys of the questions."""

    given: dict[str, Any]


Signal: TypeAlias = Cancel | Answers


class FencedError(Exception):
    """The attempt holds its task no longer: what it says does not count."""


class TaskStore(Protocol):
    """Where tasks are kept. `owner` is whose tasks are meant; None is everybody's.

    What cannot be reached is UNAVAILABLE with the reason `store`. Every verb may be called by many at once.
    Whoever reads a task sees it as the clock has it: ended at its deadline, which is then stored, and gone after `expires`.
    """

    beat: float  # seconds: a worker that holds a task says so this often, and hears of a cancel

    async def accept(self, order: Order, limits: TaskLimits, *, claims: bool = False) -> Task | Claim:
        """Store a task, which is safe when this returns; with the same key and owner, the first one.

        Another input under the same key is a VALIDATION_ERROR, more than the limits allow RESOURCE_EXHAUSTED.
        Who `claims` a new one runs it at once, where the store can store and claim it in one step: a Claim.
        """

    async def get(self, owner: str | None, task_id: str) -> Task | None: ...

    async def list(self, owner: str | None, limit: int = 100) -> list[Task]:
        """The newest first, without their inputs and outcomes."""

    async def claim(self, served: Served, n: int, wait: float, *, but: Collection[str] = ()) -> Claims:
        """At most `n` tasks of these operations to be run now; waits for some seconds if there is none.

        Those of the owners in `but` are left to others, where the store can pass over them.
        """

    async def take(self, task_id: str) -> Claim | None:
        """Claim this one task, where it waits for a worker and can be had by itself."""

    async def has_worker(self) -> bool | None:
        """Whether somebody runs tasks of this store now; None where nobody else can, because it ends with this process."""

    async def hold(
        self, claim: Claim, progress: Progress | None = None, notes: Mapping[str, Any] | None = None
    ) -> bool:
        """Say that the attempt is alive; whether its caller wants it to end. FencedError where it is no longer ours."""

    async def record(self, claim: Claim, ending: Ending) -> Task:
        """How the attempt ended; it counts once. FencedError where it is no longer ours."""

    async def signal(self, owner: str | None, task_id: str, signal: Signal) -> Task | None:
        """What the caller says to a task; the task as it is then."""

    def watch(self, owner: str | None, task_id: str) -> AsyncGenerator[Task]:
        """The task now, and after every change, until it has ended or is gone."""

    async def expire(self) -> None:
        """End what is over its deadline, and make room: forget what was kept long enough."""

    async def close(self) -> None: ...


def after_ending(task: Task, ending: Ending, now: int) -> Task:
    if isinstance(ending, Asking):
        return transitions.ask(task, ending.questions, ending.memory, now)
    return transitions.abandon(task, now) if isinstance(ending, Abandoned) else transitions.end(task, ending, now)


def after_signal(task: Task, signal: Signal, now: int) -> Task:
    if isinstance(signal, Cancel):
        return transitions.cancel(task, now)
    after = transitions.answer(task, signal.given, now)
    if after is not task:
        check_answers(after.answers)
    return after


def check_answers(answers: Mapping[str, Any]) -> None:
    """PAYLOAD_TOO_LARGE for more answers than one task may collect."""
    if len(msgspec.json.encode(answers)) > MAX_ANSWERS:
        details = {"reason": "inputResponses", "limit": MAX_ANSWERS}
        raise CallError("PAYLOAD_TOO_LARGE", f"Answers have at most {MAX_ANSWERS} bytes together", details)


def same_order(first: Task, order: Order) -> Task:
    """The first task with this key, if it was ordered with the same input."""
    refuse_other_input(first.order.digest, order.digest)
    return first


def listed(task: Task) -> Task:
    """A task for a list: without its input and outcome, which may be large."""
    return msgspec.structs.replace(task, order=msgspec.structs.replace(task.order, input={}), outcome=None)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


_RETRY_AFTER: Final = 5


def limit_reached(limit: int) -> CallError:
    details = {"reason": "tasks", "retry_after": _RETRY_AFTER}
    message = f"One caller may have {limit} unfinished tasks: wait for one to end, or cancel one"
    return CallError("RESOURCE_EXHAUSTED", message, details)


DATA_LOSS: Final = "DATA_LOSS"


def unreadable(error: BaseException) -> CallError:
    """DATA_LOSS for a stored task that cannot be read."""
    lost = CallError(DATA_LOSS, "What is kept of the task cannot be read any more")
    lost.__cause__ = error
    return lost


def store_unavailable(error: BaseException) -> CallError:
    """UNAVAILABLE for callers of a store that cannot be used; the cause is for our log."""
    away = CallError("UNAVAILABLE", "The store of tasks cannot be used now: try again", {"reason": "store"})
    away.__cause__ = error
    return away
