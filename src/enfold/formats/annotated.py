"""Format `annotated`: the envelope with warnings and provenance, for people who inspect a result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from enfold.envelope import ResponseEnvelope, ResultWarning
from enfold.errors import CallError, FormatError
from enfold.formats import envelope as bare
from enfold.operations import OperationSpec

__all__ = ["read", "success_schema", "write", "write_error"]

ERROR_SCHEMA: Final[dict[str, Any]] = bare.ERROR_SCHEMA
_BESIDE: Final = ("warnings", "provenance")


def write(envelope: ResponseEnvelope[Any], operation: OperationSpec | None = None) -> dict[str, Any]:
    """Write `{"data", "meta", "warnings", "provenance"}`; a warning has a message, a code and a path."""
    warnings = [{**warning.to_wire(), "message": warning.sentence} for warning in envelope.warnings]
    return {**bare.write(envelope, operation), "warnings": warnings, "provenance": envelope.provenance}


def write_error(error: CallError, operation_id: str) -> dict[str, Any]:
    return bare.write_error(error, operation_id)


def read(wire: Any) -> ResponseEnvelope[Any]:
    """Read the envelope with its warnings and provenance, or raise the error."""
    if not isinstance(wire, Mapping):
        raise FormatError("Not of the format `annotated`: it must be a JSON object")
    envelope = bare.read({name: value for name, value in wire.items() if name not in _BESIDE})
    try:
        warnings = msgspec.convert(wire.get("warnings") or (), tuple[ResultWarning, ...])
    except msgspec.ValidationError:
        raise FormatError("Not of the format `annotated`: a warning requires `code` and `path`") from None
    return msgspec.structs.replace(envelope, warnings=warnings, provenance=wire.get("provenance"))


def success_schema(operation: OperationSpec) -> dict[str, Any]:
    """Return the schema of `{"data", "meta", "warnings", "provenance"}`."""
    schema = bare.success_schema(operation)
    schema["properties"] |= {"warnings": {"type": "array", "items": {"type": "object"}}, "provenance": {}}
    schema["required"] = [*schema["required"], *_BESIDE]
    return schema
