"""Converts between formats through the envelope, with a warning for everything the target cannot represent.

Losses are found by reading the result back, so the conversion depends only on the three functions of a format.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from enfold.envelope import LocalResponseMeta, ResponseEnvelope, ResultWarning, to_wire
from enfold.errors import CallError, FormatError
from enfold.formats import Verbs

__all__ = ["LOST", "Conversion", "convert"]

LOST: Final = "conversion_lost"


class Conversion(msgspec.Struct, frozen=True):
    """The wire value in the target format, and a warning for each loss."""

    wire: Any
    lost: tuple[ResultWarning, ...] = ()


def convert(wire: Any, source: Verbs, target: Verbs) -> Conversion:
    """Read in one format and write in another; raise FormatError if the wire value is not of the first."""
    try:
        envelope = source.read(wire)
    except CallError as error:
        failure = target.write_error(error, "")
        return Conversion(failure, _lost(_error_facts(error), failure, target))
    written = target.write(envelope)
    lost = _lost(_facts(envelope), written, target)
    # A target that supports warnings includes those about losses.
    final = target.write(msgspec.structs.replace(envelope, warnings=(*envelope.warnings, *lost))) if lost else written
    return Conversion(final, lost)


def _lost(before: dict[str, Any], written: Any, target: Verbs) -> tuple[ResultWarning, ...]:
    """Return a warning for each fact that is missing or changed after reading the output back."""
    after: dict[str, Any] = {}
    try:
        after = _facts(target.read(written))
    except CallError as error:
        after = _error_facts(error)
    except FormatError:
        pass
    return tuple(ResultWarning(LOST, path) for path, fact in before.items() if path not in after or after[path] != fact)


def _facts(envelope: ResponseEnvelope[Any]) -> dict[str, Any]:
    """Return the non-empty values in an envelope by path."""
    wire = to_wire(envelope)
    facts = {"/data": wire["data"]}
    # A local result without an operation has only the time of reading, which is no loss.
    if not isinstance(envelope.meta, LocalResponseMeta) or envelope.meta.operation_id:
        facts |= {f"/meta/{name}": value for name, value in wire["meta"].items() if value != "local"}
    facts |= {f"/warnings/{index}": warning.to_wire() for index, warning in enumerate(envelope.warnings)}
    facts |= _format_fields(envelope)
    return facts if envelope.provenance is None else {**facts, "/provenance": envelope.provenance}


def _format_fields(envelope: ResponseEnvelope[Any]) -> dict[str, Any]:
    """Return the fields specific to the format that was read."""
    own = (*ResponseEnvelope.__struct_fields__, "errors")
    named = [name for name in envelope.__struct_fields__ if name not in own and not name.startswith("_")]
    return {f"/{name}": value for name in named if (value := getattr(envelope, name))}


def _error_facts(error: CallError) -> dict[str, Any]:
    facts = {"/error/code": error.code, "/error/message": error.message, "/error/retryable": error.retryable}
    facts |= {f"/error/details/{name}": value for name, value in error.details.items()}
    if not isinstance(error.partial, ResponseEnvelope):
        return facts
    more = getattr(error.partial, "errors", [])[1:]
    partial = {path: fact for path, fact in _facts(error.partial).items() if fact is not None}
    return {**facts, **partial, **({"/errors": more} if more else {})}
