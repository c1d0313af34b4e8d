"""How the trace of a call goes on with what it asks of others: headers of HTTP and of messages, fields of MCP's `_meta`.

Sources read `inject` when they call; it is None for as long as nobody traces, so that nothing is paid.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

NAMES: Final = ("traceparent", "tracestate", "baggage")

# Gives `traceparent`, and `tracestate` and `baggage` where there are such, of the call that runs now.
inject: Callable[[], dict[str, str]] | None = None
