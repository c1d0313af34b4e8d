"""Generated schemas, values that fit them, and selections of names that they have: `make bench` and the tests check them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jsonschema_rs
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from enfold.search.fields import narrowed_schema, read_fields
from enfold.search.selection import select_fields

__all__ = ["CASES", "Case"]

NAMES = ("id", "title", "user", "items", "a/b", "größe", "x y")
SCALARS: dict[str, SearchStrategy[Any]] = {
    "string": st.text(max_size=4),
    "integer": st.integers(-5, 5),
    "boolean": st.booleans(),
    "null": st.none(),
}


class Case(NamedTuple):
    """A schema, a value that fits it, and a selection."""

    schema: dict[str, Any]
    value: Any
    text: str

    def check(self) -> None:
        """The value fits; what is selected from it fits the narrowed schema; and to select twice changes nothing."""
        assert jsonschema_rs.validator_for(self.schema).is_valid(self.value), self
        fields = read_fields(self.text)
        narrow = narrowed_schema(self.schema, fields)
        selected, _ = select_fields(self.value, fields)
        jsonschema_rs.meta.validate(narrow)
        assert jsonschema_rs.validator_for(narrow).is_valid(selected), (self, narrow, selected)
        assert select_fields(selected, fields) == (selected, 0)


@st.composite
def cases(draw: DrawFn) -> Case:
    definitions: dict[str, Any] = {}
    schema, value, names = draw(pairs(definitions, 3))
    text = ",".join(draw(st.lists(paths(names), min_size=1, max_size=4)))
    whole = {"allOf": [schema]} if draw(st.booleans()) else schema
    return Case({**whole, "$defs": definitions} if definitions else whole, value, text)


class Names(dict[str, "Names"]):
    """The names that objects at a place may have, and those inside them."""


@st.composite
def pairs(draw: DrawFn, definitions: dict[str, Any], depth: int) -> tuple[dict[str, Any], Any, Names]:
    """A schema, a value that fits it, and the names in it."""
    kind = draw(st.sampled_from(("object", "array", "union", "reference", "composed", "map") if depth else ("scalar",)))
    if kind == "scalar":
        name = draw(st.sampled_from(sorted(SCALARS)))
        value = draw(SCALARS[name])
        enum = {"enum": [value, 7]} if draw(st.booleans()) and draw(st.booleans()) else {}
        return {"type": name, **enum}, value, Names()
    if kind == "object":
        return draw(objects(definitions, depth))
    if kind == "array":
        schema, value, names = draw(pairs(definitions, depth - 1))
        count = draw(st.integers(0, 2))
        limits = {"minItems": count, "maxItems": 2}
        return {"type": "array", "items": schema, **limits}, [value] * count, names
    if kind == "map":
        schema, value, names = draw(pairs(definitions, depth - 1))
        keys = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=2))
        inside = Names(dict.fromkeys(keys, names))
        return {"type": "object", "additionalProperties": schema}, dict.fromkeys(keys, value), inside
    schema, value, names = draw(objects(definitions, depth))
    if kind == "reference":
        name = f"d{len(definitions)}"
        definitions[name] = schema
        return {"$ref": f"#/$defs/{name}"}, value, names
    if kind == "union":
        other = draw(pairs(definitions, depth - 1))[0]
        parts = [schema, other, {"type": "null"}]
        word = draw(st.sampled_from(("anyOf", "oneOf")))
        union = {word: parts}
        fits = jsonschema_rs.validator_for({**union, "$defs": definitions}).is_valid(value)
        return (union if fits else {"anyOf": parts}), value, names
    more, extra, others = draw(objects(definitions, depth))
    both = {**extra, **value}
    whole = {"allOf": [{**schema, "additionalProperties": True}, {**more, "additionalProperties": True}]}
    fits = jsonschema_rs.validator_for({**whole, "$defs": definitions}).is_valid(both)
    return (whole, both, Names({**others, **names})) if fits else (schema, value, names)


@st.composite
def objects(draw: DrawFn, definitions: dict[str, Any], depth: int) -> tuple[dict[str, Any], Any, Names]:
    properties, value, names = {}, {}, Names()
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1, max_size=3)):
        properties[name], inner, names[name] = draw(pairs(definitions, depth - 1))
        if draw(st.booleans()) or draw(st.booleans()):
            value[name] = inner
    required = [name for name in value if draw(st.booleans())]
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
    extra = draw(st.sampled_from(("closed", "open", "counted", "whole")))
    if extra == "closed":
        schema["additionalProperties"] = False
    if extra == "counted":
        schema |= {"minProperties": len(value), "propertyNames": {"minLength": 2}, "dependentRequired": {"zz": ["yy"]}}
    if extra == "whole":
        schema["enum"] = [value]
    if not jsonschema_rs.validator_for({**schema, "$defs": definitions}).is_valid(value):
        schema.pop("enum", None)
    return schema, value, names


@st.composite
def paths(draw: DrawFn, names: Names) -> str:
    """One path of a selection, in one of the ways to write it."""
    if not names:
        return "*"
    name = draw(st.sampled_from([*names, "*"]))
    inner = names[name] if name != "*" else Names()
    written: str = name if name.isalnum() or name == "*" else '"' + name + '"'
    if not inner or draw(st.booleans()):
        return written
    if draw(st.booleans()):
        below = draw(paths(inner))
        return f"{written}/{below}"
    one, other = draw(paths(inner)), draw(paths(inner))
    return f"{written}({one},{other})"


CASES = cases()
