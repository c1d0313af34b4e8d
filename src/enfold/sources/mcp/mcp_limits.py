"""How much and how long a source waits for and takes from its servers."""

from __future__ import annotations

import msgspec


class MCPLimits(msgspec.Struct, frozen=True):
    """Sizes in bytes, times in seconds."""

    message_bytes: int = 64 * 1024 * 1024
    connect: float = 30.0  # from the start of a server to the end of the handshake
    probe: float = 3.0  # for the newest revision's first question, before the older handshake is tried beside it
    held: float = 600.0  # for a user to answer, while a call of an older server waits
    rounds: int = 10  # of questions in one call
    pages: int = 1000  # of one list
    list_items: int = 10_000  # of one list, over all its pages
    list_bytes: int = 16 * 1024 * 1024  # of one list, over all its pages
    reconnects: int = 5  # of a broken event stream, without anything new on it
    open_requests: int = 100  # of a server, on one connection
    side_sessions: int = 4  # of a server that waits for one client's answer, for the calls of others
    unread_bytes: int = 16 * 1024 * 1024  # written to a server that does not read
    notice_bytes: int = 4 * 1024 * 1024  # of log messages and progress in one call
