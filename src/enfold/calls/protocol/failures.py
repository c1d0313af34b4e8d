"""The errors of calls that fail in the transport or at their deadline, not in the operation."""

from __future__ import annotations

from collections.abc import Iterable

from enfold.calls.protocol.events import OtherVersionError
from enfold.calls.protocol.transport import (
    DeniedError,
    DisconnectedError,
    OverloadedError,
    PayloadTooLargeError,
    TransportError,
)
from enfold.errors import CallError, nearest_id


def no_worker(operation_id: str) -> CallError:
    return CallError(
        "UNAVAILABLE", f"No worker serves {operation_id} at the moment", {"reason": "no_responders", "started": False}
    )


def unknown(operation_id: str, known: Iterable[str] = ()) -> CallError:
    """Return the error for an operation that no worker has ever offered, with the nearest of the `known` ids."""
    near = nearest_id(operation_id, known)
    hint = "" if near is None else f". Did you mean {near}?"
    details = {"reason": "no_responders", "started": False}
    return CallError("OPERATION_NOT_FOUND", f"Operation not found: {operation_id}{hint}", details)


def lost(operation_id: str, *, retryable: bool) -> CallError:
    message = f"The connection was lost during the call of {operation_id}"
    return CallError("UNAVAILABLE", message, {"reason": "connection_lost"}, retryable)


def silent(operation_id: str, *, retryable: bool) -> CallError:
    message = f"The worker that runs {operation_id} no longer responds"
    return CallError("UNAVAILABLE", message, {"reason": "silence"}, retryable)


def stopped(operation_id: str, *, has_started: bool, retryable: bool) -> CallError:
    """Return the error for a call that a worker gives up because it stops."""
    message = f"The worker stopped before {operation_id} {'finished' if has_started else 'started'}"
    details = {"reason": "stopped"} if has_started else {"reason": "stopped", "started": False}
    return CallError("UNAVAILABLE", message, details, retryable)


def timed_out(operation_id: str, *, idempotent: bool) -> CallError:
    return CallError("TIMEOUT", f"{operation_id} exceeded its timeout", retryable=idempotent)


def idle(operation_id: str, limit: float) -> CallError:
    return CallError("TIMEOUT", f"{operation_id} produced no item for {limit:g} seconds", {"reason": "idle"})


def aborted(operation_id: str) -> CallError:
    return CallError("ABORTED", f"The call of {operation_id} was aborted")


def denied(operation_id: str) -> CallError:
    return CallError(
        "ACCESS_DENIED",
        f"The server does not permit calls of {operation_id}",
        {"reason": "not_allowed", "started": False},
    )


def overloaded(message: str) -> CallError:
    return CallError("RESOURCE_EXHAUSTED", message, {"reason": "overload", "started": False})


def unread_request(error: OtherVersionError) -> CallError:
    """Return the error for a request that a worker cannot read, and another worker may."""
    message = f"The request cannot be read: {error}. Upgrade the worker"
    return CallError("UNAVAILABLE", message, {"reason": "version", "started": False})


def unread_answer(error: OtherVersionError) -> CallError:
    """Return the error for an answer that this caller cannot read; what was called may have happened."""
    message = f"The worker's response cannot be read: {error}. Upgrade this process"
    return CallError("UNAVAILABLE", message, {"reason": "version"}, retryable=False)


def payload_too_large(operation_id: str, size: int, limit: int, what: str) -> CallError:
    message = f"The {what} of {operation_id} is too large: {size} bytes of at most {limit}"
    return CallError("PAYLOAD_TOO_LARGE", message, {"size": size, "limit": limit})


def unsent_answer(error: Exception) -> CallError:
    """Return the error of `respond` for a response that could not be sent."""
    if isinstance(error, PayloadTooLargeError):
        details = {"size": error.size, "limit": error.limit}
        return CallError("PAYLOAD_TOO_LARGE", f"The response is too large: {error}", details)
    if isinstance(error, TransportError):
        return CallError("UNAVAILABLE", f"The response cannot be sent: {error}")
    return CallError("EXECUTION_ERROR", f"The response cannot be sent: {error}")


def from_transport(operation_id: str, error: TransportError) -> CallError:
    """Return the error of a request that could not be sent."""
    if isinstance(error, PayloadTooLargeError):
        return payload_too_large(operation_id, error.size, error.limit, "input")
    if isinstance(error, DeniedError):
        return denied(operation_id)
    if isinstance(error, OverloadedError):
        return overloaded(f"The send buffer is full: {operation_id} was not sent")
    started = isinstance(error, DisconnectedError) and error.sent
    details = {"reason": "disconnected"} if started else {"reason": "disconnected", "started": False}
    return CallError("UNAVAILABLE", f"Not connected: {operation_id} was not called", details)
