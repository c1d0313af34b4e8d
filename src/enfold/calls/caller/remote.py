"""Operations of other processes as local ones: handlers that call them and pass results on unchanged."""

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
    """The operation of a source as `shown` here, called as `spec` there; `idle` is how long a stream may give no item."""
    origin = Origin("calls", source)
    if spec.type is OperationType.SUBSCRIPTION:
        return Operation(shown, RemoteStream(spec, pending, transport, idle), origin=origin)
    return Operation(shown, RemoteCall(spec, pending, transport), origin=origin)


def is_reached_over(operation: Operation, transport: Transport) -> bool:
    """Whether we call this operation over that transport ourselves."""
    handler: object = operation.handler
    return isinstance(handler, _Remote) and handler.transport is transport


class _Remote:
    """The operation that a handler calls, and the way there."""

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
    """Follows a subscription of another process."""

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
    """What the callee is asked to record: our run is the parent of its own."""
    if context.recording is not None:
        return context.recording.request()
    return context.invocation.provenance
