"""Operations that never wait, answered on the spot: of the protocol little is left to do for them.

They can neither be late nor be given up, and they need no task. In one process they need not even a message, as long
as neither side gets hold of the other's data.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import msgspec

from enfold.access import check_access
from enfold.calls.protocol import outcomes
from enfold.calls.protocol.events import Payload, Requested, copied, departing, failed
from enfold.calls.protocol.transport import PayloadTooLargeError
from enfold.calls.transports.memory_bus import MemoryTransport
from enfold.calls.worker.answers import Answers
from enfold.calls.worker.served import Counts, Tally
from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError
from enfold.operation import Context, OperationSpec, OperationType
from enfold.registry import Registry
from enfold.runtime import never_waits

__all__ = ["Lane", "Lanes", "Quick", "as_started"]

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode
_NOT_JSON: Final = (TypeError, ValueError, OverflowError, RecursionError)


class Lane(msgspec.Struct, frozen=True):
    """What is looked up for every call of an operation, as long as the registry does not change."""

    spec: OperationSpec
    is_quick: bool  # an `async def` that never waits
    execute: Callable[[Any, Context | None], Coroutine[Any, Any, ResponseEnvelope[Any]]]
    is_open: bool  # nothing is required of its callers
    version: int  # of the registry


class Lanes:
    """The operations of a registry, each with what is known of it."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._lanes: dict[str, Lane] = {}

    def of(self, operation_id: str) -> Lane:
        """The lane of an operation as it is registered now; raises OPERATION_NOT_FOUND."""
        lane = self._lanes.get(operation_id)
        if lane is None or lane.version != self._registry.version:
            lane = self._lanes[operation_id] = self._look_up(operation_id)
        return lane

    def _look_up(self, operation_id: str) -> Lane:
        operation = self._registry.get(operation_id)
        spec = operation.spec
        is_quick = spec.type is not OperationType.SUBSCRIPTION and never_waits(operation.handler)
        execute = self._registry.prepared(operation_id).execute
        return Lane(spec, is_quick, execute, spec.access_control.is_open, self._registry.version)

    def run(self, lane: Lane, input: Any, context: Context) -> ResponseEnvelope[Any]:
        """Run what never waits, access check included; there is nothing to await in it."""
        if not lane.is_open:
            check_access(lane.spec, context.identity, input)
        call = lane.execute(input, context)
        try:
            call.send(None)
        except StopIteration as done:
            result: ResponseEnvelope[Any] = done.value
            return result
        except asyncio.CancelledError:
            # Raised by the handler itself; let out, it would end whoever receives messages for us.
            raise CallError("EXECUTION_ERROR", f"{lane.spec.id} cancelled itself") from None
        call.close()
        raise CallError("UNKNOWN_ERROR", f"{lane.spec.id} waited, which it cannot")

    def run_copied(self, lane: Lane, input: Mapping[str, Any], context: Context, limit: int) -> ResponseEnvelope[Any]:
        """The same without a message: input and result are copied, and no larger than a message may be."""
        try:
            text = _encode(input)
        except _NOT_JSON as error:
            raise CallError("VALIDATION_ERROR", f"The input cannot be sent: {error}") from error
        _check_size(lane.spec.id, len(text), limit, "input")
        envelope = self.run(lane, _decode(text), context)
        try:
            copy, size = copied(envelope)
        except _NOT_JSON as error:
            raise CallError("EXECUTION_ERROR", f"failed to marshal response: {error}") from error
        _check_size(lane.spec.id, size, limit, "result")
        return copy


class Quick:
    """Answers what never waits: requests that came as messages, and callers of this process without one."""

    def __init__(self, lanes: Lanes, answers: Answers, counts: Counts, operations: Tally, *, verifies: bool) -> None:
        self._lanes = lanes
        self._answers = answers
        self._counts = counts
        self._operations = operations
        self._verifies = verifies  # delegations, which are read from messages

    def answer(self, lane: Lane, reply: str, request: Requested, context: Context) -> None:
        """Run a request, and send its answer."""
        started = time.monotonic()
        error: CallError | None = None
        try:
            payload: Payload = departing(request.request_id, self._lanes.run(lane, request.input, context))
        except CallError as raised:
            error = raised
            payload = failed(request.request_id, as_started(raised))
        self._operations.add(request.operation_id, started, error)
        self._answers.say(self._answers.reply(reply, request.operation_id, payload, context))

    def answer_now(
        self, operation_id: str, input: Mapping[str, Any], sender: MemoryTransport, parent: str | None, ttl: float
    ) -> ResponseEnvelope[Any] | None:
        """Answer a caller of this process without a message; None where messages are needed after all."""
        lane = self._lanes.of(operation_id)
        if self._verifies or not lane.is_quick:
            return None
        started = time.monotonic()
        context = Context(parent_request_id=parent, identity=sender.identity, timeout=ttl)
        error: CallError | None = None
        try:
            return self._lanes.run_copied(lane, input, context, sender.capabilities.max_payload)
        except CallError as raised:
            error = as_started(raised)
            raise error from raised.__cause__
        finally:
            self._counts.received += 1
            self._operations.add(operation_id, started, error)


def as_started(error: CallError) -> CallError:
    """An error from inside a call that ran: what a nested call says of itself is not true of this one."""
    if "started" not in error.details:
        return error
    details = {key: value for key, value in error.details.items() if key != "started"}
    return CallError(error.code, error.message, details, error.retryable)


def _check_size(operation_id: str, size: int, limit: int, what: str) -> None:
    if size > limit:
        raise outcomes.too_large(operation_id, PayloadTooLargeError(size, limit), what)
