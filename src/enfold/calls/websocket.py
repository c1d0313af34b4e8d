"""The hub and the transport of its clients, under their public names."""

from enfold.calls.transports.hub import WebSocketHub
from enfold.calls.transports.websocket import WebSocketTransport

__all__ = ["WebSocketHub", "WebSocketTransport"]
