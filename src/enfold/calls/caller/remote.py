"""The handler of an operation that another process runs: it calls it there, and returns its results unchanged."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

import msgspec

from enfold.calls.caller.pending import PendingRequestMap
from enfold.calls.protocol.transport import Transport
from enfold.envelope import ResponseEnvelope
from enfold.operations import Context, OperationSpec, OperationType


class RemoteHandler(msgspec.Struct, frozen=True, eq=False):
    """Calls an operation by the spec that its workers have; `idle` limits the pauses of a stream."""

    spec: OperationSpec
    calls: PendingRequestMap
    transport: Transport
    idle: float | None = None

    async def __call__(
        self, input: Mapping[str, Any], context: Context
    ) -> ResponseEnvelope[Any] | AsyncGenerator[ResponseEnvelope[Any]]:
        # The record of our run is the parent of the worker's.
        asked: Any = context.recording.request() if context.recording is not None else context.invocation.provenance
        spec = self.spec
        if spec.type is OperationType.SUBSCRIPTION:
            return self.calls.subscribe(spec.id, input, context, timeout=self.idle, provenance=asked)
        return await self.calls.call(
            spec.id,
            input,
            context,
            idempotent=spec.idempotent,
            idempotency_key=context.idempotency_key,
            provenance=asked,
        )
