"""The states of tasks in the bucket: reading them, and writing them over a known version.

A large outcome is kept in parts. What somebody else has written there is DATA_LOSS, for its own task alone.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final, TypeVar

import msgspec

from enfold.errors import CallError
from enfold.tasks import transitions
from enfold.tasks.nats_bucket import Conflict, Streams
from enfold.tasks.nats_names import task_key, task_pattern
from enfold.tasks.nats_quotas import MAX_REMEMBERED, Ledger
from enfold.tasks.store import DATA_LOSS, now_ms, unreadable
from enfold.tasks.task import Order, Outcome, Task

T = TypeVar("T")

INLINE: Final = 64 * 1024  # bytes of a result that is kept beside the state
ROOM: Final = 8 * 1024  # bytes that are left in a state for what its attempts write there
UNSURE_FOR: Final = 10.0  # seconds for which a write that was not confirmed is tried again
PAUSE: Final = 0.1


class _StateEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A task as the bucket has it; a large outcome is kept in parts."""

    task: Task
    parts: str = ""  # the key of the parts
    size: int = 0
    digest: str = ""


class FoundTask(msgspec.Struct, frozen=True):
    """A task as the clock has it, as the bucket has it, and the revision that the bucket has."""

    task: Task
    kept: _StateEntry
    revision: int


class States:
    """The states of all tasks of a store."""

    def __init__(self, streams: Streams, ledger: Ledger) -> None:
        self._streams = streams
        self._ledger = ledger
        self._known: dict[tuple[str | None, str], str] = {}  # the keys of tasks that were asked for

    async def find(self, order: Order) -> FoundTask | None:
        return await self.find_at(task_key(order))

    async def search(self, owner: str | None, task_id: str) -> FoundTask | None:
        """A task by its id: its operation is looked up once."""
        place = (owner, task_id)
        if place not in self._known:
            keys = await self._streams.keys(task_pattern(owner, task_id))
            if not keys:
                return None
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
            self._known[place] = keys[0]
        return await self.find_at(self._known[place])

    async def find_at(self, key: str) -> FoundTask | None:
        version = await self._streams.read(key)
        if version is None:
            return None
        kept = read_entry(_StateEntry, version.value)
        return FoundTask(transitions.end_if_overdue(kept.task, now_ms()), kept, version.revision)

    async def put(self, task: Task, follows: int, fence: str = "") -> None:
        """Write a state over the revision that it follows. What has ended with it is counted."""
        outcome = b"" if task.outcome is None else msgspec.json.encode(task.outcome)
        text = encoded(task)
        size = len(text)
        if outcome and (len(outcome) > INLINE or size > self._streams.most):
            # Under the name of the attempt: one that is fenced writes over nobody's parts.
            parts = task_key(task.order, f"part.{fence.replace('.', '_')}")
            digest = await self._streams.write_parts(parts, outcome, seconds_kept(task))
            kept = _StateEntry(msgspec.structs.replace(task, outcome=None), parts, len(outcome), digest)
            text, size = msgspec.json.encode(kept), len(outcome)
        await self._write_surely(task, text, follows)
        if task.is_ended:
            await self._ledger.add(task, size, seconds_kept(task))

    async def check_size(self, task: Task) -> None:
        """PAYLOAD_TOO_LARGE where the server cannot hold the task with what a worker writes beside it."""
        await self._streams.open()
        self._streams.check_size(encoded(task), ROOM)

    async def _write_surely(self, task: Task, value: bytes, follows: int) -> None:
        """Write a state; where the server does not confirm it in time, look whether it has it, and try again."""
        from nats.errors import Error

        ends_at = time.monotonic() + UNSURE_FOR
        while True:
            try:
                await self._streams.write(task_key(task.order), value, follows, seconds_kept(task))
            except Conflict:
                found = await self._streams.read(task_key(task.order))
                if found is None or found.value != value:
                    raise
            except (Error, OSError, TimeoutError):
                if time.monotonic() > ends_at:
                    raise
                self._streams.forget()
                await asyncio.sleep(PAUSE)
                continue
            return  # it is there, though perhaps only the confirmation of an earlier write was lost

    async def whole(self, found: FoundTask) -> Task:
        """The task with its outcome, however large."""
        kept = found.kept
        if not kept.parts or found.task.outcome is not None:
            return found.task
        text = await self._streams.read_parts(kept.parts, kept.size, kept.digest)
        if text is None:
            raise CallError(DATA_LOSS, "The result of the task is not complete any more")
        return msgspec.structs.replace(found.task, outcome=msgspec.json.decode(text, type=Outcome))


def encoded(task: Task) -> bytes:
    return msgspec.json.encode(_StateEntry(task))


def read_entry(kind: type[T], value: bytes) -> T:
    """What an entry of the bucket holds; DATA_LOSS where somebody else has written there."""
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.MsgspecError as error:
        raise unreadable(error) from error


def seconds_kept(task: Task) -> float:
    """How long what belongs to a task is kept: for some time after its end even where our clock is ahead of the edge's."""
    return max((task.order.expires - now_ms()) / 1000, task.order.keep)
