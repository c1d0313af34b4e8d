"""The port of task stores: twelve methods, implemented for memory, SQLite and JetStream."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Annotated, Any, Final, Protocol, TypeAlias

import msgspec

from enfold.errors import CallError
from enfold.middleware.idempotency_store import refuse_other_input
from enfold.operations import Progress
from enfold.operations.questions import Question
from enfold.tasks import transitions
from enfold.tasks.model import EVERY_TASK, NO_INPUT, Order, Outcome, Task, TaskFilter

MAX_ANSWERS: Final = 1_000_000  # bytes of all answers to one task

Served: TypeAlias = Callable[[], Collection[str]]  # the ids of the operations that a worker can run now
Room: TypeAlias = Callable[[], int]  # how many tasks a worker can run besides; it reserves room for them


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

    was_started: bool = True  # whether its handler may have had an effect


Claims: TypeAlias = list[Claim]
Ending: TypeAlias = Outcome | Asking | Abandoned


class Cancel(msgspec.Struct, frozen=True):
    """The caller wants the task to end."""


class Answers(msgspec.Struct, frozen=True):
    """What the caller answers, by the keys of the questions."""

    given: dict[str, Any]


Signal: TypeAlias = Cancel | Answers


class FencedError(Exception):
    """The attempt no longer holds its task: its outcome is ignored."""


class TaskStore(Protocol):
    """Stores tasks. `owner` restricts results to this identity; None for administrators.

    A store that cannot be reached raises UNAVAILABLE with the reason `store`. All methods may be called concurrently.
    Readers see the current state: a task ends at its deadline, and is gone after `expires`.
    """

    beat: float  # seconds between heartbeats of a worker, which also learns of cancellations

    async def accept(self, order: Order, limits: TaskLimits, *, claims: bool = False) -> Task | Claim:
        """Store a task durably; with a key that the owner has used before, return the first one.

        Another input under the same key is a VALIDATION_ERROR, more than the limits allow RESOURCE_EXHAUSTED.
        With `claims` a new task is also claimed, if the store can do both in one step: a Claim.
        """

    async def get(self, owner: str | None, task_id: str) -> Task | None: ...

    async def list(self, owner: str | None, limit: int = 100, wanted: TaskFilter = EVERY_TASK) -> list[Task]:
        """List the `wanted` tasks, newest first, without inputs and outcomes."""

    async def claim(self, served: Served, room: Room, wait: float, *, but: Collection[str] = ()) -> Claims:
        """Claim tasks of these operations, as many as there is room for; wait some seconds if there is none.

        Tasks of the owners in `but` are skipped, if the store can.
        """

    async def take(self, task_id: str) -> Claim | None:
        """Claim this one task, if it is queued and the store can claim a single task."""

    async def has_worker(self) -> bool | None:
        """Whether a worker runs tasks of this store now; None for a store that ends with this process."""

    async def hold(
        self, claim: Claim, progress: Progress | None = None, notes: Mapping[str, Any] | None = None
    ) -> bool:
        """Send a heartbeat; returns whether the caller wants the task to end. FencedError if another worker has taken it over."""

    async def record(self, claim: Claim, ending: Ending) -> Task:
        """Record how the attempt ended, once. FencedError if another worker has taken it over."""

    async def signal(self, owner: str | None, task_id: str, signal: Signal) -> Task | None:
        """Send a signal to a task; returns the task after it."""

    def watch(self, owner: str | None, task_id: str) -> AsyncGenerator[Task]:
        """Yield the task now and after every change, until it has ended or is gone; TASK_NOT_FOUND if there is none."""

    async def expire(self) -> None:
        """End tasks whose deadline has passed, and delete expired ones."""

    async def close(self) -> None: ...


def after_ending(task: Task, ending: Ending, now: int) -> Task:
    if isinstance(ending, Asking):
        return transitions.ask(task, ending.questions, ending.memory, now)
    if isinstance(ending, Abandoned):
        return transitions.abandon(task, now) if ending.was_started else transitions.unclaim(task, now)
    return transitions.end(task, ending, now)


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
        raise CallError("PAYLOAD_TOO_LARGE", f"The answers exceed the limit of {MAX_ANSWERS} bytes", details)


def same_order(first: Task, order: Order) -> Task:
    """Return the first task with this key if it was started with the same input."""
    refuse_other_input(first.order.digest, order.digest)
    return first


def listed(task: Task) -> Task:
    """Return a task for a list: without input and outcome, which may be large."""
    return msgspec.structs.replace(task, order=msgspec.structs.replace(task.order, input_json=NO_INPUT), outcome=None)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


_RETRY_AFTER: Final = 5


def limit_reached(limit: int) -> CallError:
    details = {"reason": "tasks", "retry_after": _RETRY_AFTER}
    message = f"One caller may have {limit} unfinished tasks: wait for one to end, or cancel one"
    return CallError("RESOURCE_EXHAUSTED", message, details)


def task_not_found() -> CallError:
    """Return the same error for an unknown id, an expired one and that of another caller."""
    return CallError("TASK_NOT_FOUND", "Task not found, or expired")


DATA_LOSS: Final = "DATA_LOSS"


def unreadable(error: BaseException) -> CallError:
    """DATA_LOSS for a stored task that cannot be read."""
    lost = CallError(DATA_LOSS, "The stored task is corrupted")
    lost.__cause__ = error
    return lost


def store_unavailable(error: BaseException) -> CallError:
    """UNAVAILABLE for callers of a store that cannot be used; the cause is for our log."""
    away = CallError("UNAVAILABLE", "The task store is unavailable: retry later", {"reason": "store"})
    away.__cause__ = error
    return away


MAX_RESULT: Final = 64 * 1024 * 1024  # bytes
HOUR: Final = 3_600_000  # milliseconds
OVERHEAD: Final = 500  # bytes that a task takes in a store beside its texts, about
SHARE: Final = 10  # the part of their bytes that each caller has where all together have too many


def _limit(description: str, unit: str = "") -> Any:
    return msgspec.Meta(description=description, extra={"unit": unit} if unit else {})


class TaskLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of tasks. Those with a description are keys of `[tasks]`; `max_result` limits the bytes of a result."""

    keep: Annotated[float, _limit("how long a task is kept after its deadline", "seconds")] = 86_400.0
    deadline: Annotated[float, _limit("for all attempts, including waiting", "seconds")] = 86_400.0
    limit: Annotated[int, _limit("unfinished tasks of one identity")] = 100
    kept_bytes_per_identity: Annotated[int, _limit("bytes kept of the finished tasks of one identity")] = 4_000_000_000
    kept_bytes: Annotated[
        int,
        _limit("the same for all identities together; beyond it each identity is limited to a tenth of its own limit"),
    ] = 16_000_000_000
    attempts: Annotated[int, _limit("attempts of a task whose workers crash")] = 3
    max_result: int = MAX_RESULT


