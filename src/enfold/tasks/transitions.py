"""How a task goes from one state to the next. Pure: every store applies these under its own lock or compare-and-set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from enfold.errors import CallError
from enfold.idempotency.outcomes import failure
from enfold.mcp.asking import Question
from enfold.operation import Progress
from enfold.tasks.task import Order, Outcome, Status, Task

__all__ = [
    "accepted",
    "answered",
    "asked",
    "cancelled",
    "claimed",
    "died",
    "ended",
    "noted",
    "overdue",
    "unclaimed",
]

_replace = msgspec.structs.replace


def accepted(order: Order) -> Task:
    return Task(order, order.created)


def claimed(task: Task, fence: str, now: int) -> Task:
    """A worker begins an attempt; only who knows the fence can hold the task or record its outcome."""
    return _replace(task, fence=fence, attempt=task.attempt + 1, updated=now)


def unclaimed(task: Task, now: int) -> Task:
    """The worker gives back what it has not begun."""
    return _replace(task, fence="", attempt=task.attempt - 1, updated=now)


def noted(task: Task, now: int, progress: Progress | None, notes: Mapping[str, Any] | None) -> Task:
    """The worker tells how far it is, and what later attempts should know."""
    if progress is None and not notes:
        return task
    merged = {**task.notes, **notes} if notes else task.notes
    return _replace(task, progress=progress or task.progress, notes=merged, updated=now)


def asked(task: Task, questions: Mapping[str, Question], memory: Mapping[str, Any], now: int) -> Task:
    """The attempt ends with questions; nobody works on the task until they are answered."""
    if task.is_cancelling:
        return cancelled(_replace(task, fence=""), now)
    return _replace(
        task, status=Status.INPUT_REQUIRED, fence="", questions=dict(questions), memory=dict(memory), updated=now
    )


def answered(task: Task, answers: Mapping[str, Any], now: int) -> Task:
    """Take the answers to open questions; all others are ignored. With the last one the task is queued again."""
    fitting = {key: answer for key, answer in answers.items() if key in task.questions}
    if not fitting or task.status is not Status.INPUT_REQUIRED:
        return task
    left = {key: question for key, question in task.questions.items() if key not in fitting}
    status = Status.INPUT_REQUIRED if left else Status.WORKING
    return _replace(task, status=status, questions=left, answers={**task.answers, **fitting}, updated=now)


def cancelled(task: Task, now: int) -> Task:
    """The caller wants it to end: at once where nobody works on it, else as soon as its worker hears of it."""
    if task.is_ended or (task.fence and task.is_cancelling):
        return task
    if task.fence:
        return _replace(task, is_cancelling=True, updated=now)
    return ended(task, failure(CallError("ABORTED", f"{task.operation} was cancelled")), now)


def died(task: Task, now: int) -> Task:
    """The worker that held it is gone: start again where that is allowed, else nobody knows how it ended."""
    if task.is_ended or not task.fence:
        return task
    left = _replace(task, fence="", deaths=task.deaths + 1, updated=now)
    if left.is_cancelling:
        return cancelled(left, now)
    if left.order.retries and left.deaths < left.order.attempts:
        return left
    return ended(left, failure(_worker_died(left)), now)


def overdue(task: Task, now: int) -> Task:
    """Its deadline may have passed, whatever state it is in."""
    if task.is_ended or now < task.order.deadline:
        return task
    return ended(task, failure(CallError("TIMEOUT", f"{task.operation} was not done by its deadline")), now)


def ended(task: Task, outcome: Outcome, now: int) -> Task:
    status = Status.COMPLETED
    if outcome.failure is not None:
        status = Status.CANCELLED if outcome.failure.code == "ABORTED" else Status.FAILED
    return _replace(task, status=status, fence="", questions={}, outcome=outcome, updated=now)


def _worker_died(task: Task) -> CallError:
    often = "" if task.deaths == 1 else f" {task.deaths} times"
    message = f"The worker that ran {task.operation} died{often}: nobody knows how far it came"
    return CallError("EXECUTION_ERROR", message, {"reason": "worker_died"}, retryable=False)
