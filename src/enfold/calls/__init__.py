"""The call protocol: call operations of other processes and machines."""

# Imports inside functions: nats-py, websockets and cryptography are extras; a peer needs only that of its transport.

from enfold.calls.caller.pending import PendingRequestMap
from enfold.calls.protocol.events import CALL_EVENT_SCHEMA, CALL_MESSAGE_SCHEMA
from enfold.calls.worker.handler import CallHandler

__all__ = ["CALL_EVENT_SCHEMA", "CALL_MESSAGE_SCHEMA", "CallHandler", "PendingRequestMap"]