def hour_of(order: Order) -> int:
    """Return the hour, counted from 1970, before which the task is deleted."""
    return order.expires // HOUR + 1


def is_large_share(kept: Mapping[int, int], limits: TaskLimits, now: int) -> bool:
    """Whether an owner has so much that the total of all owners matters; `kept` are the owner's bytes by hour."""
    return unexpired(kept, now).total() >= limits.kept_bytes_per_identity // SHARE


def check_kept_bytes(kept: Mapping[int, int], in_all: int, limits: TaskLimits, now: int) -> None:
    """RESOURCE_EXHAUSTED where an owner keeps too much; `retry_after` says when the oldest expire."""
    left, most = unexpired(kept, now), limits.kept_bytes_per_identity
    if in_all >= limits.kept_bytes:
        most = max(1, most // SHARE)
    size = left.total()
    if size < most:
        return
    wait = max(1, (min(left, default=0) * HOUR - now) // 1000)
    whose = (
        "your finished tasks"
        if most == limits.kept_bytes_per_identity
        else "your finished tasks while the store is full"
    )
    message = f"The limit of {most} bytes for {whose} is reached ({size} bytes): the oldest expire in {wait} seconds"
    details = {"reason": "task_bytes", "size": size, "limit": most, "retry_after": wait}
    raise CallError("RESOURCE_EXHAUSTED", message, details)


def unexpired(kept: Mapping[int, int], now: int) -> Counter[int]:
    """Return the bytes of the hours that have not expired."""
    return Counter({hour: size for hour, size in kept.items() if hour * HOUR > now})


SHORTEST: Final = 0.001  # seconds
WORK: Final = ""  # the subject of workers; all others wait for the id of a task

Changes: TypeAlias = Mapping[str, Task | None]  # by subject; None where the task has to be read
MAX_RECENT: Final = 64  # changed tasks that watchers get without a read


Calls: TypeAlias = Sequence[tuple[asyncio.AbstractEventLoop, Callable[[], None]]]


def call_soon(calls: Calls) -> None:
    """Make each call on its event loop, with one wake-up for all calls of a loop; from any thread."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}
    for loop, call in calls:
        by_loop.setdefault(loop, []).append(call)
    for loop, mine in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_call_all, mine)


def _call_all(calls: list[Callable[[], None]]) -> None:
    for call in calls:
        call()


class Waiter:
    """Waits for changes of one subject on its own event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._is_woken = False
        self._future: asyncio.Future[None] | None = None

    def wake(self) -> None:
        self._is_woken = True
        self._end_wait()

    def _end_wait(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self, seconds: float) -> bool:
        """Whether there was a change since the last call, or there is one within so many seconds."""
        if not self._is_woken:
            self._future = self.loop.create_future()
            timer = self.loop.call_later(seconds, self._end_wait)
            try:
                await self._future
            finally:
                timer.cancel()
        is_woken, self._is_woken = self._is_woken, False
        return is_woken


class Wakeups:
    """The waiters of one store, by subject, and the tasks that this process has just stored or read. Several loops may wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, dict[Waiter, None]] = {}  # by subject
        self._recent: dict[str, Task] = {}  # as they were last stored or read, by subject

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @contextmanager
    def expect(self, subject: str) -> Iterator[Waiter]:
        """A waiter that misses no change within the block; read the store inside of it."""
        waiter = Waiter()
        with self._lock:
            self._waiting.setdefault(subject, {})[waiter] = None
        try:
            yield waiter
        finally:
            with self._lock:
                waiting = self._waiting[subject]
                del waiting[waiter]
                if not waiting:
                    del self._waiting[subject]

    def current(self, owner: str | None, task_id: str) -> Task | None:
        """Return a recent task as its owner would read it now; None if it has to be read."""
        task = self._recent.get(task_id)
        if task is None or owner not in (None, task.order.owner):
            return None
        until = task.order.deadline if task.outcome is None else task.order.expires
        return task if now_ms() < until else None

    def forget(self) -> None:
        """Have all tasks read from now on."""
        self._recent = {}

    def remember(self, subject: str, task: Task | None) -> None:
        """Keep the task as it was just stored or read; None to have it read from now on."""
        recent = self._recent  # other threads may forget all
        recent.pop(subject, None)
        if task is not None:
            recent[subject] = task
        if len(recent) > MAX_RECENT:
            del recent[next(iter(recent))]

    async def watch(
        self, owner: str | None, task_id: str, look: Callable[[], Awaitable[Task | None]], again: float
    ) -> AsyncGenerator[Task]:
        """Yield a task now and after every change, until it has ended or is gone; TASK_NOT_FOUND if there is none.

        A task that this process has just stored or read comes from memory. `look` reads the others from the store, and every
        `again` seconds.
        """
        seen: Task | None = None
        with self.expect(task_id) as waiter:
            is_woken = True
            while True:
                task = (self.current(owner, task_id) if is_woken else None) or await look()
                if task is None:
                    if seen is None:
                        raise task_not_found()
                    return
                if task != seen:
                    yield task
                    seen = task
                    if task.is_ended:
                        return
                is_woken = await waiter.wait(_until_looked_at(task, again))

    def changed(self, changes: Changes) -> Calls:
        """Keep what has just been stored, and return the calls that wake those who wait for it; from any thread."""
        for subject, task in changes.items():
            self.remember(subject, task)
        return [(each.loop, each.wake) for subject in changes for each in list(self._waiting.get(subject, ()))]

    def wake(self) -> None:
        """Wake all, and have all tasks read from now on; may be called from any thread."""
        self.forget()
        call_soon([(each.loop, each.wake) for waiting in list(self._waiting.values()) for each in list(waiting)])


def _until_looked_at(task: Task, again: float) -> float:
    """Seconds; at its deadline a task changes although nothing is written."""
    return min(again, max(SHORTEST, (task.order.deadline - now_ms()) / 1000))
