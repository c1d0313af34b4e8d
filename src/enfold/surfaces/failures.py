"""How a failure leaves over HTTP, and over CGI, which is HTTP too: its status, its words, its headers. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import Any, Final, TypeAlias

from enfold.errors import CODES, CallError, code_row, safe_code
from enfold.operation import OperationSpec

__all__ = [
    "RefusedError",
    "declared_status",
    "error_headers",
    "status_of",
    "too_large",
    "with_prefix",
]

HeaderText: TypeAlias = tuple[str, str]


class RefusedError(CallError):
    """A request refused for its form, with the status that HTTP has for it: 405, 406, 415."""

    def __init__(self, status: int, message: str, details: dict[str, Any], headers: Iterable[HeaderText] = ()) -> None:
        super().__init__("VALIDATION_ERROR", message, details)
        self.status = status
        self.headers = tuple(headers)


def too_large(limit: int) -> CallError:
    return CallError("PAYLOAD_TOO_LARGE", f"The body is larger than {limit} bytes", {"limit": limit})


def status_of(error: CallError, operation: OperationSpec | None, *, has_identity: bool) -> int:
    """The status of the table, or the one that the operation declares for a code of its own."""
    if isinstance(error, RefusedError):
        return error.status
    if error.code == "ACCESS_DENIED" and not has_identity and error.details.get("reason") not in _NOT_ABOUT_IDENTITY:
        return 401
    if error.code == "EXECUTION_ERROR" and _is_upstream(error):
        return 502
    declared = None if operation is None else operation.declared_row(error.code)
    return (declared or error.row).http_status


# No token helps a request that names another host, or a page of another origin.
_NOT_ABOUT_IDENTITY: Final = ("host", "origin")


def declared_status(operation: OperationSpec, code: str) -> int:
    """The status an operation declares for a code of its own, or that of the table."""
    return (operation.declared_row(code) or code_row(code)).http_status


def _is_upstream(error: CallError) -> bool:
    """Whether an HTTP service that we called answered with an error status."""
    status = error.details.get("status")
    return type(status) is int and 400 <= status <= 599


def error_headers(error: CallError, status: int) -> list[HeaderText]:
    """What a client can act upon without reading the body."""
    headers = [("enfold-code", safe_code(error.code))]
    if isinstance(error, RefusedError):
        headers.extend(error.headers)
    if status == 401:
        headers.append(("www-authenticate", _challenge(error)))
    wait = error.details.get("retry_after")
    if status in (429, 503) and isinstance(wait, int | float) and 0 <= wait < 1e9:
        headers.append(("retry-after", str(ceil(wait))))
    return headers


def _challenge(error: CallError) -> str:
    reason = ', error="invalid_token"' if error.details.get("reason") == "invalid_token" else ""
    return f'Bearer realm="enfold"{reason}'


def with_prefix(error: CallError, prefix: str) -> CallError:
    """The error as format `result` tells it: words that are the handler's own are marked as such."""
    if error.code in CODES and error.code not in ("EXECUTION_ERROR", "UNKNOWN_ERROR"):
        return error
    told = CallError(error.code, f"{prefix}{error.message}", error.details, error.retryable)
    told.row = error.row
    return told
