"""How a call ended, in a form that can be stored and read again. No I/O."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from enfold.envelope import ResponseEnvelope, ResultWarning, from_wire, to_wire
from enfold.errors import CallError
from enfold.schema.plain import unwritable

MAX_MESSAGE: Final = 2_000  # characters


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """A CallError in a form that can be stored."""

    code: str
    message: str
    details: dict[str, Any] = {}
    retryable: bool = False
    hidden: str | None = None  # what is said instead where the words of an exception are for nobody
    category: str | None = None  # this and the next where they are not those of the code
    recoverable: bool | None = None


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a call ended: the wire form of its envelope and what goes beside it; or a failure, maybe with what it refused."""

    output: dict[str, Any] | None = None
    warnings: list[dict[str, Any]] = []
    provenance: dict[str, Any] | None = None
    failure: Failure | None = None


def success(envelope: ResponseEnvelope[Any]) -> Outcome:
    """The outcome of a call that gave a result; one that is no JSON data is a failure, as on every surface."""
    warnings = [warning.to_wire() for warning in envelope.warnings]
    outcome = Outcome(to_wire(envelope), warnings, envelope.provenance)
    try:
        msgspec.json.encode(outcome)
    except (TypeError, ValueError, RecursionError) as error:
        return failure(unwritable(envelope.data, error))
    return outcome


def failure(error: CallError) -> Outcome:
    """The outcome of a call that failed; details that are no JSON data are left out."""
    try:
        msgspec.json.encode(error.details)
        details = error.details
    except (TypeError, ValueError, RecursionError):
        details = {}
    kept = Failure(error.code, error.message[:MAX_MESSAGE], details, error.retryable, error.hidden, *error.own_kind())
    partial = success(error.partial) if isinstance(error.partial, ResponseEnvelope) else Outcome()
    return Outcome(partial.output, partial.warnings, error.provenance, kept)


# Codes that do not say how the call ended.
_INDEFINITE: Final = frozenset({"ABORTED", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "OUTCOME_UNKNOWN"})


def unknown(reason: Literal["worker_died", "cancelled", "timeout", "indefinite"], fate: str) -> Outcome:
    """The outcome of a call that was started, and may or may not have had its effect."""
    message = f"The first call with this idempotency key {fate}: its outcome is unknown, and it is not started again"
    return failure(CallError("OUTCOME_UNKNOWN", message, {"reason": reason}))


def is_unknown(outcome: Outcome) -> bool:
    return outcome.failure is not None and outcome.failure.code == "OUTCOME_UNKNOWN"


def kept_of(error: CallError, *, was_cut_off: bool) -> Outcome | None:
    """What an idempotency store keeps of a failed call; None where the key is free again.

    A failure that the handler produced is definite, unless it is retryable; a TIMEOUT that cut it off is not.
    """
    if was_cut_off and error.code == "TIMEOUT":
        return unknown("timeout", "took longer than it may")
    if error.retryable or not error.is_final:
        return None
    return unknown("indefinite", f"ended with {error.code}") if error.code in _INDEFINITE else failure(error)


def result_of(outcome: Outcome) -> ResponseEnvelope[Any]:
    """The envelope of an outcome; its failure is raised."""
    told = outcome.failure
    if told is None and outcome.output is not None:
        return _envelope(outcome.output, outcome)
    told = told or Failure("UNKNOWN_ERROR", "An entry without outcome")
    error = CallError(told.code, told.message, dict(told.details), told.retryable)
    error.provenance, error.hidden = outcome.provenance, told.hidden
    error.partial = None if outcome.output is None else _envelope(outcome.output, outcome)
    error.take_kind(told.category, told.recoverable)
    raise error


def _envelope(wire: dict[str, Any], outcome: Outcome) -> ResponseEnvelope[Any]:
    envelope = from_wire(wire)
    if not outcome.warnings and outcome.provenance is None:
        return envelope
    warnings = tuple(msgspec.convert(each, ResultWarning) for each in outcome.warnings)
    return msgspec.structs.replace(envelope, warnings=envelope.warnings + warnings, provenance=outcome.provenance)
