"""Reads arguments and values with msgspec, and provides what both engines share: errors and number conversion."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from functools import cached_property, partial
from operator import is_
from typing import Annotated, Any, ClassVar, Final, TypeAlias, Union

import msgspec
from msgspec import UNSET, ValidationError

from enfold.errors import DecodeError, Reason
from enfold.schema import types as shapes
from enfold.schema.types import NO_LIMITS, Definitions, Part, RecordShape, Shape, UnreadableTextError, ValueLimits

Path: TypeAlias = list[str | int]
MakeSchema: TypeAlias = Callable[[], dict[str, Any]]
Read: TypeAlias = Callable[[Any], Any]  # JSON data to a value; raises DecodeError

KEY: Final = "[key]"  # a path segment for the keys of an object


class RefusedError(DecodeError):
    """An error that is explained on first access: most refused input is converted and read again."""

    def __init__(self, explain: Callable[[], DecodeError]) -> None:
        super().__init__("", "")
        self._explain = explain

    def explained(self) -> tuple[str, str, Reason]:
        return self._explained

    @cached_property
    def _explained(self) -> tuple[str, str, Reason]:
        return self._explain().explained()


def refused_by_schema(data: Any, schema: dict[str, Any]) -> DecodeError:
    """Return the error for data that its schema rejects."""
    return _schema_fault(data, schema, []) or DecodeError("", "JSON data", "constraint")


def _schema_fault(data: Any, schema: dict[str, Any], path: Path) -> DecodeError | None:
    """Return the first fault that the schema finds at or below a location."""
    from enfold.schema.arguments import faults  # few arguments are refused

    place = _place(path)
    inside = (f"{place}.", f"{place}[") if place else ""
    found = (each for each in faults(schema, data) if each.argument == place or each.argument.startswith(inside))
    fault = next(found, None)
    return None if fault is None else DecodeError(fault.argument, fault.expected or "", fault.reason)


def refusal(path: Path, expected: str, reason: Reason = "type") -> DecodeError:
    """Return the error for a location in the data."""
    return DecodeError(_place(path), expected, reason)


def _place(path: Path) -> str:
    from enfold.schema import messages

    return messages.path(tuple(step for step in path if step != KEY))


def explain_refusal(
    data: Any, schema: dict[str, Any], path: Path, cause: BaseException | None, message: str
) -> DecodeError:
    """Return the error with the message of the user's validator, the schema's explanation or format, or the engine's."""
    if cause is not None and is_of_user(cause):
        return refusal(path, sentence(cause), "constraint")
    if (fault := _schema_fault(data, schema, path)) is not None:
        return fault
    if formats := _expected_formats(schema, path):
        return refusal(path, formats)
    return refusal(path, message, "constraint")


def is_of_user(cause: BaseException | None) -> bool:
    """Whether a user's validator raised the exception."""
    return cause is not None and not isinstance(cause, UnreadableTextError)


def sentence(error: BaseException) -> str:
    """Return the message of an exception without further arguments, which may be private objects."""
    return error.args[0] if error.args and isinstance(error.args[0], str) else str(error)


def _expected_formats(schema: dict[str, Any], path: Path) -> str | None:
    """Return the formats that a schema declares at a location, such as `date-time`; None without formats."""
    from enfold.schema.compiled import compile_schema  # few arguments are refused
    from enfold.schema.nodes import in_place, reachable
    from enfold.schema.nodes.traits import nodes_inside

    nodes = reachable([compile_schema(schema).root], in_place)
    for step in path:
        inside = (part for node in nodes for part in (nodes_inside(node, step) if step != KEY else [node.names]))
        nodes = reachable(filter(None, inside), in_place)
    formats = dict.fromkeys(node.source.get("format") or node.source.get("contentEncoding") for node in nodes)
    return " or ".join(filter(None, formats)) or None


def whole_number(part: Part, value: Any) -> Any:
    """Rule for `rewritten`: convert 1.0 to 1 where an integer is expected, since JSON has one number type."""
    if type(value) is not float or not value.is_integer():
        return value
    match part:
        case shapes.Scalar(type="integer") | shapes.Flags():
            return int(value)
        case shapes.Enumeration() if int in map(type, part.values):
            return int(value)
    return value


def finite_decimal(part: Part, value: Any) -> Any:
    """Rule for `rewritten`: replace `NaN` and `Infinity`, which msgspec accepts as decimals, by text that it rejects."""
    if isinstance(value, str) and shapes.is_decimal(part):
        return "" if value.strip().lstrip("+-").lower().startswith(_NOT_FINITE) else value
    return value


