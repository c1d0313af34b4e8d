"""Format `plain`: an object without a wrapper, anything else as `{"result": v}`, as other frameworks write results.

`{"result": 1}` may be an object or a wrapped 1. `shape` tells them apart; surfaces send it beside the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from enfold.envelope import ResponseEnvelope, local_envelope
from enfold.errors import FormatError
from enfold.formats import result
from enfold.operations import OperationSpec, OperationType

__all__ = ["read", "shape", "success_schema", "write", "write_error"]

# `object`: written as it is; `result`: wrapped as format `result` wraps it; `text`: wrapped too, but bare text over MCP.
Shape: TypeAlias = Literal["object", "result", "text"]

ERROR_SCHEMA: Final[dict[str, Any]] = result.ERROR_SCHEMA
HOLDS_ERRORS: Final = False
HAS_PREFIXES: Final = True
IS_WRAPPER: Final = True

write_error = result.write_error


def write(envelope: ResponseEnvelope[Any], operation: OperationSpec | None = None) -> dict[str, Any]:
    """Write an object without a wrapper, anything else as in format `result`; items with a field `complete` are wrapped."""
    data = envelope.data
    if not isinstance(data, dict) or envelope.is_error or _looks_like_the_end(data, operation):
        return result.write(envelope, operation)
    return data


def _looks_like_the_end(data: dict[str, Any], operation: OperationSpec | None) -> bool:
    """Whether an item could be taken for the last line of its stream, the only one with a field `complete`."""
    return "complete" in data and operation is not None and operation.type is OperationType.SUBSCRIPTION


def shape(envelope: ResponseEnvelope[Any], operation: OperationSpec | None = None) -> Shape:
    """Return how `write` writes the data of a success."""
    if isinstance(envelope.data, dict):
        return "object"
    is_text = isinstance(envelope.data, str) and (operation is None or operation.values == 1)
    return "text" if is_text else "result"


def read(wire: Any, shape: str | None = None) -> ResponseEnvelope[Any]:
    """Read the value; without its shape, `{"result": v}` is v and `{"error": text}` a failure."""
    if not isinstance(wire, Mapping):
        raise FormatError("Not of the format `plain`: it must be a JSON object")
    if shape == "object":
        return local_envelope(wire, "")
    try:
        return result.read(wire)
    except FormatError:
        if shape is not None:
            raise
        return local_envelope(wire, "")


def success_schema(operation: OperationSpec) -> dict[str, Any]:
    """Return the schema of the object, of the wrapper around anything else, or of either."""
    from enfold.formats.wrapper_schemas import around_all_but_objects  # needed only for lists and documents

    if operation.values != 1:
        return result.success_schema(operation)
    return around_all_but_objects("result", operation.output_schema)
