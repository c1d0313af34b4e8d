"""The help of an operation: what it takes, down to nested fields, and a call that would run, from its schema."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import msgspec

from enfold.operation import OperationSpec
from enfold.surfaces.command_line.samples import example_words
from enfold.surfaces.command_line.schema_words import fields_of, limits_of, opened, type_text

__all__ = ["operation_help"]

_DEEPEST: Final = 4
_MOST_ROWS: Final = 200


def operation_help(spec: OperationSpec, caller: str = "call") -> str:
    """The operation's help; `caller` is what stands before the operation on the user's command line."""
    schema = spec.input_schema
    lines = [f"{spec.id} ({spec.type.value})"]
    if spec.description:
        lines += ["", spec.description]
    lines += ["", f"usage: {caller} {spec.id}{_synopsis(schema)}"]
    rows = list(islice(_rows(schema, schema, 0, (id(schema.get("properties")),)), _MOST_ROWS))
    if rows:
        width = min(max(len(left) for left, _ in rows), 60)
        lines += ["", "arguments:", *(f"  {left:<{width}}  {right}".rstrip() for left, right in rows)]
        if len(rows) == _MOST_ROWS:
            lines.append("  … and more")
    words = example_words(schema)
    if words:
        lines += ["", "example:", f"  {caller} {spec.id} {' '.join(words)}"]
    return "\n".join(lines)


def _synopsis(schema: dict[str, Any]) -> str:
    return "".join(f" {name}=…" if is_required else f" [{name}=…]" for name, _, is_required in fields_of(schema))


def _rows(part: Any, root: dict[str, Any], depth: int, above: tuple[int, ...]) -> Iterator[tuple[str, str]]:
    """A row for each field of an object, and below it one for each of its own fields."""
    for name, field, is_required in fields_of(part):
        whole = opened(field, root)
        yield f"{'  ' * depth}{name}  {type_text(field, root)}", " ".join(_notes(whole, is_required))
        inner = opened(_object_in(whole, root), root)
        if depth < _DEEPEST and id(inner.get("properties")) not in above:
            yield from _rows(inner, root, depth + 1, (*above, id(inner.get("properties"))))


def _object_in(part: dict[str, Any], root: dict[str, Any]) -> Any:
    """The object whose fields are worth showing: the part itself, an array's items, or the only one of a union."""
    if isinstance(part.get("items"), dict):
        return _object_in(opened(part["items"], root), root)
    variants = [opened(each, root) for each in part.get("anyOf") or part.get("oneOf") or ()]
    objects = [each for each in variants if "properties" in each]
    return objects[0] if len(objects) == 1 else part


def _notes(part: dict[str, Any], is_required: bool) -> list[str]:
    notes = [str(part["description"]).strip()] if part.get("description") else []
    notes += [f"({limit})" for limit in limits_of(part)]
    if is_required:
        notes.append("(required)")
    elif "default" in part:
        notes.append(f"(default {msgspec.json.encode(part['default']).decode()})")
    return notes
