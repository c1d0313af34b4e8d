"""The call protocol: the same operation, called across a process or a machine."""

from enfold.calls.caller.pending import PendingRequestMap
from enfold.calls.protocol.events import CALL_EVENT_SCHEMA, CALL_MESSAGE_SCHEMA
from enfold.calls.worker.handler import CallHandler

__all__ = ["CALL_EVENT_SCHEMA", "CALL_MESSAGE_SCHEMA", "CallHandler", "PendingRequestMap"]
