"""A call as operators see it, as values: its record when it has ended, and what is known for its span when it begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from enfold.operation import Origin

__all__ = ["OK", "CallRecord", "SpanStart"]

OK: Final = "OK"


class CallRecord(msgspec.Struct, frozen=True):
    """A call that has ended, as an operator may see it: never its arguments, never its result.

    `operation` is empty where none was found; `code` is that of the error, or OK; sizes are those of bodies, and None where
    nobody knows them; `items` is the number of a stream's items.
    """

    time: float  # when it ended, in Unix seconds
    surface: str  # http, mcp, cgi, shell, calls; process for a call made in this one
    operation: str
    origin: Origin
    code: str
    duration: float  # seconds
    request_id: str
    parent_request_id: str | None = None
    caller: str | None = None  # the id of the identity
    warnings: int = 0
    first_warning: str | None = None
    request_bytes: int | None = None
    response_bytes: int | None = None
    items: int | None = None


class SpanStart(msgspec.Struct, frozen=True):
    """What is known of a call when it begins, for its span; `carrier` is where the caller's trace may be found."""

    name: str
    kind: str = "server"  # or client, internal
    attributes: Mapping[str, Any] = {}
    carrier: Mapping[Any, Any] | None = None
