"""What both engines share when they read JSON data: the error they raise, and the number 1.0 taken for an integer."""

from __future__ import annotations

from operator import is_
from typing import Any, Final, TypeAlias

from enfold.errors import DecodeError, Reason
from enfold.schema import wording
from enfold.schema.types import shapes
from enfold.schema.types.shapes import Definitions, Record, Shape

__all__ = [
    "KEY",
    "NotTextOfError",
    "Path",
    "expected_formats",
    "read_text",
    "refusal",
    "sentence",
    "whole_numbers",
    "whole_numbers_of_fields",
]


Path: TypeAlias = list[str | int]

KEY: Final = "[key]"  # a step of a path: the keys of an object, not one of its values


def refusal(path: Path, expected: str, reason: Reason = "type") -> DecodeError:
    """The error for a place in the data, named as the faults of a schema name it."""
    return DecodeError(wording.path(tuple(step for step in path if step != KEY)), expected, reason)


class NotTextOfError(ValueError):
    """Text that does not stand for a value of its type."""

    def __init__(self, format: str) -> None:
        super().__init__(format)
        self.format = format


def read_text(cls: type, value: Any, format: str) -> Any:
    """A path, an address and the like from its text; a value of the class passes as it is."""
    if isinstance(value, cls):
        return value
    try:
        if isinstance(value, str):
            return cls(value)
    except ValueError:
        raise NotTextOfError(format) from None
    raise NotTextOfError(format)


def sentence(error: BaseException) -> str:
    """What an exception says; some add objects to their sentence that are not for a caller's eyes."""
    return error.args[0] if error.args and isinstance(error.args[0], str) else str(error)


def expected_formats(schema: dict[str, Any], path: Path) -> str | None:
    """The formats that a schema names for the text at a place, such as `date-time`; None where it names none."""
    nodes = _nodes_at(schema, schema, path)
    formats = dict.fromkeys(text for node in nodes if (text := node.get("format") or node.get("contentEncoding")))
    return " or ".join(formats) or None


def _nodes_at(root: dict[str, Any], schema: Any, path: Path) -> list[dict[str, Any]]:
    """The schemas that speak about the value at the path, alternatives included."""
    if not isinstance(schema, dict):
        return []
    if "$ref" in schema:
        return _nodes_at(root, root.get("$defs", {}).get(schema["$ref"].removeprefix("#/$defs/")), path)
    if members := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
        return [node for member in members for node in _nodes_at(root, member, path)]
    if not path:
        return [schema]
    return _nodes_at(root, _inside(schema, path[0]), path[1:])


def _inside(schema: dict[str, Any], key: str | int) -> Any:
    """What a schema says about one part of a value."""
    if key == KEY:
        return schema.get("propertyNames")
    if schema.get("type") == "array":
        prefix = schema.get("prefixItems", ())
        return prefix[key] if isinstance(key, int) and key < len(prefix) else schema.get("items")
    return schema.get("properties", {}).get(key, schema.get("additionalProperties"))


def whole_numbers(shape: Shape, value: Any, definitions: Definitions) -> Any:
    """The value with 1.0 made 1 where an integer is asked for; the same object where nothing has to change."""
    match shape, value:
        case ((shapes.Scalar(type="integer") | shapes.Flags()), float()) if value.is_integer():
            return int(value)
        case shapes.Enumeration(), float() if value.is_integer() and int in map(type, shape.values):
            return int(value)
        case shapes.Noted(), _:
            return whole_numbers(shape.shape, value, definitions)
        case shapes.Either(), _:
            return _whole_in_either(shape, value, definitions)
        case shapes.Named(), dict() | list():
            return _whole_in_named(definitions[shape.key], value, definitions)
        case shapes.Items(), list():
            return _whole_in_items(shape.item, value, definitions)
        case shapes.Row(), list():
            return _whole_in_row(shape.items, value, definitions)
        case shapes.Table(), dict():
            return _changed_dict(value, {key: whole_numbers(shape.value, value[key], definitions) for key in value})
    return value


def whole_numbers_of_fields(record: Record, value: Any, definitions: Definitions) -> Any:
    """The same for the fields of a record."""
    shapes = {field.wire_name: field.shape for field in record.fields}
    if isinstance(value, list):
        return _whole_in_row(tuple(shapes.values()), value, definitions)
    changes = {key: whole_numbers(shape, value[key], definitions) for key, shape in shapes.items() if key in value}
    return _changed_dict(value, {**value, **changes})


def _whole_in_either(shape: shapes.Either, value: Any, definitions: Definitions) -> Any:
    if isinstance(value, float) and any(_takes_fractions(member) for member in shape.members):
        return value
    for member in shape.members:
        value = whole_numbers(member, value, definitions)
    return value


def _takes_fractions(shape: Shape) -> bool:
    return (
        _takes_fractions(shape.shape)
        if isinstance(shape, shapes.Noted)
        else isinstance(shape, shapes.Scalar) and shape.type == "number"
    )


def _whole_in_named(definition: Record | shapes.Alias, value: Any, definitions: Definitions) -> Any:
    if isinstance(definition, shapes.Alias):
        return whole_numbers(definition.shape, value, definitions)
    return whole_numbers_of_fields(definition, value, definitions)


def _whole_in_items(shape: Shape, value: list[Any], definitions: Definitions) -> Any:
    """The same for the items of a list, which may be very many."""
    if isinstance(shape, shapes.Scalar):
        if shape.type != "integer":
            return value
        return _changed_list(
            value, [int(item) if type(item) is float and item.is_integer() else item for item in value]
        )
    return _changed_list(value, [whole_numbers(shape, item, definitions) for item in value])


def _whole_in_row(shapes: tuple[Shape, ...], value: list[Any], definitions: Definitions) -> Any:
    pairs = zip(shapes, value, strict=False)
    changed = [whole_numbers(shape, item, definitions) for shape, item in pairs]
    return _changed_list(value, [*changed, *value[len(changed) :]])


def _changed_list(old: list[Any], new: list[Any]) -> list[Any]:
    return old if all(map(is_, old, new)) else new


def _changed_dict(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    return old if all(old[key] is new[key] for key in old) else new
