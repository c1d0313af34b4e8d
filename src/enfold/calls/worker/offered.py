"""What a worker offers: the operations it takes calls of, and, in one process, the short way to them."""

from __future__ import annotations

from collections.abc import Iterator

from enfold.calls.protocol.subjects import WORKERS, offer_subject
from enfold.calls.protocol.transport import Receive, Subscription, Transport
from enfold.calls.transports.memory_bus import MemoryTransport, Shortcut

__all__ = ["OfferedOperations"]


class OfferedOperations:
    """The subscriptions of one worker, by operation."""

    def __init__(self, transport: Transport, receive: Receive, worker: Shortcut) -> None:
        self._transport = transport
        self._receive = receive
        self._worker = worker
        self._subscriptions: dict[str, Subscription] = {}
        self._shortcuts = transport.shortcuts if isinstance(transport, MemoryTransport) else None

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._subscriptions))

    async def add(self, operation_id: str) -> None:
        """Take calls of an operation; raises a TransportError where the transport refuses."""
        if operation_id in self._subscriptions:
            return
        subject = offer_subject(operation_id)
        self._subscriptions[operation_id] = await self._transport.subscribe(subject, self._receive, queue=WORKERS)
        if self._shortcuts is not None:
            self._shortcuts.setdefault(operation_id, []).append(self._worker)

    async def remove(self, operation_id: str, *, drain: bool = True) -> None:
        """Take no more calls of an operation; with `drain` those that have been sent to us are still received."""
        subscription = self._subscriptions.pop(operation_id, None)
        if subscription is not None:
            if self._shortcuts is not None:
                self._shortcuts[operation_id].remove(self._worker)
            await subscription.close(drain=drain)

    async def close(self, *, drain: bool) -> None:
        for operation_id in self:
            await self.remove(operation_id, drain=drain)
