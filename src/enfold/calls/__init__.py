"""The call protocol: call operations of other processes and machines."""

# Imports inside functions: nats-py, websockets and cryptography are extras; a peer needs only that of its transport, and
# a command that reads the address of peers needs none of this.

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from enfold.calls.caller.pending import PendingRequestMap
    from enfold.calls.protocol.events import CALL_EVENT_SCHEMA, CALL_MESSAGE_SCHEMA
    from enfold.calls.worker.handler import CallHandler

__all__ = ["CALL_EVENT_SCHEMA", "CALL_MESSAGE_SCHEMA", "CallHandler", "PendingRequestMap"]

_MODULES: Final = {
    "CALL_EVENT_SCHEMA": "protocol.events",
    "CALL_MESSAGE_SCHEMA": "protocol.events",
    "CallHandler": "worker.handler",
    "PendingRequestMap": "caller.pending",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"enfold.calls.{_MODULES[name]}"), name)
