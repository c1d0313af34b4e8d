"""The help of an operation, from its schema: arguments, nested fields, and an example call."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import msgspec

from enfold.operations import OperationSpec
from enfold.schema.keywords import properties_of
from enfold.schema.messages import FORMATS
from enfold.schema.nodes.reference import opened

_DEEPEST: Final = 4
_MAX_ROWS: Final = 200
_MAX_STEPS: Final = 500


def operation_help(spec: OperationSpec, caller: str = "call") -> str:
    """Return the help of an operation; `caller` is the command line before the operation."""
    schema = spec.input_schema
    lines = [f"{spec.id} ({spec.type.value})"]
    if spec.description:
        lines += ["", spec.description]
    synopsis = [f" {name}=…" if is_required else f" [{name}=…]" for name, _, is_required in fields_of(schema)]
    lines += ["", f"usage: {caller} {spec.id}{''.join(synopsis)}"]
    rows = list(islice(_rows(schema, schema, 0, (id(schema.get("properties")),)), _MAX_ROWS))
    if rows:
        width = min(max(len(left) for left, _ in rows), 60)
        lines += ["", "arguments:", *(f"  {left:<{width}}  {right}".rstrip() for left, right in rows)]
        if len(rows) == _MAX_ROWS:
            lines.append("  … and more")
        lines += ["", _spellings(schema)]
    words = _example_words(schema)
    if words:
        lines += ["", "example:", f"  {caller} {spec.id} {' '.join(words)}"]
    return "\n".join(lines)


def _spellings(schema: dict[str, Any]) -> str:
    """Return how arguments may be written, with those of the operation as examples."""
    name = fields_of(schema)[0][0]
    path = next(filter(None, (_nested(each, field, schema) for each, field, _ in fields_of(schema))), None)
    below = f"; a field of an object as {path}=…" if path else ""
    return f"Write an argument as {name}=… or --{name} …{below}."


def _nested(name: str, field: Any, root: dict[str, Any]) -> str | None:
    """Return the path of the first field of an argument that has fields."""
    whole = opened(field, root)
    inner = fields_of(opened(_object_in(whole, root), root))
    if not inner:
        return None
    return f"{name}.0.{inner[0][0]}" if "items" in whole else f"{name}.{inner[0][0]}"


def _rows(part: Any, root: dict[str, Any], depth: int, above: tuple[int, ...]) -> Iterator[tuple[str, str]]:
    """Yield a row for each field of an object, followed by rows for its own fields."""
    for name, field, is_required in fields_of(part):
        whole = opened(field, root)
        yield f"{'  ' * depth}{name}  {type_text(field, root)}", " ".join(_notes(whole, is_required))
        inner = opened(_object_in(whole, root), root)
        if depth < _DEEPEST and id(inner.get("properties")) not in above:
            yield from _rows(inner, root, depth + 1, (*above, id(inner.get("properties"))))


def _object_in(part: dict[str, Any], root: dict[str, Any]) -> Any:
    """Return the object whose fields to show: the part itself, an array's items, or the only one of a union."""
    for _ in range(_DEEPEST):  # an array may contain itself
        if isinstance(part.get("items"), dict):
            part = opened(part["items"], root)
    objects = [each for each in variants(part, root) if "properties" in each]
    return objects[0] if len(objects) == 1 else part


def _notes(part: dict[str, Any], is_required: bool) -> list[str]:
    notes = [str(part["description"]).strip()] if part.get("description") else []
    notes += [f"({limit})" for limit in limits_of(part)]
    if is_required:
        notes.append("(required)")
    elif "default" in part:
        notes.append(f"(default {msgspec.json.encode(part['default']).decode()})")
    return notes


# --- an example, shown only where its arguments would be taken ----------------------------------------------------


def _example_words(schema: dict[str, Any]) -> list[str]:
    """Return an example command with the required arguments; empty if there is no example."""
    from enfold.schema.compiled import compile_schema

    try:
        value = _Sampler(schema).fields(schema)
        is_right = compile_schema(schema).check(value)
    except (ValueError, TypeError, RecursionError):  # an odd schema has no example
        return []
    return [_word(name, sample) for name, sample in value.items()] if is_right else []


def _word(name: str, value: Any) -> str:
    from shlex import quote

    if isinstance(value, str) and not value.startswith("@"):
        return quote(f"{name}={value}")
    text = msgspec.json.encode(value).decode()
    return quote(f"{name}={text}" if isinstance(value, int | float) else f"{name}:={text}")


