"""Format `envelope`: the envelope, or the error with its code and details."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from enfold.envelope import ResponseEnvelope, from_wire, is_response_envelope, local_envelope, to_wire
from enfold.envelope.content import RESPONSE_META_SCHEMA
from enfold.errors import CallError, FormatError
from enfold.operations import OperationSpec
from enfold.schema.keywords import object_schema

__all__ = ["read", "success_schema", "write", "write_error"]

_ERROR: Final = {
    "code": {"type": "string"},
    "message": {"type": "string"},
    "details": {"type": "object"},
    "retryable": {"type": "boolean"},
}
ERROR_SCHEMA: Final = object_schema({"error": object_schema(_ERROR)})


def write(envelope: ResponseEnvelope[Any], operation: OperationSpec | None = None) -> dict[str, Any]:  # noqa: ARG001  # every format has these two
    return to_wire(envelope)


def write_error(error: CallError, operation_id: str) -> dict[str, Any]:  # noqa: ARG001  # every format has these two
    return {"error": error.to_wire()}


def read(wire: Any) -> ResponseEnvelope[Any]:
    """Read the envelope, or raise the error."""
    if not isinstance(wire, Mapping):
        raise FormatError("Not of the format `envelope`: it must be a JSON object")
    if wire.keys() == {"error"}:
        raise _read_error(wire["error"])
    if wire.keys() == {"data"}:
        return local_envelope(wire["data"], "")
    if not is_response_envelope(wire):
        raise FormatError("Not of the format `envelope`: it requires `data` and `meta`, or `error`")
    return from_wire(wire)


def _read_error(error: Any) -> CallError:
    """Read an error; a bare string is accepted, as servers without this format send one."""
    if isinstance(error, str):
        return CallError("EXECUTION_ERROR", error)
    if not isinstance(error, Mapping) or not _is_error(error):
        raise FormatError(
            "Not of the format `envelope`: an error requires `code`, `message`, `details` and `retryable`"
        )
    return CallError(error["code"], error["message"], dict(error.get("details") or {}), error.get("retryable"))


def _is_error(error: Mapping[str, Any]) -> bool:
    return (
        isinstance(error.get("code"), str)
        and isinstance(error.get("message"), str)
        and isinstance(error.get("details"), Mapping | None)
        and isinstance(error.get("retryable"), bool | None)
    )


def success_schema(operation: OperationSpec) -> dict[str, Any]:
    """Return the schema of `{"data", "meta"}`."""
    from enfold.formats.wrapper_schemas import around  # needed only for lists and documents

    schema = around("data", operation.output_schema)
    definitions: dict[str, Any] = schema.setdefault("$defs", {})
    name = "ResponseMeta" if "ResponseMeta" not in definitions else "EnvelopeResponseMeta"
    definitions[name] = RESPONSE_META_SCHEMA
    schema["properties"]["meta"] = {"$ref": f"#/$defs/{name}"}
    schema["required"] = ["data", "meta"]
    return schema
