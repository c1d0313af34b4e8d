"""What both engines share when they read JSON data: the error they raise, and the number 1.0 taken for an integer."""

from __future__ import annotations

from collections.abc import Hashable
from operator import is_
from typing import Any, Final, TypeAlias

from enfold.errors import DecodeError, Reason
from enfold.schema.types import shapes
from enfold.schema.types.shapes import Definitions, RecordShape, Shape

Path: TypeAlias = list[str | int]

KEY: Final = "[key]"  # a step of a path: the keys of an object, not one of its values


def refusal(path: Path, expected: str, reason: Reason = "type") -> DecodeError:
    """The error for a place in the data, named as the faults of a schema name it."""
    from enfold.schema import wording  # with the first fault

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
    nodes = _alternatives(schema, [schema])
    for step in path:
        nodes = _alternatives(schema, [_inside(node, step) for node in nodes])
    formats = dict.fromkeys(text for node in nodes if (text := node.get("format") or node.get("contentEncoding")))
    return " or ".join(formats) or None


def _alternatives(root: dict[str, Any], schemas: list[Any]) -> list[dict[str, Any]]:
    """The schemas that these refer to or choose from, each once: members of a union often lead to the same."""
    found: dict[int, dict[str, Any]] = {}
    waiting = [schema for schema in schemas if isinstance(schema, dict)]
    for schema in waiting:  # grows while it is read
        if id(schema) in found:
            continue
        found[id(schema)] = schema
        if "$ref" in schema:
            target = root.get("$defs", {}).get(schema["$ref"].removeprefix("#/$defs/"))
            waiting += [target] if isinstance(target, dict) else []
        else:
            waiting += _members(schema)
    return [schema for schema in found.values() if "$ref" not in schema and not _members(schema)]


def _members(schema: dict[str, Any]) -> list[dict[str, Any]]:
    members = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf") or []
    return [member for member in members if isinstance(member, dict)]


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
    return _WholeNumbers(definitions).of(shape, value)


def whole_numbers_of_fields(record: RecordShape, value: Any, definitions: Definitions) -> Any:
    """`whole_numbers` for the fields of a record, which comes as an object or as a row."""
    return _WholeNumbers(definitions).of_record(record, value)


class _WholeNumbers:
    """One walk over a value; what the members of a union define by one name is done once for them all."""

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        # Each result is kept with its value, so that no other value can have the same identity meanwhile.
        self._known: dict[tuple[Hashable, int], tuple[Any, Any]] = {}

    def of(self, shape: Shape, value: Any) -> Any:
        match shape, value:
            case ((shapes.Scalar(type="integer") | shapes.Flags()), float()) if value.is_integer():
                return int(value)
            case shapes.Enumeration(), float() if value.is_integer() and int in map(type, shape.values):
                return int(value)
            case shapes.Noted(), _:
                return self.of(shape.shape, value)
            case shapes.Either(), _:
                return self._of_either(shape, value)
            case shapes.Named(), dict() | list():
                return self._of_named(shape.key, value)
            case shapes.Items(), list():
                return self._of_items(shape.item, value)
            case shapes.Row(), list():
                return self._of_row(shape.items, value)
            case shapes.Table(), dict():
                return _changed_dict(value, {key: self.of(shape.value, value[key]) for key in value})
        return value

    def of_record(self, record: RecordShape, value: Any) -> Any:
        fields = {field.wire_name: field.shape for field in record.fields}
        if isinstance(value, list):
            return self._of_row(tuple(fields.values()), value)
        changes = {key: self.of(shape, value[key]) for key, shape in fields.items() if key in value}
        return _changed_dict(value, {**value, **changes})

    def _of_either(self, shape: shapes.Either, value: Any) -> Any:
        if isinstance(value, float) and any(_takes_fractions(member) for member in shape.members):
            return value
        for member in shape.members:
            value = self.of(member, value)
        return value

    def _of_named(self, name: Hashable, value: Any) -> Any:
        key = (name, id(value))
        if key not in self._known:
            self._known[key] = (value, self._of_definition(self._definitions[name], value))
        return self._known[key][1]

    def _of_definition(self, definition: RecordShape | shapes.Alias, value: Any) -> Any:
        if isinstance(definition, shapes.Alias):
            return self.of(definition.shape, value)
        return self.of_record(definition, value)

    def _of_items(self, shape: Shape, value: list[Any]) -> Any:
        """There may be very many items, so those of a plain type are not matched one by one."""
        if isinstance(shape, shapes.Scalar):
            return value if shape.type != "integer" else _changed_list(value, [_whole(item) for item in value])
        return _changed_list(value, [self.of(shape, item) for item in value])

    def _of_row(self, shapes: tuple[Shape, ...], value: list[Any]) -> Any:
        changed = [self.of(shape, item) for shape, item in zip(shapes, value, strict=False)]
        return _changed_list(value, [*changed, *value[len(changed) :]])


def _takes_fractions(shape: Shape) -> bool:
    return (
        _takes_fractions(shape.shape)
        if isinstance(shape, shapes.Noted)
        else isinstance(shape, shapes.Scalar) and shape.type == "number"
    )


def _whole(item: Any) -> Any:
    return int(item) if type(item) is float and item.is_integer() else item


def _changed_list(old: list[Any], new: list[Any]) -> list[Any]:
    return old if all(map(is_, old, new)) else new


def _changed_dict(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    return old if all(old[key] is new[key] for key in old) else new