_NOT_FINITE: Final = ("nan", "snan", "inf")


def rewritten(part: Part, value: Any, definitions: Definitions, rule: Callable[[Part, Any], Any]) -> Any:
    """Apply a rule to each scalar of a value; return the same object where nothing changes."""
    return _ShapeWalk(definitions, rule).of(part, value)


class _ShapeWalk:
    """One traversal of a value; a definition shared by members of a union is applied once."""

    def __init__(self, definitions: Definitions, rule: Callable[[Part, Any], Any]) -> None:
        self._definitions = definitions
        self._rule = rule
        # Results hold a reference to their value so that its identity stays unique.
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
        """Rewrite items; scalars skip the pattern match, since there may be many."""
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
    """Whether a union member is a number or string and the value is a float or string."""
    kind = {float: "number", str: "string"}.get(type(value))
    shape = shapes.without_notes(shape)
    return isinstance(shape, shapes.Scalar) and shape.type == kind


def _same_or_new(old: list[Any], new: list[Any]) -> list[Any]:
    return old if all(map(is_, old, new)) else new


convert: Final = msgspec.convert
as_dict: Final = msgspec.structs.asdict

_PYTHON_TYPES: Final = {"null": None, "boolean": bool, "integer": int, "number": float, "string": str}

_MAX_FLOAT: Final = 1.7976931348623157e308

# Types whose JSON values need no conversion.
_UNCONVERTED: Final = frozenset({"null", "boolean", "integer", "string"})

# How msgspec reports a location: "... - at `$.a[0]`", or "... - at `key` in `$.a`".
_WHERE: Final = r"(?s) - at `(key` in `)?\$(.*)`$"
_STEP: Final = r"\.([^.\[]+|\[key\])|\[(\d+|\.\.\.)\]"
_UNNAMED_KEY: Final = "..."


def argument_reader(record: RecordShape, definitions: Definitions, schema: MakeSchema) -> Read:
    """Return a function from the JSON object of a call to keyword arguments, which raises DecodeError.

    Raises TypeError or NameError immediately for a type that msgspec does not support.
    """
    struct = _struct(record, definitions, {})
    _check_types(struct)
    if all(_is_unconverted(field.shape) and field.wire_name == field.keyword for field in record.fields):
        return _checking_reader(struct, schema)
    return _with_finite_decimals(_converting_reader(struct, record, schema), record, definitions)


def _with_finite_decimals(read: Read, part: shapes.Part, definitions: Definitions) -> Read:
    """Let the reader reject `NaN` and `Infinity` for decimals, which JSON cannot represent."""
    if not any(map(shapes.is_decimal, shapes.all_parts(part, definitions))):
        return read

    def read_finite(data: Any) -> Any:
        value = read(data)
        finite = rewritten(part, data, definitions, finite_decimal)
        return value if finite is data else read(finite)

    return read_finite


def to_annotation(shape: Shape, definitions: Definitions, own: OwnRecords | None = None) -> Any:
    """Return the shape as a msgspec annotation without patterns; raise TypeError for an unsupported shape.

    `own` collects the records that need a custom reader.
    """
    own = {} if own is None else own
    match shape:
        case shapes.Anything():
            return Any
        case shapes.Scalar("number"):
            return _finite_number(shape.limits)
        case shapes.Scalar():
            return _with_limits(_PYTHON_TYPES[shape.type], msgspec.structs.replace(shape.limits, pattern=None))
        case shapes.Text():
            return _with_limits(shape.cls, shape.limits)
        case shapes.Enumeration():
            return shape.annotation
        case shapes.Flags():
            return shape.cls
        case shapes.Items():
            item = to_annotation(shape.item, definitions, own)
            return _with_limits(_generic(shape.build, (item, ...) if shape.build is tuple else item), shape.limits)
        case shapes.Row():
            return _generic(tuple, tuple(to_annotation(item, definitions, own) for item in shape.items))
        case shapes.Table():
            key, value = (to_annotation(part, definitions, own) for part in (shape.key, shape.value))
            return _with_limits(_generic(shape.build, (key, value)), shape.limits)
        case shapes.Either():
            return _generic(Union, tuple(to_annotation(member, definitions, own) for member in shape.members))
        case shapes.Named():
            definition = definitions[shape.key]
            if isinstance(definition, shapes.Alias):
                raise TypeError("msgspec does not support recursive type aliases")
            return _own_record(shape, definition, definitions, own)
        case shapes.Noted():
            return to_annotation(shape.shape, definitions, own)
        case shapes.Foreign():
            raise TypeError("only pydantic supports this type")


