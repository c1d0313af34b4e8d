"""Writes shapes as self-contained JSON Schema, draft 2020-12, with `$defs` for named types."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET

from enfold.errors import CallError
from enfold.schema import types as shapes
from enfold.schema.keywords import with_references
from enfold.schema.nodes.values import TYPE_NAMES
from enfold.schema.plain import to_plain
from enfold.schema.types import Definitions, Field, Part, RecordShape, Shape, ValueLimits

Mode = Literal["input", "output"]

_NUMBER_WORDS: Final = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}
_STRING_WORDS: Final = {"min_length": "minLength", "max_length": "maxLength", "pattern": "pattern"}
_ARRAY_WORDS: Final = {"min_length": "minItems", "max_length": "maxItems"}
_OBJECT_WORDS: Final = {"min_length": "minProperties", "max_length": "maxProperties"}
_SCALAR_WORDS: Final = {"integer": _NUMBER_WORDS, "number": _NUMBER_WORDS, "string": _STRING_WORDS}


def describe(part: Part, definitions: Definitions, mode: Mode) -> dict[str, Any]:
    """Return the schema of a shape or of a function's arguments; a class at the root is inlined unless recursive."""
    writer = _Writer(definitions, mode)
    schema = writer.inlined(writer.write(part))
    return {**schema, "$defs": writer.defs} if writer.defs else schema


