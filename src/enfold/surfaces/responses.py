"""Failures over HTTP and CGI: status, message and headers. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import ceil
from typing import Any, Final, TypeAlias

import msgspec

from enfold.auth.challenges import challenge
from enfold.envelope import ResponseEnvelope
from enfold.errors import CODES, CallError, code_row, safe_code
from enfold.operations import OperationSpec
from enfold.schema.structs import encode

HeaderText: TypeAlias = tuple[str, str]

MAX_BODY: Final = 8 * 1024 * 1024  # of a request, unless `max_body` says otherwise
_MAX_DIGITS: Final = 15  # of a number that a client could mean


class RefusedError(CallError):
    """A request refused for its form, with the status that HTTP has for it: 405, 406, 415."""

    def __init__(self, status: int, message: str, details: dict[str, Any], headers: Iterable[HeaderText] = ()) -> None:
        super().__init__("VALIDATION_ERROR", message, details)
        self.status = status
        self.headers = tuple(headers)


def not_allowed(method: str, methods: Iterable[str]) -> RefusedError:
    allow = ", ".join(methods)
    details = {"reason": "method", "expected": allow}
    return RefusedError(405, f"The method {method[:20]} is not allowed here: use {allow}", details, [("allow", allow)])


def not_acceptable(offered: str) -> RefusedError:
    details = {"reason": "accept", "expected": offered}
    return RefusedError(406, f"The response is {offered}, which the Accept header does not allow", details)


def unsupported_body(message: str, expected: str = "application/json") -> RefusedError:
    return RefusedError(415, message, {"reason": "content_type", "expected": expected})


def body_too_large(limit: int) -> CallError:
    return CallError("PAYLOAD_TOO_LARGE", f"The body is larger than {limit} bytes", {"limit": limit})


def check_length(headers: Mapping[bytes, bytes], limit: int) -> None:
    """Refuse a body that says itself that it is too large, before it is read."""
    length = headers.get(b"content-length", b"0")
    if len(length) > _MAX_DIGITS or (length.isdigit() and int(length) > limit):
        raise body_too_large(limit)


def status_of(error: CallError, operation: OperationSpec | None, *, has_identity: bool) -> int:
    """Return the status of an error: of the table, or as the operation declares it."""
    if isinstance(error, RefusedError):
        return error.status
    if error.code == "ACCESS_DENIED" and not has_identity and error.details.get("reason") not in _NOT_ABOUT_IDENTITY:
        return 401
    if error.code == "EXECUTION_ERROR" and _is_upstream(error):
        return error.details["status"] if error.details["status"] in KEPT_STATUSES else 502
    declared = None if operation is None else operation.declared_row(error.code)
    return (declared or error.row).http_status


# Of an upstream: they tell about the caller's input. `Enfold-Code` tells them from ours.
KEPT_STATUSES: Final = (400, 404, 409, 410, 412, 422)
# No token helps a request that names another host, or a page of another origin.
_NOT_ABOUT_IDENTITY: Final = ("host", "origin")


def declared_status(operation: OperationSpec, code: str) -> int:
    """Return the status that an operation declares for its own code, or that of the table."""
    return (operation.declared_row(code) or code_row(code)).http_status


def _is_upstream(error: CallError) -> bool:
    status = error.details.get("status")
    return type(status) is int and 400 <= status <= 599


def error_headers(error: CallError, status: int) -> list[tuple[bytes, bytes]]:
    """Return the headers that let a client react without reading the body."""
    headers = [("enfold-code", safe_code(error.code))]
    if isinstance(error, RefusedError):
        headers.extend(error.headers)
    if status == 401:
        is_wrong = error.details.get("reason") == "invalid_token"
        headers.append(("www-authenticate", challenge("invalid_token" if is_wrong else None)))
    wait = error.details.get("retry_after")
    if status in (429, 503) and isinstance(wait, int | float) and 0 <= wait < 1e9:
        headers.append(("retry-after", str(ceil(wait))))
    return [(name.encode(), value.encode()) for name, value in headers]


def for_http(error: CallError, status: int, request_id: str) -> CallError:
    """The error as a format of HTTP tells it, with its status and the id of the request."""
    told = CallError(error.code, error.message, error.details, error.retryable)
    told.row = msgspec.structs.replace(error.row, http_status=status)
    told.request_id = request_id
    return told


def with_prefix(error: CallError, prefix: str) -> CallError:
    """Prefix the handler's own message, as format `result` does."""
    if error.code in CODES and error.code not in ("EXECUTION_ERROR", "UNKNOWN_ERROR"):
        return error
    told = CallError(error.code, f"{prefix}{error.message}", error.details, error.retryable)
    told.row = error.row
    return told


def encode_result(write: Callable[..., Any], envelope: ResponseEnvelope[Any], *beside: Any) -> bytes:
    """Encode a written envelope as JSON; a failure names the place in its data."""
    try:
        return encode(write(envelope, *beside))
    except UNWRITABLE as error:
        raise unwritable(envelope.data, error) from error


UNWRITABLE: Final = (ValueError, TypeError, RecursionError)


def unwritable(data: Any, error: Exception) -> CallError:
    """Return the error for a result that cannot be written as JSON."""
    from enfold.schema import plain  # few results cannot

    return plain.unwritable(data, error)


def encode_failure(wire: Any) -> bytes:
    """Encode a failure as JSON; nothing that a handler put into it can make this fail."""
    try:
        return msgspec.json.encode(wire, enc_hook=str)
    except (ValueError, TypeError, RecursionError):
        from enfold.schema.plain import to_plain_leniently  # few failures need it

        return msgspec.json.encode(to_plain_leniently(wire))