def _own_record(shape: shapes.Named, record: RecordShape, definitions: Definitions, own: OwnRecords) -> Any:
    """Return the class of a record; where its patterns could take long, one that `read_hook` reads.

    msgspec would run the patterns of the class in `re`, without a limit.
    """
    if not any(map(_has_slow_pattern, shapes.all_parts(shape, definitions))):
        return record.annotation
    if shape.key not in own:
        own[shape.key] = type(record.name, (_OwnRecord,), {"record": record})
        own[shape.key].struct = _struct(record, definitions, own)
        _check_types(own[shape.key].struct)
    return own[shape.key]


def _has_slow_pattern(part: shapes.Part) -> bool:
    if not isinstance(part, shapes.Scalar) or part.limits.pattern is None:
        return False
    from enfold.schema.regexp import compile_pattern  # few types have a pattern

    return not compile_pattern(part.limits.pattern).is_quick_within(part.limits.max_length)


class _BuiltElsewhere(type):
    """Metaclass that accepts all objects as instances: the hook returns objects of another class."""

    def __instancecheck__(cls, _: object) -> bool:
        return True


class _OwnRecord(metaclass=_BuiltElsewhere):
    """A record read through a hook: converted to a struct from which the class is built."""

    record: ClassVar[RecordShape]
    struct: ClassVar[type[msgspec.Struct]]

    @classmethod
    def read(cls, value: Any) -> Any:
        fields = cls.record.read_fields
        values = msgspec.structs.astuple(convert(value, cls.struct, **_OPTIONS))
        given = {field.keyword: each for field, each in zip(fields, values, strict=True) if each is not UNSET}
        return cls.record.build(*given.values()) if cls.record.is_row else cls.record.build(**given)


OwnRecords: TypeAlias = dict[Hashable, type[_OwnRecord]]


def read_hook(cls: Any, value: Any) -> Any:
    """Decode a class that msgspec does not support: a path or an IP address from its text."""
    if issubclass(cls, _OwnRecord):
        return cls.read(value)
    if isinstance(value, cls):
        return value
    try:
        if isinstance(value, str):
            return cls(value)
    except ValueError:
        raise UnreadableTextError(cls.__name__) from None
    raise UnreadableTextError(cls.__name__)


_OPTIONS: Final[dict[str, Any]] = {"str_keys": True, "dec_hook": read_hook}


def _generic(build: Any, arguments: Any) -> Any:
    return build[arguments]


def _with_limits(annotation: Any, limits: ValueLimits) -> Any:
    return annotation if limits == NO_LIMITS else Annotated[annotation, msgspec.Meta(**limits.given())]


def _finite_number(limits: ValueLimits) -> Any:
    """Return a number with limits that exclude infinity."""
    given = limits.given()
    if not given.keys() & {"ge", "gt"}:
        given["ge"] = -_MAX_FLOAT
    if not given.keys() & {"le", "lt"}:
        given["le"] = _MAX_FLOAT
    return Annotated[float, msgspec.Meta(**given)]


def _struct(record: RecordShape, definitions: Definitions, own: OwnRecords) -> type[msgspec.Struct]:
    """Return one struct for all fields or arguments, with numbered fields where the names are not allowed."""
    is_legal = _has_legal_names(record)
    names = [field.keyword if is_legal else f"a{number}" for number, field in enumerate(record.read_fields)]
    fields: list[Any] = []
    for name, field in zip(names, record.read_fields, strict=True):
        annotation = to_annotation(field.shape, definitions, own)
        fields.append((name, annotation) if field.required else (name, annotation, UNSET))
    rename = {name: field.wire_name for name, field in zip(names, record.read_fields, strict=True)}
    options: dict[str, Any] = {"rename": rename, "forbid_unknown_fields": record.is_closed}
    if record.tag is not None:
        options |= {"tag_field": record.tag[0], "tag": record.tag[1]}
    # Unpacked immediately, so the garbage collector does not have to track it.
    return msgspec.defstruct(
        "Arguments", fields, kw_only=not record.is_row, array_like=record.is_row, gc=False, **options
    )


def _check_types(annotation: Any) -> None:
    """Convert once: on the first conversion msgspec raises TypeError for unsupported types."""
    try:
        convert({}, annotation, **_OPTIONS)
    except ValidationError:
        return


