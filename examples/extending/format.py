"""A custom format: write results as JSend."""

import json
import sys
from typing import Any

from enfold import CallError, FormatError, OperationSpec, ResponseEnvelope, local_envelope, to_wire
from enfold.envelope import error_text
from enfold.formats import find_format, register_format

# Optional properties of a format, which surfaces use.
ERROR_SCHEMA = {
    "type": "object",
    "properties": {"status": {"const": "error"}, "message": {"type": "string"}, "code": {"type": "string"}},
    "required": ["status", "message", "code"],
}


def write(envelope: ResponseEnvelope[Any], operation: OperationSpec | None = None) -> dict[str, Any]:
    if envelope.is_error:
        return {"status": "error", "message": error_text(envelope), "code": "EXECUTION_ERROR"}
    return {"status": "success", "data": to_wire(envelope)["data"]}


def write_error(error: CallError, operation_id: str) -> dict[str, Any]:
    return {"status": "error", "message": error.message, "code": error.code}


def read(wire: Any) -> ResponseEnvelope[Any]:
    if not isinstance(wire, dict) or wire.get("status") not in ("success", "error"):
        raise FormatError("Not JSend: it has a status, success or error")
    if wire["status"] == "error":
        raise CallError(wire["code"], wire["message"])
    return local_envelope(wire["data"], "")


def success_schema(operation: OperationSpec) -> dict[str, Any]:
    properties = {"status": {"const": "success"}, "data": operation.output_schema}
    return {"type": "object", "properties": properties, "required": list(properties)}


def main() -> None:
    register_format("jsend", sys.modules[__name__])
    jsend = find_format("jsend")
    print(json.dumps(jsend.write(local_envelope({"sum": 3}, "shop.add"))))
    print(json.dumps(jsend.write_error(CallError("TIMEOUT", "Too slow"), "shop.add")))


if __name__ == "__main__":
    main()
