"""Unions of pydantic-core that nest: told apart by a constant where they have one, and the work of reading the others.

pydantic tries every member of a union that has no discriminator, and so again on each level: what is nested n deep
may be read 2 to the power of n times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from enfold.schema.types.core_parts import Definitions, definitions_of, parts_inside, with_parts

Work = Callable[[Any], int]


def with_tags(core: Any, *, take_optional: bool = False) -> Any:
    """The schema with a discriminator for each union whose objects differ by the constant of a field.

    A field that may be left out is taken only if asked for: it must be there then.
    """
    definitions = definitions_of(core)

    def change(part: Any) -> Any:
        changed = with_parts(part, change)
        is_union = isinstance(part, dict) and part.get("type") == "union"
        return _tagged(changed, definitions, take_optional=take_optional) if is_union else changed

    return change(core)


def work_of(core: Any) -> Work | None:
    """A function of JSON data: how many values pydantic looks at to read it. None where that grows only with its size."""
    definitions = definitions_of(core)
    if not any(_multiplies(reference, definitions) for reference in definitions):
        return None
    return lambda data: _WorkCount(definitions).of(core, data)


# Tags.


class _Constants(msgspec.Struct, frozen=True):
    """The words that one field of an object may have, and whether it must be there."""

    words: tuple[str, ...]
    is_required: bool


def _tagged(union: Any, definitions: Definitions, *, take_optional: bool) -> Any:
    members = _members(union)
    found = {place: constants for place, member in enumerate(members) if (constants := _constants(member, definitions))}
    for name in next(iter(found.values())) if len(found) > 1 else ():
        fields = {place: constants[name] for place, constants in found.items() if name in constants}
        is_there = take_optional or all(field.is_required for field in fields.values())
        if is_there and len(fields) == len(found) and _all_differ(fields.values()):
            return _with_tagged(union, members, name, fields)
    return union


def _members(union: Any) -> list[Any]:
    return [choice[0] if isinstance(choice, tuple) else choice for choice in union["choices"]]


def _all_differ(fields: Iterable[_Constants]) -> bool:
    words = [word for field in fields for word in field.words]
    return len(set(words)) == len(words)


def _with_tagged(union: Any, members: list[Any], name: str, fields: dict[int, _Constants]) -> Any:
    choices = {word: members[place] for place, field in fields.items() for word in field.words}
    tagged = {"type": "tagged-union", "choices": choices, "discriminator": name}
    others = [member for place, member in enumerate(members) if place not in fields]
    return {**union, "choices": [tagged, *others]}


def _constants(member: Any, definitions: Definitions) -> dict[str, _Constants]:
    """The fields of an object that must be one of a few words, by their names in JSON."""
    core = _unwrapped(member, definitions)
    fields = core.get("fields", ()) if core.get("type") in _RECORDS else ()
    found = {name: _constants_of_field(field) for name, field in _named(fields)}
    return {name: constants for name, constants in found.items() if constants is not None}


_RECORDS: Final = {"model-fields", "typed-dict", "dataclass-args"}
# What stands around a record and leaves the data alone before it is read.
_AROUND: Final = {"model", "dataclass", "function-after", "definitions"}
_MAX_AROUND: Final = 20


def _unwrapped(core: Any, definitions: Definitions) -> Any:
    for _ in range(_MAX_AROUND):
        if core.get("type") == "definition-ref":
            core = definitions.get(core["schema_ref"], {})
        elif core.get("type") in _AROUND and not core.get("custom_init"):
            core = core["schema"]
        else:
            break
    return core


def _named(fields: Any) -> Iterator[tuple[str, Any]]:
    """Fields by name; those of a dataclass are a list."""
    yield from fields.items() if isinstance(fields, dict) else ((field["name"], field) for field in fields)


def _constants_of_field(field: Any) -> _Constants | None:
    schema = field["schema"]
    has_default = schema.get("type") == "default"
    literal = schema["schema"] if has_default else schema
    if field.get("validation_alias") is not None or literal.get("type") != "literal":
        return None
    words, is_required = tuple(literal["expected"]), field.get("required", True) and not has_default
    return _Constants(words, is_required) if all(type(word) is str for word in words) else None


# Work.


def _multiplies(reference: str, definitions: Definitions) -> bool:
    """Whether a union inside a definition leads back to it by more than one of its members."""
    return any(
        sum(reference in _reached(member, definitions) for member in _members(part)) > 1
        for part in parts_inside(definitions[reference])
        if part.get("type") == "union"
    )


def _reached(core: Any, definitions: Definitions) -> set[str]:
    """The definitions that a schema refers to, and those that they refer to."""
    found: set[str] = set()
    waiting = [core]
    for each in waiting:  # grows while it is read
        references = {part["schema_ref"] for part in parts_inside(each) if part.get("type") == "definition-ref"}
        new = [reference for reference in references - found if reference in definitions]
        found.update(new)
        waiting += [definitions[reference] for reference in new]
    return found


class _WorkCount:
    """Counts as pydantic works, but looks at each value only once for each definition."""

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._known: dict[tuple[str, int], int] = {}

    def of(self, core: Any, data: Any) -> int:
        if type(data) is not dict and type(data) is not list:
            return 1
        match core["type"]:
            case "definition-ref":
                return self._of_definition(core["schema_ref"], data)
            case "union":
                return sum(self.of(member, data) for member in _members(core))
            case "tagged-union":
                return self._of_tagged(core, data)
            case "model-fields" | "typed-dict" | "dataclass-args" if type(data) is dict:
                return 1 + sum(self._of_field(name, field, data) for name, field in _named(core["fields"]))
            case "list" | "set" | "frozenset" | "tuple" if type(data) is list:
                return 1 + sum(self._of_item(core.get("items_schema"), place, item) for place, item in enumerate(data))
            case "dict" if type(data) is dict and "values_schema" in core:
                return 1 + sum(self.of(core["values_schema"], item) for item in data.values())
        inner = [core[key] for key in ("schema", "strict_schema", "json_schema") if key in core]
        return sum(self.of(part, data) for part in [*inner, *core.get("steps", ())]) or 1

    def _of_definition(self, reference: str, data: Any) -> int:
        key = (reference, id(data))
        if key not in self._known:
            self._known[key] = 1  # where a definition is itself
            self._known[key] = self.of(self._definitions[reference], data)
        return self._known[key]

    def _of_tagged(self, core: Any, data: Any) -> int:
        name = core["discriminator"]
        word = data.get(name) if type(data) is dict and isinstance(name, str) else None
        meant = core["choices"].get(word) if type(word) is str else None
        members = list(core["choices"].values()) if meant is None else [meant]
        return max(self.of(member, data) for member in members)

    def _of_field(self, name: str, field: Any, data: dict[str, Any]) -> int:
        alias = field.get("validation_alias")
        names = {name, alias} if isinstance(alias, str) else {name}
        return sum(self.of(field["schema"], data[each]) for each in names if each in data)

    def _of_item(self, schemas: Any, place: int, item: Any) -> int:
        schema = schemas[min(place, len(schemas) - 1)] if isinstance(schemas, list) and schemas else schemas
        return self.of(schema, item) if isinstance(schema, dict) else 1
