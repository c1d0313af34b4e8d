"""Arguments made from an input schema: only what is required, or everything, checked by a validator that is not ours."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, Final

import jsonschema_rs
from hypothesis import HealthCheck, find, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException

Schema = dict[str, Any]

_FORMATS: Final = {
    "byte": "YWJj",
    "date": "2024-01-02",
    "date-time": "2024-01-02T03:04:05Z",
    "duration": "P1D",
    "email": "ann@example.com",
    "hostname": "example.com",
    "ipv4": "10.0.0.1",
    "ipv6": "::1",
    "time": "03:04:05Z",
    "uri": "https://example.com/a",
    "uri-reference": "https://example.com/a",
    "url": "https://example.com/a",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
}
_DEEPEST_OPTION: Final = 3
_DEEPEST: Final = 14
_CHOICES: Final = 4
_ABOUT_OBJECTS: Final = ("properties", "required", "additionalProperties")


class NoValueError(Exception):
    """No value was found for a schema; that says nothing about the schema."""


def make_arguments(schema: Schema, *, full: bool) -> dict[str, Any]:
    """Arguments the schema allows: the required ones, or all that can be made."""
    validator = jsonschema_rs.Draft202012Validator(schema)
    for choice in range(_CHOICES):
        try:
            arguments: dict[str, Any] = _Maker(schema.get("$defs", {}), choice, full=full).make(schema)
        except (NoValueError, RecursionError):
            continue
        _drop_misfits(arguments, validator, schema.get("required", []))
        if validator.is_valid(arguments):
            return arguments
    raise NoValueError


def _drop_misfits(
    arguments: dict[str, Any], validator: jsonschema_rs.Draft202012Validator, required: list[str]
) -> None:
    """Leave out options no value fits, as where two alternatives allow the same and only one of them may."""
    wrong = {error.instance_path[0] for error in validator.iter_errors(arguments) if error.instance_path}
    for name in wrong.difference(required):
        arguments.pop(str(name))


class _Maker:
    """Makes values; `choice` says which of several alternatives is taken."""

    def __init__(self, definitions: dict[str, Any], choice: int, *, full: bool) -> None:
        self._definitions = definitions
        self._choice = choice
        self._full = full

    def make(self, schema: Any, depth: int = 0, turn: int = 0) -> Any:
        """A value; another `turn` gives another one, where there are several."""
        schema = self._flat(schema)
        if depth > _DEEPEST or schema is False:
            raise NoValueError
        if schema is True:
            return "abc"
        fixed = _fixed(schema)
        if fixed:
            return fixed[turn % len(fixed)]
        examples = _examples(schema)
        if turn < len(examples):
            return examples[turn]
        kind = _kind(schema)
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, depth)
        return _scalar(schema, kind, turn)

    def _flat(self, schema: Any) -> Any:
        """The schema without references, parts and alternatives."""
        while isinstance(schema, dict) and "$ref" in schema:
            found = self._definitions[schema["$ref"].removeprefix("#/$defs/")]
            schema = _joined({key: value for key, value in schema.items() if key != "$ref"}, found)
        if not isinstance(schema, dict):
            return schema
        for word in ("allOf", "anyOf", "oneOf"):
            if word in schema:
                rest = {key: value for key, value in schema.items() if key != word}
                parts = schema[word] if word == "allOf" else [self._chosen(schema[word])]
                return self._flat(self._all_of(rest, parts))
        return schema

    def _all_of(self, schema: Any, parts: list[Any]) -> Any:
        for part in parts:
            schema = _joined(schema, self._flat(part))
        return schema

    def _chosen(self, alternatives: list[Any]) -> Any:
        useful = [each for each in alternatives if each != {"type": "null"}] or alternatives
        return useful[self._choice % len(useful)]

    def _object(self, schema: Schema, depth: int) -> dict[str, Any]:
        required, properties = schema.get("required", []), schema.get("properties", {})
        made: dict[str, Any] = {}
        for name in [*properties, *(each for each in required if each not in properties)]:
            is_required = name in required
            if is_required or (self._full and depth < _DEEPEST_OPTION and name != "content_type"):
                self._put(
                    made, name, properties.get(name, schema.get("additionalProperties", True)), depth, is_required
                )
        return made

    def _put(self, made: dict[str, Any], name: str, schema: Any, depth: int, is_required: bool) -> None:
        try:
            made[name] = self.make(schema, depth + 1)
        except NoValueError:
            if is_required:
                raise

    def _array(self, schema: Schema, depth: int) -> list[Any]:
        """Two items that differ, where there may be: one alone, or none, cannot be told from text in a query."""
        count = min(max(schema.get("minItems", 0), 2), schema.get("maxItems", 2))
        made: list[Any] = []
        for turn in range(count):
            item = self.make(schema.get("items", True), depth + 1, turn)
            if item not in made or not schema.get("uniqueItems"):
                made.append(item)
        return made


def _joined(one: Any, other: Any) -> Any:
    """Both schemas in one, as far as making a value asks for it."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return other if one == {} or one is True else False if other is False else one
    joined = {**other, **one}
    for word in ("properties", "required"):
        if word in one and word in other:
            joined[word] = {**other[word], **one[word]} if word == "properties" else [*one[word], *other[word]]
    return joined


