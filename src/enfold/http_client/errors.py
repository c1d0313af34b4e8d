"""`WebError`, for requests without a usable response, and the CallError of an HTTP status."""

from __future__ import annotations

import time
from typing import Any, Final, Literal, TypeAlias

from enfold.errors import CallError

# unsendable: the request is invalid. refused: the address may not be contacted. unreachable: nothing was sent.
# broken: the connection was closed too early. unreadable: the response is not HTTP or cannot be decompressed.
# too_large: the response exceeds a limit. redirect: it is invalid, not allowed or circular. late: no response in time.
Kind: TypeAlias = Literal[
    "unsendable", "refused", "unreachable", "broken", "unreadable", "too_large", "redirect", "late"
]

IDEMPOTENT_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "QUERY"})


class WebError(Exception):
    """A request without a usable response; the message contains no secrets."""

    def __init__(self, kind: Kind, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind
        self.sentence = sentence

    @property
    def was_sent(self) -> bool:
        """Whether the server may have received the request."""
        return self.kind not in ("unsendable", "refused", "unreachable")


def response_too_large(limit: int) -> WebError:
    return WebError("too_large", f"The response exceeds the limit of {limit} bytes")


_CODES: Final = {429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}


def code_of(status: int) -> str:
    """Return the error code of a status."""
    return _CODES.get(status, "EXECUTION_ERROR")


def status_error(
    status: int, why: str, *, reason: str, content_type: str, body: Any, retry_after: str | None
) -> CallError:
    """Return the error of a response, with its head and body in the details."""
    details: dict[str, Any] = {"status": status, "reason": reason, "content_type": content_type}
    if body is not None:
        details["body"] = body
    seconds = read_retry_after(retry_after)
    if seconds is not None:
        details["retry_after"] = seconds
    return CallError(code_of(status), f"HTTP {status}: {why}", details)


def read_retry_after(text: str | None) -> float | None:
    """Return the seconds of a Retry-After header, given as a number or a date."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(int(text)) if len(text.strip()) < 10 else None
    from email.utils import parsedate_to_datetime  # slow to import, needed only for a date

    try:
        return max(0.0, round(parsedate_to_datetime(text).timestamp() - time.time(), 3))
    except (ValueError, TypeError):
        return None
