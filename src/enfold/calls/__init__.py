"""The call protocol: the same operation, called across a process or a machine."""

from enfold.calls.events import CALL_EVENT_SCHEMA, CALL_MESSAGE_SCHEMA
from enfold.calls.handler import CallHandler
from enfold.calls.pending import PendingRequestMap

__all__ = ["CALL_EVENT_SCHEMA", "CALL_MESSAGE_SCHEMA", "CallHandler", "PendingRequestMap"]
