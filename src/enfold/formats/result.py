"""Format `result`: the bare value or the error message, without code and source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from enfold.envelope import LocalResponseMeta, ResponseEnvelope, error_text, local_envelope, wire_data
from enfold.errors import CallError, FormatError
from enfold.operations import OperationSpec
from enfold.schema.keywords import object_schema

__all__ = ["read", "success_schema", "write", "write_error"]

ERROR_SCHEMA: Final = object_schema({"error": {"type": "string"}})
HOLDS_ERRORS: Final = False
TAKES_STRUCTS: Final = True
HAS_PREFIXES: Final = True
IS_WRAPPER: Final = True


def write(envelope: ResponseEnvelope[Any], operation: OperationSpec | None = None) -> dict[str, Any]:
    """Write `{"result": v}`; several values are numbered, no value is `{}`, a failed result is its text."""
    data, values = envelope.data, 1 if operation is None else operation.values
    if type(envelope.meta) is not LocalResponseMeta and envelope.is_error:
        return {"error": error_text(envelope)}
    if values > 1 and isinstance(data, list) and len(data) == values:
        return {f"result{index}": value for index, value in enumerate(data)}
    if values == 0 and data is None:
        return {}
    return {"result": wire_data(data) if isinstance(data, bytes) else data}


def write_error(error: CallError, operation_id: str) -> dict[str, Any]:  # noqa: ARG001  # every format has these two
    return {"error": error.message}


def read(wire: Any) -> ResponseEnvelope[Any]:
    """Read the value; a failure is an EXECUTION_ERROR, because this format does not write codes."""
    if not isinstance(wire, Mapping):
        raise FormatError("Not of the format `result`: it must be a JSON object")
    if wire.keys() == {"error"} and isinstance(wire["error"], str):
        raise CallError("EXECUTION_ERROR", wire["error"])
    if wire.keys() == {"result"}:
        return local_envelope(wire["result"], "")
    return local_envelope(_several(wire) if wire else None, "")


def _several(wire: Mapping[str, Any]) -> list[Any]:
    names = [f"result{index}" for index in range(len(wire))]
    if wire.keys() != set(names):
        raise FormatError("Not of the format `result`: it must have `result`, `result0` and so on, `error`, or nothing")
    return [wire[name] for name in names]


def success_schema(operation: OperationSpec) -> dict[str, Any]:
    """Return the schema of `{"result": v}`, of numbered values, or of `{}`."""
    # Imported here because only lists and documents need it.
    from enfold.formats.wrapper_schemas import around

    output = operation.output_schema
    if operation.values == 0:
        return {"type": "object", "additionalProperties": False}
    if operation.values > 1:
        values = {f"result{index}": schema for index, schema in enumerate(output["prefixItems"])}
        return object_schema(values, output.get("$defs"))
    return around("result", output)
