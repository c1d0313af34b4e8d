"""Public module of the transport over NATS and its shared idempotency store."""

from enfold.calls.transports.nats import NATSTransport
from enfold.calls.worker.nats_idempotency_store import NATSIdempotencyStore

__all__ = ["NATSIdempotencyStore", "NATSTransport"]