class _Writer:
    """One schema document being written: its definitions so far and their names."""

    __slots__ = ("definitions", "defs", "mode", "names")

    def __init__(self, definitions: Definitions, mode: Mode) -> None:
        self.definitions = definitions
        self.mode: Mode = mode
        self.defs: dict[str, Any] = {}
        self.names: dict[Any, str] = {}

    def inlined(self, schema: dict[str, Any]) -> dict[str, Any]:
        name = schema.get("$ref", "").removeprefix("#/$defs/")
        if len(schema) != 1 or name not in self.defs or _mentions(self.defs, f"#/$defs/{name}"):
            return schema
        root: dict[str, Any] = self.defs.pop(name)
        return root

    def write(self, shape: Part) -> dict[str, Any]:
        match shape:
            case shapes.Anything():
                return {}
            case shapes.Scalar():
                return {"type": shape.type, **_limits(shape.limits, _SCALAR_WORDS.get(shape.type, {}))}
            case shapes.Text():
                return self._text(shape)
            case shapes.Enumeration():
                return _choice(shape.values)
            case shapes.Flags():
                return {"type": "integer"}
            case shapes.Items():
                return self._items(shape)
            case shapes.Row():
                items = [self.write(item) for item in shape.items]
                return _row(items, len(items))
            case shapes.Table():
                return self._table(shape)
            case shapes.Either():
                return self._either(shape)
            case shapes.Named():
                return self._reference(shape)
            case shapes.Foreign():
                return self._foreign(shape)
            case shapes.Noted():
                return {**self.write(shape.shape), **_notes(shape.notes)}
            case shapes.Alias():
                return self.write(shape.shape)
            case RecordShape():
                return self._record(shape)

    def _record(self, record: RecordShape) -> dict[str, Any]:
        shown = [field for field in record.fields if (field.is_read if self.mode == "input" else field.is_written)]
        # A default that the record omits must not be filled in again.
        shows_defaults = self.mode == "input" or not record.omits_defaults
        fields = {field.wire_name: self._field(field, shows_default=shows_defaults) for field in shown}
        required = [field.wire_name for field in shown if field.required]
        if record.is_row:
            head = [] if record.tag is None else [_choice((record.tag[1],))]
            return _row([*head, *fields.values()], len(head) + len(required))
        if record.tag is not None:
            fields = {record.tag[0]: _choice((record.tag[1],)), **fields}
            required = [record.tag[0], *required]
        schema: dict[str, Any] = {"type": "object", "properties": fields}
        if required:
            schema["required"] = required
        return schema | {"additionalProperties": False} if record.is_closed else schema

    def _field(self, field: Field, *, shows_default: bool) -> dict[str, Any]:
        schema = self.write(field.shape)
        if field.description is not None:
            schema = {"description": field.description} | schema
        default = _json_default(field.default) if shows_default else UNSET
        return schema if default is UNSET else {**schema, "default": default}

    def _text(self, shape: shapes.Text) -> dict[str, Any]:
        if shape.format == "base64":
            return {"type": "string", "contentEncoding": "base64"}
        text = {"type": "string", "format": shape.format}
        if shape.format != "decimal" or self.mode == "output":
            return text
        return {"anyOf": [text, {"type": "number", **_limits(shape.limits, _NUMBER_WORDS)}]}

    def _items(self, shape: shapes.Items) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "array"}
        if item := self.write(shape.item):
            schema["items"] = item
        # Results have no duplicates; arguments may, since duplicates make the same set.
        if shape.build in (set, frozenset) and self.mode == "output":
            schema["uniqueItems"] = True
        return schema | _limits(shape.limits, _ARRAY_WORDS)

    def _table(self, shape: shapes.Table) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "object", "additionalProperties": self.write(shape.value) or True}
        key = self._key(shape.key)
        if key != {"type": "string"}:
            schema["propertyNames"] = key
        return schema | _limits(shape.limits, _OBJECT_WORDS)

    def _key(self, key: Shape) -> dict[str, Any]:
        """Return the schema of a key's text; numbers are described by a pattern."""
        match key:
            case shapes.Scalar(type="integer"):
                return {"type": "string", "pattern": "^-?[0-9]+$"}
            case shapes.Scalar(type="number"):
                return {"type": "string", "pattern": "^-?[0-9]+(\\.[0-9]+)?([eE][-+]?[0-9]+)?$"}
            case shapes.Enumeration():
                return _choice(tuple(str(value) for value in key.values))
            case shapes.Noted():
                return self._key(key.shape)
            case shapes.Text() | shapes.Scalar(type="string"):
                return {"type": "string"} | {
                    word: value
                    for word, value in self.write(key).items()
                    if word in {"format", *_STRING_WORDS.values()}
                }
        return {"type": "string"}

    def _either(self, shape: shapes.Either) -> dict[str, Any]:
        members: list[dict[str, Any]] = []
        for member in shape.members:
            written = self.write(member)
            members.extend(written["anyOf"] if written.keys() == {"anyOf"} else [written])
        return {"anyOf": members, **self._discriminator(shape)}

    def _discriminator(self, shape: shapes.Either) -> dict[str, Any]:
        """Return the `discriminator` of tagged structs."""
        mapping: dict[str, str] = {}
        tag_fields = set()
        for member in shape.members:
            record = self.definitions.get(member.key) if isinstance(member, shapes.Named) else None
            if isinstance(record, RecordShape) and record.tag is not None and not record.is_row:
                tag_fields.add(record.tag[0])
                mapping[str(record.tag[1])] = self.write(member)["$ref"]
        if len(mapping) < 2 or len(tag_fields) > 1:
            return {}
        return {"discriminator": {"propertyName": tag_fields.pop(), "mapping": mapping}}

    def _reference(self, shape: shapes.Named) -> dict[str, Any]:
        definition = self.definitions[shape.key]
        if shape.key not in self.names:
            name = self.names[shape.key] = self._free_name(definition.name)
            self.defs[name] = {}  # reserves the name and the order while the body is written
            self.defs[name] = _title(definition) | self.write(definition)
        return {"$ref": f"#/$defs/{self.names[shape.key]}"}

    def _free_name(self, wanted: str) -> str:
        name, number = wanted, 2
        while name in self.defs:
            name, number = f"{wanted}{number}", number + 1
        return name

    def _foreign(self, shape: shapes.Foreign) -> dict[str, Any]:
        from enfold.schema.types.pydantic_schemas import describe_foreign

        schema = describe_foreign(shape.annotation, self.mode)
        return self._adopted(schema, schema.pop("$defs", {}))

    def _adopted(self, schema: dict[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
        """Move the definitions of a pydantic schema into this document, renamed where a name is taken."""
        names = {}
        for name, body in defs.items():
            # Equal names and bodies are the same definition.
            key = (name, repr(body))
            if key not in self.names:
                self.names[key] = self._free_name(name)
                self.defs[self.names[key]] = {}
            names[name] = self.names[key]
        references = {f"#/$defs/{old}": f"#/$defs/{new}" for old, new in names.items()}
        for name, body in defs.items():
            self.defs[names[name]] = with_references(body, lambda each: references.get(each, each))
        renamed: dict[str, Any] = with_references(schema, lambda each: references.get(each, each))
        return renamed


def _title(definition: RecordShape | shapes.Alias) -> dict[str, Any]:
    if isinstance(definition, shapes.Alias):
        return {}
    words = {"title": definition.name, "description": definition.description}
    return {word: text for word, text in words.items() if text}


def _mentions(schema: Any, reference: str) -> bool:
    if isinstance(schema, list):
        return any(_mentions(part, reference) for part in schema)
    if isinstance(schema, dict):
        return any(_mentions(part, reference) for part in schema.values())
    return bool(schema == reference)


def _limits(limits: ValueLimits, words: dict[str, str]) -> dict[str, Any]:
    return {words[name]: to_plain(value) for name, value in limits.given().items() if name in words}


def _row(items: list[dict[str, Any]], fewest: int) -> dict[str, Any]:
    prefix = {"prefixItems": items} if items else {}
    return {"type": "array", **prefix, "minItems": fewest, "maxItems": len(items)}


def _choice(values: tuple[Any, ...]) -> dict[str, Any]:
    kinds = {TYPE_NAMES.get(type(value)) for value in values}
    kind = kinds.pop() if len(kinds) == 1 else None
    head = {} if kind is None else {"type": kind}
    return {**head, "const": values[0]} if len(values) == 1 else {**head, "enum": list(values)}


def _notes(notes: shapes.Notes) -> dict[str, Any]:
    words = {"title": notes.title, "description": notes.description}
    schema = {word: text for word, text in words.items() if text is not None}
    examples = {} if notes.examples is None else {"examples": [to_plain(example) for example in notes.examples]}
    return {**schema, **examples, **notes.extra}


def _json_default(default: Any) -> Any:
    """Return the default as JSON, or UNSET where it is not JSON serializable."""
    if default is UNSET:
        return UNSET
    try:
        # A copy, so that a function that mutates its default does not change the schema.
        return msgspec.to_builtins(to_plain(default))
    except CallError:
        return UNSET
