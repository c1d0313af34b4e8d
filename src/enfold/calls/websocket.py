"""Public module of the hub and the transport of its clients."""

from enfold.calls.transports.hub import WebSocketHub
from enfold.calls.transports.websocket import WebSocketTransport

__all__ = ["WebSocketHub", "WebSocketTransport"]
