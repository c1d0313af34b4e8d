"""Operations that never wait, answered on the spot: of the protocol little is left to do for them.

They can neither be late nor be given up, and they need no task. In one process they need not even a message, as long
as neither side gets hold of the other's data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from enfold.calls import outcomes
from enfold.calls.eager import never_waits
from enfold.calls.events import copied
from enfold.calls.transport import PayloadTooLargeError
from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError
from enfold.operation import Context, OperationSpec, OperationType
from enfold.registry import Registry

__all__ = ["Lane", "Lanes"]

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode
_NOT_JSON: Final = (TypeError, ValueError, OverflowError, RecursionError)


class Lane(msgspec.Struct, frozen=True):
    """What is looked up for every call of an operation, as long as the registry does not change."""

    spec: OperationSpec
    is_quick: bool  # an `async def` that never waits
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
        return Lane(spec, is_quick, spec.access_control.is_open, self._registry.version)

    def run(self, lane: Lane, input: Any, context: Context) -> ResponseEnvelope[Any]:
        """Run what never waits, access check included; there is nothing to await in it."""
        run = self._registry.execute if lane.is_open else self._registry.call
        call = run(lane.spec.id, input, context)
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


def _check_size(operation_id: str, size: int, limit: int, what: str) -> None:
    if size > limit:
        raise outcomes.too_large(operation_id, PayloadTooLargeError(size, limit), what)