def _fixed(schema: Schema) -> list[Any]:
    """The only values a schema allows, if it lists them."""
    if "const" in schema:
        return [schema["const"]]
    return [each for each in schema.get("enum", []) if each is not None] or schema.get("enum", [])


def _examples(schema: Schema) -> list[Any]:
    """The scalars a schema gives as examples or default, as far as it allows them itself."""
    named = [*schema.get("examples", []), *([schema["default"]] if "default" in schema else [])]
    scalars = [each for each in named if isinstance(each, str | int | float) and each != ""]
    if not scalars or _kind(schema) in ("object", "array"):
        return []  # an example of something whole says nothing about which of its parts are needed
    validator = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
    return [each for each in scalars if validator.is_valid(each)]


def _kind(schema: Schema) -> str:
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else [each for each in kinds if each != "null"] or kinds
    if kinds:
        return str(kinds[0])
    if any(word in schema for word in _ABOUT_OBJECTS):
        return "object"
    return "array" if "items" in schema else "string"


def _scalar(schema: Schema, kind: str, turn: int) -> Any:
    if kind == "boolean":
        return turn % 2 == 0
    if kind == "null":
        return None
    return _text(schema, turn) if kind == "string" else _number(schema, kind, turn)


def _number(schema: Schema, kind: str, turn: int) -> float:
    low = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1 if "exclusiveMinimum" in schema else None)
    high = schema.get("maximum", schema.get("exclusiveMaximum", 1) - 1 if "exclusiveMaximum" in schema else None)
    value = low if low is not None else min(1, high) if high is not None else 1
    step = schema.get("multipleOf", 1)
    value = (math.ceil(value / step) + turn) * step if kind == "integer" or "multipleOf" in schema else value + turn
    return int(value) if kind == "integer" else value


def _text(schema: Schema, turn: int) -> str:
    shortest: int = schema.get("minLength", 0)
    longest: int = schema.get("maxLength", 1 << 20)
    if schema.get("contentEncoding") == "base64":
        return "AAEC"
    formatted = _FORMATS.get(schema.get("format", ""))
    if formatted is not None and jsonschema_rs.Draft202012Validator(schema).is_valid(formatted):
        return formatted
    if "pattern" in schema:
        return _matching(schema["pattern"], shortest, longest)
    plain = "abcd"[turn % 2 :][:3]
    return (plain + "x" * (shortest - len(plain)))[:longest]


@cache
def _matching(pattern: str, shortest: int, longest: int) -> str:
    """The simplest text of letters, digits and signs that matches."""
    signs = st.characters(min_codepoint=33, max_codepoint=126)
    quick = settings(max_examples=300, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    matching = st.from_regex(pattern, alphabet=signs)
    try:
        found = find(matching, lambda text: max(shortest, 1) <= len(text) <= longest, settings=quick)
    except (HypothesisException, ValueError, OverflowError) as error:
        raise NoValueError from error
    return str(found)
