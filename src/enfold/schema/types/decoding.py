"""What both engines share when they read JSON data: the error they raise, and numbers changed before they read them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from operator import is_
from typing import Any, Final, TypeAlias

from enfold.errors import DecodeError, Reason
from enfold.schema.types import shapes
from enfold.schema.types.shapes import Definitions, Part, RecordShape, Shape

Path: TypeAlias = list[str | int]
MakeSchema: TypeAlias = Callable[[], dict[str, Any]]
Read: TypeAlias = Callable[[Any], Any]  # JSON data to a value; raises DecodeError

KEY: Final = "[key]"  # a step of a path: the keys of an object, not one of its values


def refusal(path: Path, expected: str, reason: Reason = "type") -> DecodeError:
    """The error for a place in the data, named as the faults of a schema name it."""
    from enfold.schema import wording  # with the first fault

    return DecodeError(wording.path(tuple(step for step in path if step != KEY)), expected, reason)


class NotTextOfError(ValueError):
    """Text that does not stand for a value of its type; its argument names the type or the format."""


def explain_refusal(
    path: Path, schema: dict[str, Any], cause: BaseException | None, message: str, reason: Reason = "constraint"
) -> DecodeError:
    """The error in the words of the user's own validator, of the schema's formats, or else of the engine."""
    if cause is not None and is_of_user(cause):
        return refusal(path, sentence(cause), "constraint")
    if formats := _expected_formats(schema, path):
        return refusal(path, formats)
    return refusal(path, message, reason)


def is_of_user(cause: BaseException | None) -> bool:
    """Whether a validator of the user's raised it, and not one of ours."""
    return cause is not None and not isinstance(cause, NotTextOfError)


def sentence(error: BaseException) -> str:
    """What an exception says; some add objects to their sentence that are not for a caller's eyes."""
    return error.args[0] if error.args and isinstance(error.args[0], str) else str(error)


def _expected_formats(schema: dict[str, Any], path: Path) -> str | None:
    """The formats that a schema names for the text at a place, such as `date-time`; None where it names none."""
    nodes = _alternatives(schema, [schema])
    for step in path:
        nodes = _alternatives(schema, [_subschema(node, step) for node in nodes])
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


def _subschema(schema: dict[str, Any], key: str | int) -> Any:
    """What a schema says about one part of a value."""
    if key == KEY:
        return schema.get("propertyNames")
    if schema.get("type") == "array":
        prefix = schema.get("prefixItems", ())
        return prefix[key] if isinstance(key, int) and key < len(prefix) else schema.get("items")
    return schema.get("properties", {}).get(key, schema.get("additionalProperties"))


def whole_number(part: Part, value: Any) -> Any:
    """A rule for `rewritten`: JSON has one kind of number, so 1.0 is 1 where an integer is asked for."""
    if type(value) is not float or not value.is_integer():
        return value
    match part:
        case shapes.Scalar(type="integer") | shapes.Flags():
            return int(value)
        case shapes.Enumeration() if int in map(type, part.values):
            return int(value)
    return value


def finite_decimal(part: Part, value: Any) -> Any:
    """A rule for `rewritten`: `NaN` and `Infinity`, which msgspec takes for decimals, become text that it refuses."""
    if isinstance(value, str) and shapes.is_decimal(part):
        return "" if value.strip().lstrip("+-").lower().startswith(_ENDLESS) else value
    return value


_ENDLESS: Final = ("nan", "snan", "inf")


def rewritten(part: Part, value: Any, definitions: Definitions, rule: Callable[[Part, Any], Any]) -> Any:
    """The value with each scalar in it changed by the rule for its shape; the same object where nothing changes."""
    return _ShapeWalk(definitions, rule).of(part, value)


class _ShapeWalk:
    """One walk over a value; what the members of a union define by one name is done once for them all."""

    def __init__(self, definitions: Definitions, rule: Callable[[Part, Any], Any]) -> None:
        self._definitions = definitions
        self._rule = rule
        # Each result is kept with its value, so that no other value can have the same identity meanwhile.
        self._known: dict[tuple[Hashable, int], tuple[Any, Any]] = {}

    def of(self, part: Part, value: Any) -> Any:
        match part:
            case shapes.Scalar() | shapes.Text():
                return self._rule(part, value)
            case shapes.Either():
                return self._of_either(part, value)
            case shapes.Noted() | shapes.Alias():
                return self.of(part.shape, value)
            case shapes.Named() if isinstance(value, dict | list):
                return self._of_named(part.key, value)
            case RecordShape() if isinstance(value, dict):
                return self._of_fields(part, value)
            case RecordShape() if isinstance(value, list):
                tag = () if part.tag is None else (shapes.Anything(),)
                return self._of_row((*tag, *(field.shape for field in part.fields)), value)
            case shapes.Items() if isinstance(value, list):
                return self._of_items(part.item, value)
            case shapes.Row() if isinstance(value, list):
                return self._of_row(part.items, value)
            case shapes.Table() if isinstance(value, dict):
                return self._of_table(part, value)
        return self._rule(part, value)

    def _of_either(self, shape: shapes.Either, value: Any) -> Any:
        if any(_takes_as_it_is(member, value) for member in shape.members):
            return value
        for member in shape.members:
            value = self.of(member, value)
        return value

    def _of_named(self, name: Hashable, value: Any) -> Any:
        key = (name, id(value))
        if key not in self._known:
            self._known[key] = (value, self.of(self._definitions[name], value))
        return self._known[key][1]

    def _of_fields(self, record: RecordShape, value: dict[str, Any]) -> Any:
        changed = {}
        for field in record.fields:
            old = value.get(field.wire_name)
            if (new := self.of(field.shape, old)) is not old:
                changed[field.wire_name] = new
        return {**value, **changed} if changed else value

    def _of_items(self, shape: Shape, value: list[Any]) -> Any:
        """There may be very many items, so those of a plain type are not matched one by one."""
        change = self._rule if isinstance(shape, shapes.Scalar) else self.of
        return _same_or_new(value, [change(shape, item) for item in value])

    def _of_row(self, shapes: tuple[Shape, ...], value: list[Any]) -> Any:
        changed = [self.of(shape, item) for shape, item in zip(shapes, value, strict=False)]
        return _same_or_new(value, [*changed, *value[len(changed) :]])

    def _of_table(self, shape: shapes.Table, value: dict[str, Any]) -> Any:
        keys, items = list(value), list(value.values())
        new_keys, new_items = self._of_items(shape.key, keys), self._of_items(shape.value, items)
        return value if new_keys is keys and new_items is items else dict(zip(new_keys, new_items, strict=True))


def _takes_as_it_is(shape: Shape, value: Any) -> bool:
    """Whether a member of a union is a number with a fraction or a text, and the value is one."""
    kind = {float: "number", str: "string"}.get(type(value))
    shape = shapes.without_notes(shape)
    return isinstance(shape, shapes.Scalar) and shape.type == kind


def _same_or_new(old: list[Any], new: list[Any]) -> list[Any]:
    return old if all(map(is_, old, new)) else new
