"""Observability of calls: records, observers, traces, metrics and log lines."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from enfold.observability.records import CallRecord

__all__ = ["CallRecord"]


def __getattr__(name: str) -> Any:
    if name != "CallRecord":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from enfold.observability.records import CallRecord  # with the first observer: a registry starts without

    return CallRecord
