"""The transport of one process, under its public name."""

from enfold.calls.transports.memory import MemoryTransport

__all__ = ["MemoryTransport"]
