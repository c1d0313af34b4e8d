"""Handlers that call operations of other processes and return their results unchanged."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from enfold.calls.caller.pending import PendingRequestMap
from enfold.calls.protocol.transport import Transport
from enfold.envelope import ResponseEnvelope
from enfold.operations import Context, Operation, OperationSpec, OperationType, Origin


def remote_operation(
    spec: OperationSpec,
    shown: OperationSpec,
    pending: PendingRequestMap,
    transport: Transport,
    *,
    source: str = "",
    idle: float | None = None,
) -> Operation:
    """Create an operation that appears as `shown` here and is called as `spec` there; `idle` limits a stream's pauses."""
    origin = Origin("calls", source)
    if spec.type is OperationType.SUBSCRIPTION:
        return Operation(shown, RemoteStream(spec, pending, transport, idle), origin=origin)
    return Operation(shown, RemoteCall(spec, pending, transport), origin=origin)


def is_reached_over(operation: Operation, transport: Transport) -> bool:
    """Whether this operation is called over that transport."""
    handler: object = operation.handler
    return isinstance(handler, _Remote) and handler.transport is transport


class _Remote:
    """A remote operation and its transport."""

    __slots__ = ("_pending", "_spec", "transport")

    def __init__(self, spec: OperationSpec, pending: PendingRequestMap, transport: Transport) -> None:
        self._spec = spec
        self._pending = pending
        self.transport = transport


class RemoteCall(_Remote):
    """Calls a query or mutation of another process."""

    __slots__ = ()

    async def __call__(self, input: Mapping[str, Any], context: Context) -> ResponseEnvelope[Any]:
        return await self._pending.call(
            self._spec.id,
            input,
            context,
            idempotent=self._spec.idempotent,
            idempotency_key=context.idempotency_key,
            provenance=_provenance(context),
        )


class RemoteStream(_Remote):
    """Subscribes to an operation of another process."""

    __slots__ = ("_idle",)

    def __init__(
        self, spec: OperationSpec, pending: PendingRequestMap, transport: Transport, idle: float | None
    ) -> None:
        super().__init__(spec, pending, transport)
        self._idle = idle

    async def __call__(self, input: Mapping[str, Any], context: Context) -> AsyncGenerator[ResponseEnvelope[Any]]:
        provenance = _provenance(context)
        return self._pending.subscribe(self._spec.id, input, context, timeout=self._idle, provenance=provenance)


def _provenance(context: Context) -> Any:
    """Return the provenance request for the worker: our run is the parent of its run."""
    if context.recording is not None:
        return context.recording.request()
    return context.invocation.provenance
