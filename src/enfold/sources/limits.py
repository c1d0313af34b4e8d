"""What sources accept from upstream services. The keys of the configuration are generated from these values."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec


def _limit(unit: str, description: str) -> Any:
    return msgspec.Meta(description=description, extra={"unit": unit})


class MCPLimits(msgspec.Struct, frozen=True):
    """How much a source accepts from its MCP servers, and how long it waits for them: sizes in bytes, times in seconds."""

    message_bytes: Annotated[int, _limit("bytes", "of one message")] = 64 * 1024 * 1024
    connect: Annotated[float, _limit("seconds", "from the start of a server to the end of the handshake")] = 30.0
    probe: Annotated[
        float,
        _limit("seconds", "for the first request of the newest revision, before the older handshake is tried as well"),
    ] = 3.0
    held: Annotated[float, _limit("seconds", "for a user to answer while a call of an older server waits")] = 600.0
    rounds: Annotated[int, _limit("rounds", "of questions in one call")] = 10
    pages: Annotated[int, _limit("pages", "of one list")] = 1000
    list_items: Annotated[int, _limit("items", "of one list, over all its pages")] = 10_000
    list_bytes: Annotated[int, _limit("bytes", "of one list, over all its pages")] = 16 * 1024 * 1024
    reconnects: Annotated[int, _limit("times", "that a broken event stream is resumed without a new event")] = 5
    open_requests: Annotated[int, _limit("requests", "of a server, open on one connection")] = 100
    unread_bytes: Annotated[int, _limit("bytes", "written to a server that does not read them")] = 16 * 1024 * 1024
    notice_bytes: Annotated[int, _limit("bytes", "of log messages and progress in one call")] = 4 * 1024 * 1024
