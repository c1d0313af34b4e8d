"""What a handler sees of its task: `context.task`, a heartbeat behind it, and a peer for questions to the absent caller.

A question ends the attempt. When all are answered the handler is run again from its beginning, and each question that
has an answer gives it at once. A key is bound to the text of its question: another question never gets its answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from enfold.errors import CallError
from enfold.operation import LogMessage, Progress
from enfold.operation.asking import EVERY_QUESTION, InputRequired, Question
from enfold.tasks.store import Claim, FencedError, TaskStore
from enfold.tasks.task import Task

MAX_NOTES: Final = 64 * 1024
PROGRESS_EVERY: Final = 1.0  # seconds


class AttemptPulse:
    """The heartbeat of one attempt, which carries its handler's progress to the store."""

    def __init__(self, store: TaskStore, claim: Claim) -> None:
        self._store = store
        self._claim = claim
        self.owner = claim.task.owner
        self._progress: Progress | None = None
        self._told_at = time.monotonic() - PROGRESS_EVERY
        self.is_left = False  # whether the task goes on without this attempt
        self.is_fenced = False
        self.is_cancelling = False

    def hear(self, message: Progress | LogMessage) -> None:
        """Take the handler's progress; it is stored with the next heartbeat, at most once a second."""
        if isinstance(message, Progress):
            self._progress = message

    async def keep(self, notes: dict[str, Any]) -> None:
        """Store what the handler wants later attempts to know."""
        await self._store.hold(self._claim, None, notes)

    async def tell(self) -> None:
        """Store the last progress, however soon it came after the one before."""
        if self._progress is not None:
            await self._store.hold(self._claim, self._progress)

    async def beat(self, running: asyncio.Task[Any]) -> None:
        """Send heartbeats until the handler must stop: the task is cancelled, or another attempt has it."""
        while True:
            await asyncio.sleep(self._store.beat)
            try:
                self.is_cancelling = await self._hold()
            except FencedError:
                self.is_fenced = self.is_left = True
            except CallError:
                continue  # a store that is away; the handler goes on meanwhile
            if self.is_fenced or self.is_cancelling:
                running.cancel()
                return

    async def _hold(self) -> bool:
        told, now = None, time.monotonic()
        if now - self._told_at >= PROGRESS_EVERY:
            told, self._progress = self._progress, None
        if told is not None:
            self._told_at = now
        return await self._store.hold(self._claim, told)


class CurrentTask:
    """`context.task` of a handler."""

    def __init__(self, task: Task, pulse: AttemptPulse) -> None:
        self.id = task.id
        self.attempt = task.attempt
        self._notes = dict(task.notes)
        self._pulse = pulse

    @property
    def is_left(self) -> bool:
        return self._pulse.is_left

    @property
    def notes(self) -> Mapping[str, Any]:
        return self._notes

    async def note(self, key: str, value: Any) -> None:
        noted = {**self._notes, key: value}
        if len(msgspec.json.encode(noted)) > MAX_NOTES:
            raise ValueError(f"The notes of a task have at most {MAX_NOTES} bytes together")
        await self._pulse.keep({key: value})
        self._notes = noted


class AbsentCaller:
    """The peer of a handler inside a task: it has the answers given so far, and raises the other questions."""

    def __init__(self, task: Task) -> None:
        self.capabilities: Mapping[str, Any] = (
            EVERY_QUESTION if task.order.capabilities is None else task.order.capabilities
        )
        self.client: object = self
        self.session = None
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