def _is_unconverted(shape: Shape) -> bool:
    shape = shapes.without_notes(shape)
    if isinstance(shape, shapes.Either):
        return all(map(_is_unconverted, shape.members))
    if isinstance(shape, shapes.Enumeration):
        return shape.is_plain
    return isinstance(shape, shapes.Scalar) and shape.type in _UNCONVERTED


def _checking_reader(struct: type[msgspec.Struct], schema: MakeSchema) -> Read:
    """Return a reader for arguments that are the same in JSON and Python and need no conversion."""

    def read(arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments unchanged if msgspec accepts them."""
        try:
            convert(arguments, struct)
        except _REFUSALS as error:
            raise RefusedError(partial(_refused, error, arguments, struct, schema)) from error
        return arguments

    return read


def _converting_reader(struct: type[msgspec.Struct], record: RecordShape, schema: MakeSchema) -> Read:
    count = len(record.fields)
    to_dict = (
        as_dict if _has_legal_names(record) else partial(_numbered_to_dict, [field.keyword for field in record.fields])
    )
    needs_options = not all(_is_simple(field.shape) for field in record.fields)

    def read(arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            # Options are costly and rarely needed.
            given = to_dict(convert(arguments, struct, **_OPTIONS) if needs_options else convert(arguments, struct))
        except _REFUSALS as error:
            raise RefusedError(partial(_refused, error, arguments, struct, schema)) from error
        if len(arguments) == count:
            return given
        # Omitted arguments are not passed, so that the function's own defaults apply.
        return {keyword: value for keyword, value in given.items() if value is not UNSET}

    return read


def _has_legal_names(record: RecordShape) -> bool:
    """Whether a struct may have fields of these names; names like `__y` would be mangled."""
    return not any(field.keyword.startswith("__") for field in record.fields)


def _numbered_to_dict(keywords: list[str], struct: msgspec.Struct) -> dict[str, Any]:
    return dict(zip(keywords, msgspec.structs.astuple(struct), strict=True))


def _is_simple(shape: Shape) -> bool:
    """Whether msgspec reads the shape without the hook and without converting keys."""
    shape = shapes.without_notes(shape)
    match shape:
        case shapes.Either():
            return all(map(_is_simple, shape.members))
        case shapes.Items():
            return _is_simple(shape.item)
        case shapes.Text():
            return shape.cls.__module__ in {"datetime", "uuid", "decimal", "builtins"}
    return isinstance(shape, shapes.Anything | shapes.Scalar | shapes.Enumeration | shapes.Flags)


# Text with an unpaired surrogate raises UnicodeEncodeError, without a location.
_REFUSALS: Final = (ValidationError, UnicodeEncodeError)


def _refused(error: Exception, data: Any, annotation: Any, schema: MakeSchema) -> DecodeError:
    if isinstance(error, UnicodeEncodeError):
        from enfold.schema.plain import find_unpaired_surrogate

        return refusal(find_unpaired_surrogate(data) or [], "it contains an unpaired surrogate", "constraint")
    message, where = _split_message(str(error))
    return explain_refusal(data, schema(), _exact_path(_steps(where), data, annotation), error.__cause__, message)


def _split_message(text: str) -> tuple[str, str]:
    """Split a message of msgspec into text and path, with `KEY` at the end where it is about a key."""
    where = re.search(_WHERE, text)
    if where is None:
        return text, ""
    return text[: where.start()], where[2] + (f".{KEY}" if where[1] else "")


def _steps(where: str) -> Path:
    steps = (step.groups() for step in re.finditer(_STEP, where))
    return [name if name is not None else (int(place) if place != _UNNAMED_KEY else place) for name, place in steps]


def _exact_path(path: Path, data: Any, annotation: Any) -> Path:
    """Find the object keys that msgspec omits from the path, by converting the object with one key at a time."""
    while _UNNAMED_KEY in path:
        place = path.index(_UNNAMED_KEY)
        for key in _object_at(data, path[:place]):
            try:
                convert(_with_only(data, path[:place], key), annotation, **_OPTIONS)
            except ValidationError as error:
                path = [*path[:place], key, *_steps(_split_message(str(error))[1])[place + 1 :]]
                break
        else:
            return path[:place]
    return path


def _object_at(data: Any, path: Path) -> Any:
    for step in path:
        data = data[step]
    return data if isinstance(data, dict) else {}


def _with_only(data: Any, path: Path, key: str) -> Any:
    """Return the data with a single key in the object at the path."""
    if not path:
        return {key: data[key]}
    changed = data.copy()
    changed[path[0]] = _with_only(data[path[0]], path[1:], key)
    return changed
