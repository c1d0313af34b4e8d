"""What a handler sees of the task it runs for: the task itself, and the caller it may ask, who is not there now.

A question ends the attempt. When all are answered the handler is run again from its beginning, and each question that
has an answer gives it at once. A key is bound to the text of its question: another question never gets its answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec

from enfold.operation.asking import EVERY_QUESTION, InputRequired, Question
from enfold.tasks.task import Task

MAX_NOTES: Final = 64 * 1024


class Attempt(Protocol):
    """What a handler's task asks of who runs it."""

    is_left: bool

    async def keep(self, notes: dict[str, Any]) -> None:
        """Store notes, or raise."""


class CurrentTask:
    """`context.task` of a handler."""

    def __init__(self, task: Task, watch: Attempt) -> None:
        self.id = task.id
        self.attempt = task.attempt
        self._notes = dict(task.notes)
        self._watch = watch

    @property
    def is_left(self) -> bool:
        return self._watch.is_left

    @property
    def notes(self) -> Mapping[str, Any]:
        return self._notes

    async def note(self, key: str, value: Any) -> None:
        noted = {**self._notes, key: value}
        if len(msgspec.json.encode(noted)) > MAX_NOTES:
            raise ValueError(f"The notes of a task have at most {MAX_NOTES} bytes together")
        await self._watch.keep({key: value})
        self._notes = noted


class AbsentCaller:
    """The peer of a handler inside a task: it has the answers given so far, and raises the other questions."""

    def __init__(self, task: Task) -> None:
        self.capabilities: Mapping[str, Any] = (
            EVERY_QUESTION if task.order.capabilities is None else task.order.capabilities
        )
        self.client: object = self
        self.meta: Mapping[str, Any] = {}
        self.memory = dict(task.memory)
        self._in_call = task.order.answers
        self._in_task = task.answers
        self.asked: dict[str, int] = {}

    async def ask(self, questions: Mapping[str, Question]) -> dict[str, Any]:
        keys = {key: question_key(key, question) for key, question in questions.items()}
        answers = {key: self._in_call[key] for key in questions if key in self._in_call}
        answers |= {key: self._in_task[bound] for key, bound in keys.items() if bound in self._in_task}
        missing = {keys[key]: question for key, question in questions.items() if key not in answers}
        if missing:
            raise InputRequired(missing)
        return answers

    def resource_updated(self, uri: str) -> None:
        """Nobody follows resources of a task."""

    def close_stream(self) -> None:
        """There is no connection to let go of."""


def question_key(key: str, question: Question) -> str:
    """The key under which callers see a question: the handler's own, and the digest of what is asked."""
    text = msgspec.json.encode([question.method, question.params], order="deterministic")
    return f"{key}-{hashlib.sha256(text).hexdigest()[:12]}"
