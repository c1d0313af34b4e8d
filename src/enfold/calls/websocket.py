"""The hub and the transport of its spokes, under their public names."""

from enfold.calls.transports.hub_server import WebSocketHub
from enfold.calls.transports.spoke import WebSocketTransport

__all__ = ["WebSocketHub", "WebSocketTransport"]
