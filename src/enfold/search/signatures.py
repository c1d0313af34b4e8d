"""Operations as one-line signatures: `get_card(id: string, fields?: string) -> {id, name}`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import msgspec

from enfold.operations import OperationSpec, OperationType
from enfold.schema.keywords import is_deprecated, properties_of

Schema: TypeAlias = dict[str, Any]

_MAX_OPTIONS: Final = 8  # optional arguments in a signature
_MAX_FIELDS: Final = 16
_MAX_WORDS: Final = 8  # of an enumeration
_MAX_PARTS: Final = 1_000  # of a schema that are visited: some are huge


def signature(spec: OperationSpec) -> str:
    """Return required arguments, some optional ones, and the result, short enough for many in one response."""
    output = outline(spec.output_schema, 1)
    if spec.type is OperationType.SUBSCRIPTION:
        output = f"stream of {output}"
    back = "" if spec.values == 0 or output == "any" else f" -> {output}"
    try:
        return f"({', '.join(_arguments(spec.input_schema))}){back}"
    except RecursionError:
        return f"(…){back}"


def outline(schema: Any, depth: int = 2) -> str:
    """Outline a schema to a depth: `[{id: integer, user: {login}}]`. Its names are the paths of a `select`."""
    definitions = schema.get("$defs") if isinstance(schema, dict) else None
    try:
        return _Outline(definitions if isinstance(definitions, dict) else {}).of(schema, depth)
    except RecursionError:  # nested too deeply
        return "any"


def _arguments(schema: Schema) -> Iterator[str]:
    properties = properties_of(schema)
    definitions, required = schema.get("$defs"), schema.get("required")
    drawing = _Outline(definitions if isinstance(definitions, dict) else {})
    required = required if isinstance(required, list) else []
    options = [name for name in properties if name not in required and not is_deprecated(properties[name])]
    for name in (*(each for each in required if each in properties), *options[:_MAX_OPTIONS]):
        sign = "" if name in required else "?"
        yield f"{name}{sign}: {drawing.of(properties[name], 1)}"
    if len(options) > _MAX_OPTIONS:
        yield f"… {len(options) - _MAX_OPTIONS} more"


class _Outline:
    """Draws schemas that share definitions."""

    def __init__(self, definitions: Schema) -> None:
        self._definitions = definitions
        self._parts = 0

    def of(self, schema: Any, depth: int, seen: frozenset[str] = frozenset()) -> str:
        self._parts += 1
        if not isinstance(schema, dict) or self._parts > _MAX_PARTS:
            return "any"
        reference = schema.get("$ref")
        if isinstance(reference, str):
            name = reference.removeprefix("#/$defs/")
            if name in seen or name not in self._definitions:
                return "object" if name in seen else "any"
            return self.of(self._definitions[name], depth, seen | {name})
        if isinstance(schema.get("enum"), list):
            return _words(schema["enum"])
        if "const" in schema:
            return _words([schema["const"]])
        return self._by_type(schema, depth, seen)

    def _by_type(self, schema: Schema, depth: int, seen: frozenset[str]) -> str:
        if fields := self._fields(schema, seen):
            return self._object(fields, depth, seen) if depth > 0 else "object"
        for key in ("anyOf", "oneOf", "allOf"):
            if isinstance(schema.get(key), list):
                parts = [self.of(each, depth, seen) for each in schema[key]]
                return "|".join(dict.fromkeys(part for part in parts if part != "null")) or "null"
        if "items" in schema or schema.get("type") == "array":
            inner = self.of(schema.get("items"), depth, seen)
            return "array" if inner == "any" else f"[{inner}]"
        return _type(schema.get("type"))

    def _fields(self, schema: Schema, seen: frozenset[str]) -> Schema:
        """Return the properties of an object, including those it is composed of."""
        found: Schema = {}
        for part in schema.get("allOf", ()) if isinstance(schema.get("allOf"), list) else ():
            if isinstance(part, dict):
                name = str(part.get("$ref", "")).removeprefix("#/$defs/")
                whole = self._definitions.get(name, part) if name and name not in seen else part
                found |= self._fields(whole, seen | {name}) if isinstance(whole, dict) else {}
        return found | properties_of(schema)

    def _object(self, fields: Schema, depth: int, seen: frozenset[str]) -> str:
        shown = [self._field(name, fields[name], depth, seen) for name in list(fields)[:_MAX_FIELDS]]
        more = len(fields) - len(shown)
        return f"{{{', '.join(shown)}{f', … {more} more' if more > 0 else ''}}}"

    def _field(self, name: str, schema: Any, depth: int, seen: frozenset[str]) -> str:
        """Return a field with its contents as far as the depth allows."""
        if depth <= 1:
            return name
        inner = self.of(schema, depth - 1, seen)
        return f"{name}: {inner}" if inner[:1] in ("{", "[") else name


def _words(values: list[Any]) -> str:
    shown = "|".join(msgspec.json.encode(each, enc_hook=str).decode() for each in values[:_MAX_WORDS])
    return shown if len(values) <= _MAX_WORDS else f"{shown}|…"


def _type(declared: Any) -> str:
    if isinstance(declared, list):
        return "|".join(str(each) for each in declared if each != "null") or "null"
    return declared if isinstance(declared, str) else "any"


BYTES_PER_TOKEN: Final = 4  # bytes of UTF-8; an estimate, since tokenizers differ


def estimate_tokens(text: str | bytes | dict[str, Any] | list[Any]) -> int:
    """Estimate the tokens of a text or of the JSON of a value."""
    if not isinstance(text, str | bytes):
        text = msgspec.json.encode(text, enc_hook=str)
    size = len(text) if isinstance(text, bytes) else len(text.encode("utf-8", "replace"))
    return -(-size // BYTES_PER_TOKEN)
