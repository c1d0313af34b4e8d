"""The outcomes of a call that does not fail: a result, questions for its caller, or a task.

Failures are `CallError`s. A handler that asks or detaches is stopped in the middle of its frame by `Suspension`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError

if TYPE_CHECKING:
    from enfold.operations.questions import Question
    from enfold.tasks import Task


class NeedsInput(msgspec.Struct, frozen=True):
    """The caller must answer questions and call again; the handler then runs again from its beginning.

    Without questions, the handler has called `context.detach()`, and runs again as a task.
    """

    questions: Mapping[str, Question] = {}  # by the key under which each is answered


class Deferred(msgspec.Struct, frozen=True):
    """The call continues as a task of this server or of an upstream server; its caller has a handle for it."""

    task: Task


Outcome: TypeAlias = "ResponseEnvelope[Any] | NeedsInput | Deferred"


class Suspension(BaseException):
    """Stops a handler whose call has an outcome before the handler returns.

    Control flow inside the frames of user code only: the step that runs a handler, or a user's middleware, turns it into
    the outcome. It is not an `Exception`, so that a handler's `except Exception` does not swallow a question.
    """

    def __init__(self, outcome: NeedsInput | Deferred) -> None:
        super().__init__(outcome)
        self.outcome = outcome


def outcome_in(error: BaseException) -> NeedsInput | Deferred | None:
    """Return the outcome of a handler that was stopped, also inside task groups; None for a failure."""
    if isinstance(error, Suspension):
        return error.outcome
    if not isinstance(error, BaseExceptionGroup):
        return None
    questions: dict[str, Question] = {}
    for each in error.exceptions:
        outcome = outcome_in(each)
        if not isinstance(outcome, NeedsInput):
            return outcome
        questions.update(outcome.questions)
    return NeedsInput(questions)


def envelope_of(outcome: Outcome, *, is_nested: bool = False) -> ResponseEnvelope[Any]:
    """Return the result, for a caller that can neither answer questions by calling again nor follow a task.

    `is_nested`: a handler made the call; what stops the call stops that handler, too.
    """
    if isinstance(outcome, ResponseEnvelope):
        return outcome
    if is_nested:
        raise Suspension(outcome)
    message = "The operation asks its caller questions, which this caller cannot answer"
    raise CallError("UNAVAILABLE", message, {"reason": "input_required"}, retryable=False)
