"""Public module of the transport within one process."""

from enfold.calls.transports.memory import MemoryTransport

__all__ = ["MemoryTransport"]
