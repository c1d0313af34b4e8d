"""Error statuses as the errors that callers hear: one table of codes, and when to try again."""

from __future__ import annotations

import time
from typing import Any, Final

from enfold.errors import CallError

_CODES: Final = {429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}


def code_of(status: int) -> str:
    """The code of the error that a status tells of."""
    return _CODES.get(status, "EXECUTION_ERROR")


def status_error(
    status: int, why: str, *, reason: str, content_type: str, body: Any, retry_after: str | None
) -> CallError:
    """The error of a response: its status in a sentence, and in the details its head and its body, if it has one."""
    details: dict[str, Any] = {"status": status, "reason": reason, "content_type": content_type}
    if body is not None:
        details["body"] = body
    seconds = read_retry_after(retry_after)
    if seconds is not None:
        details["retry_after"] = seconds
    return CallError(code_of(status), f"HTTP {status}: {why}", details)


def read_retry_after(text: str | None) -> float | None:
    """The seconds a Retry-After header asks for, whether it counts them or names a date."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(int(text)) if len(text.strip()) < 10 else None
    from email.utils import parsedate_to_datetime  # slow to import, and only for a date in Retry-After

    try:
        return max(0.0, round(parsedate_to_datetime(text).timestamp() - time.time(), 3))
    except (ValueError, TypeError):
        return None
