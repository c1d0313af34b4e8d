"""From one format to another, through the envelope. Only what the target has no place for is lost, and each loss is told.

It knows the formats by their three verbs alone: what was lost is what does not come back when the target is read again.
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
    """The wire value in the target format, and a warning for each thing it has no place for."""

    wire: Any
    lost: tuple[ResultWarning, ...] = ()


def convert(wire: Any, source: Verbs, target: Verbs) -> Conversion:
    """Read in one format, write in another; FormatError where the wire value is not of the first."""
    try:
        envelope = source.read(wire)
    except CallError as error:
        failure = target.write_error(error, "")
        return Conversion(failure, _lost(_error_facts(error), failure, target))
    written = target.write(envelope)
    lost = _lost(_facts(envelope), written, target)
    # A target that has a place for warnings gets to know of the loss itself; another one keeps what it has.
    final = target.write(msgspec.structs.replace(envelope, warnings=(*envelope.warnings, *lost))) if lost else written
    return Conversion(final, lost)


def _lost(before: dict[str, Any], written: Any, target: Verbs) -> tuple[ResultWarning, ...]:
    """A warning for each fact that does not come back, or comes back changed, when what was written is read again."""
    after: dict[str, Any] = {}
    try:
        after = _facts(target.read(written))
    except CallError as error:
        after = _error_facts(error)
    except FormatError:
        pass
    return tuple(ResultWarning(LOST, path) for path, fact in before.items() if path not in after or after[path] != fact)


def _facts(envelope: ResponseEnvelope[Any]) -> dict[str, Any]:
    """The values in an envelope by their paths; empty ones are left out."""
    wire = to_wire(envelope)
    facts = {"/data": wire["data"]}
    # A local result of no operation has only the time at which it was read, which is nobody's loss.
    if not isinstance(envelope.meta, LocalResponseMeta) or envelope.meta.operation_id:
        facts |= {f"/meta/{name}": value for name, value in wire["meta"].items() if value != "local"}
    facts |= {f"/warnings/{index}": warning.to_wire() for index, warning in enumerate(envelope.warnings)}
    facts |= _format_fields(envelope)
    return facts if envelope.provenance is None else {**facts, "/provenance": envelope.provenance}


def _format_fields(envelope: ResponseEnvelope[Any]) -> dict[str, Any]:
    """The fields that only the format it was read from has."""
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
