"""What a caller hears when a call did not give a result: the errors of the protocol, of HTTP, and of lost connections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from enfold.errors import CallError
from enfold.mcp.asking import MissingCapability
from enfold.mcp.json_rpc import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    RESOURCE_NOT_FOUND,
    ProtocolError,
)

__all__ = ["LostError", "http_failure", "protocol_failure", "read_rpc_error"]

MAX_BODY: Final = 2000

_UNKNOWN: Final = ("unknown tool", "unknown prompt", "unknown resource", "not found", "no such")


class LostError(Exception):
    """The connection is gone; `may_have_run` tells whether the server can have seen the request.

    `words` is what its process printed last, for whoever opens the source, and for no caller.
    """

    def __init__(self, error: CallError, *, may_have_run: bool, words: str = "") -> None:
        super().__init__(error.message)
        self.error = error
        self.may_have_run = may_have_run
        self.words = words

    def for_caller(self, *, idempotent: bool) -> CallError:
        """The error for the caller: trying again is safe if nothing ran, or if running twice does no harm."""
        told = self.error
        return CallError(told.code, told.message, told.details, idempotent or not self.may_have_run)


def read_rpc_error(error: Mapping[str, Any]) -> ProtocolError:
    """The error object of a message, however incomplete it is."""
    code = error.get("code")
    message = error.get("message")
    return ProtocolError(
        code if isinstance(code, int) else 0,
        message if isinstance(message, str) and message else "The server reported an error",
        error.get("data"),
    )


def protocol_failure(error: ProtocolError) -> CallError:
    """The CallError that tells of a protocol error of the upstream server; its own code stays in the details."""
    if error.code == MISSING_CAPABILITY:
        return MissingCapability(_required(error.data))
    details: dict[str, Any] = {"rpc_code": error.code}
    if error.data is not None:
        details["data"] = error.data
    return CallError(_code(error), error.message, details)


def http_failure(status: int, reason: str, content_type: str, body: bytes, retry_after: str | None) -> CallError:
    """The CallError that tells of an HTTP error status."""
    details: dict[str, Any] = {"status": status, "reason": reason, "content_type": content_type}
    if body:
        details["body"] = body[:MAX_BODY].decode("utf-8", "replace")
    if retry_after is not None and retry_after.isdecimal():
        details["retry_after"] = int(retry_after)
    code = {429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}.get(status, "EXECUTION_ERROR")
    return CallError(code, f"HTTP {status}: {reason}", details)


def _code(error: ProtocolError) -> str:
    if error.code in (METHOD_NOT_FOUND, RESOURCE_NOT_FOUND):
        return "OPERATION_NOT_FOUND"
    if error.code == INVALID_PARAMS:
        # The protocol has one code for both, and only the words tell them apart.
        is_unknown = any(words in error.message.lower() for words in _UNKNOWN)
        return "OPERATION_NOT_FOUND" if is_unknown else "VALIDATION_ERROR"
    return "EXECUTION_ERROR"


def _required(data: Any) -> tuple[str, ...]:
    """The path of the first capability that a server asks of its client."""
    found = data.get("requiredCapabilities") if isinstance(data, Mapping) else None
    path: list[str] = []
    while isinstance(found, Mapping) and found:
        name = next(iter(found))
        path.append(str(name))
        found = found[name]
    return tuple(path) or ("a capability",)
