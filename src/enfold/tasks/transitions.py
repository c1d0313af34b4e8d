"""The state changes of a task. Pure: every store applies these under its own lock or compare-and-set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from enfold.errors import CallError
from enfold.middleware.idempotency_store import failure
from enfold.operations import Progress
from enfold.operations.questions import Question
from enfold.tasks.model import SERVER_TASK, Attempt, Exchange, Order, Outcome, Status, Task

MAX_ATTEMPTS: Final = 20  # attempts and questions that are remembered of one task
MAX_EXCHANGES: Final = 10
MAX_TEXT: Final = 300  # characters of a question, and of its answer

_replace = msgspec.structs.replace


def _changed(task: Task, now: int, **fields: Any) -> Task:
    """Return the task with other fields; `updated` never goes back, even if a clock does."""
    return _replace(task, updated=max(task.updated, now), **fields)


def accept(order: Order) -> Task:
    return Task(order, order.created)


def claim(task: Task, fence: str, now: int) -> Task:
    """Begin an attempt; only one with this fence can hold the task or record its outcome."""
    begun = Attempt(fence.partition(".")[0], now)
    return _changed(task, now, fence=fence, attempt=task.attempt + 1, attempts=(*task.attempts, begun)[-MAX_ATTEMPTS:])


def unclaim(task: Task, now: int) -> Task:
    """Return a claimed task that has not been started."""
    return _changed(task, now, fence="", attempt=task.attempt - 1, attempts=task.attempts[:-1])


def _ended_attempt(task: Task, reason: str, now: int) -> tuple[Attempt, ...]:
    """Return the attempts of a task; the last one has ended now, unless it had before."""
    *before, last = task.attempts or (Attempt("", 0, 0),)
    return task.attempts if last.ended is not None else (*before, _replace(last, ended=now, reason=reason))


def note(task: Task, now: int, progress: Progress | None, notes: Mapping[str, Any] | None) -> Task:
    """Store progress, and notes for later attempts."""
    if progress is None and not notes:
        return task
    merged = {**task.notes, **notes} if notes else task.notes
    return _changed(task, now, progress=progress or task.progress, notes=merged)


def ask(task: Task, questions: Mapping[str, Question], memory: Mapping[str, Any], now: int) -> Task:
    """End the attempt with questions; the task waits until they are answered."""
    if task.is_cancelling:
        return cancel(_replace(task, fence=""), now)
    asked = [Exchange(key, _message(question)[:MAX_TEXT], now) for key, question in questions.items()]
    return _changed(
        task,
        now,
        status=Status.INPUT_REQUIRED,
        fence="",
        questions=dict(questions),
        memory=dict(memory),
        attempts=_ended_attempt(task, "asked", now),
        exchanges=(*task.exchanges, *asked)[-MAX_EXCHANGES:],
    )


def _message(question: Question) -> str:
    return str(question.params.get("message") or question.method)


def answer(task: Task, answers: Mapping[str, Any], now: int) -> Task:
    """Take the answers to open questions; all others are ignored. With the last one the task is queued again."""
    fitting = {key: answer for key, answer in answers.items() if key in task.questions}
    if not fitting or task.status is not Status.INPUT_REQUIRED:
        return task
    left = {key: question for key, question in task.questions.items() if key not in fitting}
    status = Status.INPUT_REQUIRED if left else Status.WORKING
    exchanges = tuple(
        _replace(each, answered=now, answer=_shown(task.questions[each.key], fitting[each.key]))
        if each.answered is None and each.key in fitting
        else each
        for each in task.exchanges
    )
    return _changed(task, now, status=status, questions=left, answers={**task.answers, **fitting}, exchanges=exchanges)


def _shown(question: Question, answer: Any) -> str:
    """Return an answer as text, without values that its name or schema marks as secret."""
    from enfold.provenance.redaction import redact  # with the first answer

    schema = {"properties": {"content": question.params.get("requestedSchema") or {}}}
    return msgspec.json.encode(redact(answer, schema).value).decode()[:MAX_TEXT]


def cancel(task: Task, now: int) -> Task:
    """Cancel: at once if no worker has the task, else with the worker's next heartbeat."""
    if task.is_ended or (task.fence and task.is_cancelling):
        return task
    if task.fence:
        return _changed(task, now, is_cancelling=True)
    return end(task, failure(CallError("ABORTED", f"{task.operation} was cancelled")), now)


def worker_died(task: Task, now: int) -> Task:
    """Handle the death of the worker: requeue the task if it may run twice and has attempts left; else it fails."""
    return _without_worker(task, now, task.deaths + 1, "worker_died")


def abandon(task: Task, now: int) -> Task:
    """Abandon the task at an orderly stop: like a death of the worker, but without using up an attempt."""
    return _without_worker(task, now, task.deaths, "worker_stopped")


def _without_worker(task: Task, now: int, deaths: int, reason: str) -> Task:
    if task.is_ended or not task.fence:
        return task
    left = _changed(task, now, fence="", deaths=deaths, attempts=_ended_attempt(task, reason, now))
    if left.is_cancelling:
        return cancel(left, now)
    may_start = left.order.retries or SERVER_TASK in left.notes  # which is only waited for
    if may_start and left.deaths < left.order.attempts:
        return left
    return end(left, failure(_worker_died(left)), now)


def end_if_overdue(task: Task, now: int) -> Task:
    """Return the task, ended with TIMEOUT if its deadline has passed."""
    if task.is_ended or now < task.order.deadline:
        return task
    message = f"{task.operation} did not finish by its deadline"
    # How far it came is unknown, unless it was never started.
    may_be_repeated = task.order.retries or task.attempt == 0
    return end(task, failure(CallError("TIMEOUT", message, retryable=may_be_repeated)), now)


def is_forgotten(task: Task, now: int) -> bool:
    """Whether its retention is over: callers find it no more."""
    return task.order.expires <= now


def end(task: Task, outcome: Outcome, now: int) -> Task:
    """It ends; what only a later attempt would read is dropped."""
    status = Status.COMPLETED
    if outcome.failure is not None:
        status = Status.CANCELLED if outcome.failure.code == "ABORTED" else Status.FAILED
    attempts = _ended_attempt(task, status.value, now)
    dropped: dict[str, Any] = {"questions": {}, "answers": {}, "memory": {}, "notes": {}}
    return _changed(task, now, status=status, fence="", **dropped, attempts=attempts, outcome=outcome)


def frees_key(task: Task) -> bool:
    """Whether its key may be used for a new task: it failed with a retryable error."""
    told = None if task.outcome is None else task.outcome.failure
    return told is not None and told.retryable


def _worker_died(task: Task) -> CallError:
    often = "" if task.deaths <= 1 else f" {task.deaths} times"
    message = f"The worker that ran {task.operation} died{often}: its effects are unknown"
    return CallError("OUTCOME_UNKNOWN", message, {"reason": "worker_died"}, retryable=False)
