"""What goes wrong between a server and us, as errors: a lost connection, and errors of the protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import UNSET

from enfold.errors import CallError
from enfold.mcp.json_rpc import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    RESOURCE_NOT_FOUND,
    ProtocolError,
    fields_of,
)
from enfold.operations.questions import MissingCapabilityError

_UNKNOWN: Final = ("unknown tool", "unknown prompt", "unknown resource", "not found", "no such")  # words of an error


class LostError(Exception):
    """The connection is lost; `may_have_run` says whether the server may have seen the request.

    `is_silent`: it was lost after the request was sent, and before anything of an answer came.
    `output` is what its process printed last: shown to the user who opens the source, never to callers.
    """

    def __init__(self, error: CallError, *, may_have_run: bool, is_silent: bool = False, output: str = "") -> None:
        super().__init__(error.message)
        self.error = error
        self.may_have_run = may_have_run
        self.is_silent = is_silent
        self.output = output

    def for_caller(self, *, idempotent: bool) -> CallError:
        """The error for the caller: trying again is safe if nothing ran, or if running twice does no harm."""
        error = self.error
        return CallError(error.code, error.message, error.details, idempotent or not self.may_have_run)


def closed_connection(name: str) -> CallError:
    """The error of a call to a server whose source has been closed."""
    return CallError("UNAVAILABLE", f"The connection to {name} has been closed", retryable=False)


def message_too_large(limit: int) -> CallError:
    return CallError("PAYLOAD_TOO_LARGE", f"The response exceeds the limit of {limit} bytes", {"limit": limit})


def protocol_failure(error: ProtocolError) -> CallError:
    """The CallError that reports a protocol error of the upstream server; its own code stays in the details."""
    if error.code == MISSING_CAPABILITY:
        return MissingCapabilityError(_required(error.data))
    details: dict[str, Any] = {"rpc_code": error.code}
    if error.data is not UNSET and error.data is not None:
        details["data"] = error.data
    return CallError(_code(error), error.message, details)


def _code(error: ProtocolError) -> str:
    if error.code in (METHOD_NOT_FOUND, RESOURCE_NOT_FOUND):
        return "OPERATION_NOT_FOUND"
    if error.code == INVALID_PARAMS:
        # The protocol has one code for both; only the message tells them apart.
        is_unknown = any(words in error.message.lower() for words in _UNKNOWN)
        return "OPERATION_NOT_FOUND" if is_unknown else "VALIDATION_ERROR"
    return "EXECUTION_ERROR"


def _required(data: Any) -> tuple[str, ...]:
    """The path of the first capability that a server asks of its client."""
    found = fields_of(data).get("requiredCapabilities")
    path: list[str] = []
    while isinstance(found, Mapping) and found:
        name = next(iter(found))
        path.append(str(name))
        found = found[name]
    return tuple(path) or ("a capability",)
