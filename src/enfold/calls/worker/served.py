"""The state of one request at its worker, and the counts of all."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from enfold.calls.protocol.events import Requested, ResultTaker
from enfold.calls.worker.producer import Producer
from enfold.operation import Context, Identity
from enfold.operation.repeats import Owner
from enfold.runtime import PreparedOperation


class Served(msgspec.Struct, frozen=True):
    """An operation as it is served, looked up once for all calls until the registry changes."""

    operation_id: str
    prepared: PreparedOperation
    may_wait: bool
    counts: OperationCounts


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


class ServedCall(msgspec.Struct, eq=False):
    """One request; kept as long as its caller may still send control events for it."""

    request: Requested
    served: Served
    identity: Identity | None
    peer: str | None
    owner: Owner  # whose slot it has
    reply: str
    back: ResultTaker | None  # who hears the result, where that is in this process
    deadline: float | None
    arrived_at: float
    spoke_at: float
    headers: Mapping[str, str] | None = None  # where its caller's trace may stand
    size: int | None = None  # of the request, in bytes
    context: Context | None = None
    producer: Producer | None = None
    task: asyncio.Task[None] | None = None
    is_accepted: bool = False
    is_aborted: bool = False

    @property
    def operation_id(self) -> str:
        return self.request.operation_id

    @property
    def prepared(self) -> PreparedOperation:
        return self.served.prepared

    def abort(self) -> None:
        """Stop the call. The flag is what counts, checked after every publish; cancelling its task only makes it quicker.

        What runs under an idempotency key goes on without a caller.
        """
        self.is_aborted = True
        if self.context is not None:
            self.context.cancel()
        if self.task is not None:
            self.task.cancel()