class _Sampler:
    """Makes one value of a schema, as long as that takes no more than a number of steps."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._left = _MAX_STEPS

    def sample(self, given: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise ValueError("The schema is too large for an example")
        part = opened(given, self._root)
        for key in ("examples", "enum"):
            if isinstance(part.get(key), list) and part[key]:
                return part[key][0]
        for key in ("const", "example", "default"):
            if key in part:
                return part[key]
        for union in ("anyOf", "oneOf"):
            if isinstance(part.get(union), list) and part[union]:
                return self.sample(part[union][0])
        kind = part.get("type", "object" if "properties" in part else "string")
        return self._of_type(kind[0] if isinstance(kind, list) and kind else kind, part)

    def fields(self, part: dict[str, Any]) -> dict[str, Any]:
        """Return the required properties of an object."""
        return {name: self.sample(field) for name, field, is_required in fields_of(part) if is_required}

    def _of_type(self, kind: Any, part: dict[str, Any]) -> Any:
        if kind == "integer":
            return _number(part)
        if kind == "number":
            return _number(part) + (0 if "multipleOf" in part or "maximum" in part else 0.5)
        if kind == "boolean":
            return True
        if kind == "null":
            return None
        if kind == "array":
            return [self.sample(part.get("items", {}))]
        return self.fields(part) if kind == "object" else _text(part)


def _number(part: dict[str, Any]) -> int:
    if "multipleOf" in part:
        return int(part["multipleOf"])
    if "exclusiveMinimum" in part:
        return int(part["exclusiveMinimum"]) + 1
    highest = part.get("maximum", part.get("minimum", 1))
    return int(part.get("minimum", min(1, highest)))


def _text(part: dict[str, Any]) -> str:
    text = FORMATS.get(str(part.get("format")), ("", "text"))[1]
    shortest, longest = part.get("minLength", 0), part.get("maxLength", len(text))
    return (text + "x" * (shortest - len(text)))[: max(longest, shortest)] if shortest < 1_000 else text


_MAX_CHOICES: Final = 12


def fields_of(part: Any) -> list[tuple[str, Any, bool]]:
    """Yield the properties of an object: name, schema, and whether it is required."""
    properties = properties_of(part)
    required = part.get("required") if properties else None
    names = required if isinstance(required, list) else []
    return [(name, field, name in names) for name, field in properties.items()]


def variants(part: Any, root: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the branches of a union, or the part itself; references are followed."""
    whole = opened(part, root)
    branches = whole.get("anyOf") or whole.get("oneOf")
    return [opened(branch, root) for branch in branches] if isinstance(branches, list) else [whole]


def type_text(part: Any, root: dict[str, Any], depth: int = 0) -> str:
    """Return a short name of a type: `integer`, `"low" | "high"`, `array of string`."""
    reference = part.get("$ref") if isinstance(part, dict) else None
    name = reference.rpartition("/")[2] if isinstance(reference, str) else ""  # `Address` for `#/$defs/Address`
    part = opened(part, root)
    if "const" in part:
        return _json(part["const"])
    if isinstance(part.get("enum"), list):
        shown = [_json(value) for value in part["enum"][:_MAX_CHOICES]]
        return " | ".join(shown + ["…"] * (len(part["enum"]) > _MAX_CHOICES))
    if depth > 4:
        return name or "any"
    for union in ("anyOf", "oneOf"):
        if isinstance(part.get(union), list):
            return " | ".join(dict.fromkeys(type_text(each, root, depth + 1) for each in part[union]))
    kind = part.get("type", "object" if "properties" in part else "any")
    if kind == "array" and isinstance(part.get("items"), dict):
        return f"array of {type_text(part['items'], root, depth + 1)}"
    if isinstance(kind, list):
        return " | ".join(str(each) for each in kind)
    return name if name and kind == "object" else str(kind)


_LIMITS: Final = {
    "format": "{}",
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "pattern": "pattern {}",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "contentEncoding": "{}",
}


def limits_of(part: dict[str, Any]) -> Iterator[str]:
    """Yield the constraints of a value, a few words each."""
    for key, words in _LIMITS.items():
        if isinstance(part.get(key), str | int | float):
            yield words.format(part[key])


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
