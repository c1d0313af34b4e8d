"""One request as its worker sees it, from its arrival to its answer, and what is counted of all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from enfold.calls.protocol.events import Payload, Requested
from enfold.calls.protocol.transport import Message
from enfold.calls.worker.producer import Producer
from enfold.errors import CallError
from enfold.operation import Context, Identity, OperationSpec, OperationType

__all__ = ["Counts", "OperationCounts", "ServedCall", "Tally", "context_of"]


class Counts(msgspec.Struct):
    """What has come in, and what was not served."""

    received: int = 0
    malformed: int = 0  # no event, or of another version
    refused: int = 0  # a reply address that is not the sender's own
    duplicates: int = 0
    expired: int = 0
    shed: int = 0


class OperationCounts(msgspec.Struct):
    """How one operation has been used."""

    requests: int = 0
    errors: int = 0
    seconds: float = 0.0
    last_error: str = ""


class Tally(dict[str, OperationCounts]):
    """How each operation has been used."""

    def add(self, operation_id: str, started: float, error: CallError | None) -> None:
        counts = self.get(operation_id)
        if counts is None:
            counts = self[operation_id] = OperationCounts()
        counts.requests += 1
        counts.seconds += time.monotonic() - started
        if error is not None:
            counts.errors += 1
            counts.last_error = error.code


def context_of(request: Requested, identity: Identity | None, left: float | None) -> Context:
    """The context under which a request runs."""
    return Context(
        request_id=request.request_id,
        parent_request_id=request.parent_request_id,
        identity=identity,
        timeout=left,
        last_event_id=request.last_event_id,
        meta=None if request.provenance is None else {"provenance": request.provenance},
    )


PublishAnswer = Callable[["ServedCall", Payload], Coroutine[Any, Any, None]]


class ServedCall:
    """One request; it lives as long as somebody may still ask about it."""

    __slots__ = (
        "_publish",
        "arrived_at",
        "context",
        "deadline",
        "identity",
        "is_aborted",
        "is_accepted",
        "peer",
        "producer",
        "reply",
        "request",
        "spec",
        "spoke_at",
        "task",
    )

    def __init__(
        self,
        message: Message,
        request: Requested,
        spec: OperationSpec,
        publish: PublishAnswer,
        now: float,
        deadline: float | None,
        identity: Identity | None,
    ) -> None:
        self._publish = publish
        self.peer = message.peer
        self.reply = message.reply or ""
        self.identity = identity
        self.request = request
        self.spec = spec
        self.arrived_at = self.spoke_at = now
        self.deadline = deadline
        self.context: Context | None = None
        self.producer: Producer | None = None
        self.task: asyncio.Task[None] | None = None
        self.is_accepted = False
        self.is_aborted = False

    @property
    def is_stream(self) -> bool:
        return self.spec.type is OperationType.SUBSCRIPTION

    def enter(self) -> Context:
        """Begin: the context under which the operation runs, with the time that is left."""
        left = None if self.deadline is None else max(0.0, self.deadline - time.monotonic())
        self.context = context_of(self.request, self.identity, left)
        return self.context

    async def answer(self, payload: Payload) -> None:
        """Publish an event to whoever made the call."""
        await self._publish(self, payload)

    def give_up(self) -> None:
        """The flag is what counts: it is looked at after every publish. Cancelling only makes it quicker."""
        self.is_aborted = True
        if self.context is not None:
            self.context.cancel()
        if self.task is not None:
            self.task.cancel()
