"""What a person reads before a call: how to write one, and what an operation takes, from its schema and words."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from enfold.operation import OperationSpec

__all__ = ["USAGE", "operation_help"]

USAGE: Final = """\
usage: call OPERATION [name=text] [name:=json] [@file] [--json JSON] [--format NAME] [--timeout SECONDS]

  name=text     an argument as text; it is converted where the operation wants a number or a truth value
  name:=json    an argument as JSON
  name=@file    an argument whose text is in a file; name:=@file for JSON
  @file         all arguments as a JSON object in a file; @- reads standard input
  --json JSON   all arguments as a JSON object
  --request R   an mcp.request.v0.1: JSON, @file or @-; --artifact-root DIR lets it refer to files below DIR
  --provenance MODE   record the run (minimal or full); --store FILE keeps the record, --key FILE signs it
  --help        the operation's own arguments"""


def operation_help(spec: OperationSpec) -> str:
    """The operation's help, from its schema and words."""
    schema = spec.input_schema
    required = schema.get("required", [])
    lines = [f"{spec.id} ({spec.type.value})"]
    if spec.description:
        lines += ["", spec.description]
    lines += ["", f"usage: call {spec.id}{_synopsis(schema, required)}"]
    rows = [_argument_row(name, part, name in required) for name, part in schema.get("properties", {}).items()]
    if rows:
        width = max(len(left) for left, _ in rows)
        lines += ["", "arguments:", *(f"  {left:<{width}}  {right}".rstrip() for left, right in rows)]
    return "\n".join(lines)


def _synopsis(schema: dict[str, Any], required: list[str]) -> str:
    words = [name if name in required else f"[{name}]" for name in schema.get("properties", {})]
    return "".join(f" {word[:-1]}=…]" if word.startswith("[") else f" {word}=…" for word in words)


def _argument_row(name: str, part: Any, is_required: bool) -> tuple[str, str]:
    part = part if isinstance(part, dict) else {}
    notes = [part["description"]] if part.get("description") else []
    if is_required:
        notes.append("(required)")
    elif "default" in part:
        notes.append(f"(default {msgspec.json.encode(part['default']).decode()})")
    return f"{name}  {_type_text(part)}", " ".join(notes)


def _type_text(part: dict[str, Any]) -> str:
    """A short word for a type: `integer`, `"low" | "high"`, `array of string`."""
    if "const" in part:
        return msgspec.json.encode(part["const"]).decode()
    if "enum" in part:
        return " | ".join(msgspec.json.encode(value).decode() for value in part["enum"])
    for union in ("anyOf", "oneOf"):
        if union in part:
            return " | ".join(_type_text(variant) for variant in part[union] if isinstance(variant, dict))
    kind = part.get("type", str(part["$ref"]).rpartition("/")[2] if "$ref" in part else "any")
    if kind == "array" and isinstance(part.get("items"), dict):
        return f"array of {_type_text(part['items'])}"
    return " | ".join(kind) if isinstance(kind, list) else str(kind)
