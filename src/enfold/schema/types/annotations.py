"""Python annotations read into shapes. It looks at types only; what a class with fields holds is read in `record_classes`."""

from __future__ import annotations

import collections
import contextlib
import enum
import sys
import types
import typing
from collections import abc
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Never, TypeVar, Union, get_args, get_origin

import msgspec

from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError
from enfold.schema.types import shapes
from enfold.schema.types.record_classes import RecursiveAlias, is_record, names_of_module, read_record, resolve
from enfold.schema.types.shapes import Definitions, Shape
from enfold.schema.types.value_limits import is_pydantic_metadata, limit, read_metadata

_KNOWN: Final[dict[Any, Shape]] = {
    int: shapes.Scalar("integer"),
    str: shapes.Scalar("string"),
    float: shapes.Scalar("number"),
    bool: shapes.Scalar("boolean"),
    None: shapes.Scalar("null"),
    type(None): shapes.Scalar("null"),
    Any: shapes.Anything(),
    object: shapes.Anything(),
    msgspec.Raw: shapes.Anything(),
    typing.LiteralString: shapes.Scalar("string"),
    typing.Tuple: shapes.Items(tuple, shapes.Anything()),  # noqa: UP006 - users still write it, and it is not `tuple[()]`
}

# By name, so that reading an annotation imports nothing: who has such a type has imported its module.
_FORMATS: Final = {
    "datetime.datetime": "date-time",
    "datetime.date": "date",
    "datetime.time": "time",
    "datetime.timedelta": "duration",
    "uuid.UUID": "uuid",
    "decimal.Decimal": "decimal",
    "builtins.bytes": "base64",
    "builtins.bytearray": "base64",
    "builtins.memoryview": "base64",
    "pathlib.Path": "path",
    "pathlib.PosixPath": "path",
    "pathlib.PurePath": "path",
    "pathlib.PurePosixPath": "path",
    "pathlib.PureWindowsPath": "path",
    "ipaddress.IPv4Address": "ipv4",
    "ipaddress.IPv6Address": "ipv6",
    "ipaddress.IPv4Network": "ipv4network",
    "ipaddress.IPv6Network": "ipv6network",
    "ipaddress.IPv4Interface": "ipv4interface",
    "ipaddress.IPv6Interface": "ipv6interface",
}

_ARRAYS: Final[dict[Any, type]] = {
    list: list,
    set: set,
    frozenset: frozenset,
    collections.deque: collections.deque,
    abc.Sequence: list,
    abc.MutableSequence: list,
    abc.Collection: list,
    abc.Iterable: list,
    abc.Set: set,
    abc.MutableSet: set,
}

_OBJECTS: Final[dict[Any, type]] = {
    dict: dict,
    collections.OrderedDict: collections.OrderedDict,
    abc.Mapping: dict,
    abc.MutableMapping: dict,
}

# What msgspec makes itself; anything else that `_ARRAYS` and `_OBJECTS` name is made by the other engine.
_PLAIN_CONTAINERS: Final = (list, set, frozenset, tuple, dict)

# pydantic would take these, and then no JSON value at all would do.
_NOT_DATA: Final = {abc.Callable, abc.Iterator, abc.Generator, abc.Awaitable, abc.Coroutine, type}

_QUALIFIERS: Final = {"Required", "NotRequired", "ReadOnly", "Final", "ClassVar"}


class TypeReader:
    """Reads the annotations of one signature and keeps the classes they name; `names` are those its scope knows.

    In what a function gives, every mapping is an object: nobody has to build one.

    `needs_pydantic` says that msgspec cannot read one of the types; `unknown` names a class that is not even pydantic's.
    """

    __slots__ = ("_is_result", "_names", "_open_aliases", "_records_open", "definitions", "needs_pydantic", "unknown")

    def __init__(self, names: Mapping[str, Any] | None = None, *, is_result: bool = False) -> None:
        self._names = names or {}
        self._is_result = is_result
        self.definitions: Definitions = {}
        self.needs_pydantic = False
        self.unknown: str | None = None
        self._open_aliases: set[Any] = set()
        self._records_open = 0

    def read(self, annotation: Any) -> Shape:
        """The shape of an annotation whose text is already evaluated; a TypeError says why there is none."""
        with contextlib.suppress(TypeError):  # an annotation that cannot be hashed is none of these
            if (known := _KNOWN.get(annotation)) is not None:
                return known
        origin = get_origin(annotation)
        if origin is not None:
            return self._read_generic(annotation, origin)
        if isinstance(annotation, type):
            return self._read_class(annotation)
        return self._read_special(annotation)

    def _read_generic(self, annotation: Any, origin: Any) -> Shape:
        arguments = get_args(annotation)
        if origin is Annotated:
            return self._read_annotated(annotation)
        if origin is Union or origin is types.UnionType:
            return self._union([self.read(member) for member in arguments])
        if origin is Literal:
            return _literal(annotation)
        if origin is tuple:
            return self._read_tuple(arguments)
        if getattr(origin, "_name", None) in _QUALIFIERS:
            return self.read(arguments[0])
        if _is_alias(origin):
            return self._read_alias(annotation, origin.__value__[arguments])
        return self._read_container(annotation, origin, arguments)

    def _read_container(self, annotation: Any, origin: Any, arguments: tuple[Any, ...]) -> Shape:
        if not arguments:  # `typing.List` and the like
            return self._read_class(origin)
        if origin in _ARRAYS:
            return self._array(_ARRAYS[origin], self.read(arguments[0]))
        if origin in _OBJECTS:
            return self._object(annotation, _OBJECTS[origin], *arguments)
        if self._is_result and _is_mapping(origin):
            value = int if origin is collections.Counter else arguments[-1]
            return self._object(annotation, dict, arguments[0], value)
        if origin is ResponseEnvelope:
            return self.read(arguments[0])
        if is_record(origin):
            return self._read_record(annotation)
        return self._foreign(annotation) if origin not in _NOT_DATA else _refuse(annotation)

    def _read_class(self, cls: type) -> Shape:
        name = f"{cls.__module__.split('.')[0]}.{cls.__qualname__}"
        if name in _FORMATS:
            return shapes.Text(cls, _FORMATS[name])
        if cls is tuple:
            return shapes.Items(tuple, shapes.Anything())
        if cls in _ARRAYS:
            return self._array(_ARRAYS[cls], shapes.Anything())
        if cls in _OBJECTS:
            return self._object(cls, _OBJECTS[cls], str, Any)
        if _is_passed_on(cls):
            return shapes.Anything()
        if issubclass(cls, enum.Enum):
            return _enum(cls)
        if cls in _NOT_DATA:
            return _refuse(cls)
        if self._is_result and _is_mapping(cls):
            return self._object(cls, dict, str, int if cls is collections.Counter else Any)
        return self._read_record(cls) if is_record(cls) else self._foreign(cls)

    def _read_special(self, annotation: Any) -> Shape:
        if isinstance(annotation, TypeVar):
            return self._read_type_variable(annotation)
        if _is_alias(annotation):
            return self._read_alias(annotation, annotation.__value__)
        if supertype := getattr(annotation, "__supertype__", None):  # a NewType
            return self.read(supertype)
        return _refuse(annotation)

    def _read_annotated(self, annotation: Any) -> Shape:
        inner, *extra = get_args(annotation)
        if is_pydantic_metadata(extra):
            return self._foreign(annotation)
        metadata = read_metadata(extra)
        if metadata.uses_pydantic or (self._records_open and not metadata.is_plain):
            self.needs_pydantic = True
        shape = limit(self.read(inner), metadata.limits)
        return shape if metadata.notes == shapes.NO_NOTES else shapes.Noted(shape, metadata.notes)

    def _read_tuple(self, arguments: tuple[Any, ...]) -> Shape:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return shapes.Items(tuple, self.read(arguments[0]))
        return shapes.Row(tuple(self.read(argument) for argument in arguments))

    def _read_type_variable(self, variable: Any) -> Shape:
        if variable.__constraints__:
            return self._union([self.read(member) for member in variable.__constraints__])
        return shapes.Anything() if variable.__bound__ is None else self.read(variable.__bound__)

    def _read_alias(self, alias: Any, value: Any) -> Shape:
        """An alias is its value; one that refers to itself is defined by name."""
        if alias in self.definitions or alias in self._open_aliases:
            self.needs_pydantic = True
            self.definitions.setdefault(alias, shapes.Alias(_alias_name(alias), shapes.Anything()))
            return shapes.Named(alias)
        self._open_aliases.add(alias)
        value = resolve(value, names_of_module(alias.__module__), {**self._names, _alias_name(alias): alias})
        shape = self.read(value)
        self._open_aliases.discard(alias)
        if alias not in self.definitions:
            return shape
        self.definitions[alias] = shapes.Alias(_alias_name(alias), shape)
        return shapes.Named(alias)

    def _read_record(self, annotation: Any) -> Shape:
        if annotation not in self.definitions:
            # Holds the place while the fields are read.
            self.definitions[annotation] = shapes.Alias("", shapes.Anything())
            self._records_open += 1
            self.definitions[annotation] = read_record(annotation, self.read, self._read_own, self._names)
            self._records_open -= 1
        return shapes.Named(annotation)

    def _read_own(self, annotation: Any) -> Shape:
        """The shape of what a class sets itself: no argument has to have it, so it may be of any type."""
        before = self._records_open, self.needs_pydantic, self.unknown
        try:
            shape = self.read(annotation)
        except TypeError:
            shape = shapes.Anything()
        is_known = self.unknown == before[2]
        self._records_open, self.needs_pydantic, self.unknown = before
        return shape if is_known else shapes.Anything()

    def _union(self, members: list[Shape]) -> Shape:
        flat: list[Shape] = []
        for member in members:
            flat.extend(member.members if isinstance(member, shapes.Either) else [member])
        unique = [member for place, member in enumerate(flat) if member not in flat[:place]]
        if shapes.Anything() in unique:
            return shapes.Anything()
        return unique[0] if len(unique) == 1 else shapes.Either(tuple(unique))

    def _array(self, build: type, item: Shape) -> Shape:
        self.needs_pydantic |= build not in _PLAIN_CONTAINERS
        return shapes.Items(build, item)

    def _object(self, annotation: Any, build: type, key: Any, value: Any) -> Shape:
        self.needs_pydantic |= build not in _PLAIN_CONTAINERS
        table = shapes.Table(build, self.read(key), self.read(value))
        return table if _may_be_key(table.key) else _refuse(annotation)

    def _foreign(self, annotation: Any) -> Shape:
        if not _is_pydantic(annotation):
            self.unknown = self.unknown or spelled(annotation)
        self.needs_pydantic = True
        return shapes.Foreign(annotation)


def spelled(annotation: Any) -> str:
    """An annotation as its user would write it."""
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation).removeprefix("typing.")


def _is_mapping(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, Mapping) and not is_record(cls)


def _may_be_key(shape: Shape) -> bool:
    """Whether some value of a type can be the name of a property, which is text."""
    shape = shapes.without_notes(shape)
    match shape:
        case shapes.Items() | shapes.Row() | shapes.Table() | shapes.Scalar(type="boolean" | "null"):
            return False
        case shapes.Either():
            return any(map(_may_be_key, shape.members))
    return True


def _refuse(annotation: Any) -> Never:
    raise TypeError(f"{spelled(annotation)} has no form in JSON")


def _is_passed_on(cls: type) -> bool:
    """Whether a result of this class, an envelope or content, goes on as it is: then it says nothing about the data."""
    content = sys.modules.get("enfold.content")  # whoever has not loaded it has no class of it
    return issubclass(cls, ResponseEnvelope) or (
        content is not None and issubclass(cls, get_args(content.ContentBlock))
    )


def _is_pydantic(annotation: Any) -> bool:
    if get_origin(annotation) is Annotated:
        return True  # it is here because its metadata is pydantic's
    cls = get_origin(annotation) or annotation
    return hasattr(cls, "__get_pydantic_core_schema__") or hasattr(cls, "__pydantic_core_schema__")


def _is_alias(annotation: Any) -> bool:
    return type(annotation).__name__ == "TypeAliasType" or isinstance(annotation, RecursiveAlias)


def _alias_name(alias: Any) -> str:
    return str(alias.__name__)


def _literal(annotation: Any) -> Shape:
    members = get_args(annotation)
    return shapes.Enumeration(annotation, tuple(_json_value(member) for member in members), members)


def _enum(cls: type[enum.Enum]) -> Shape:
    if issubclass(cls, enum.Flag):
        return shapes.Flags(cls)
    members = tuple(cls)
    return shapes.Enumeration(cls, tuple(_json_value(member) for member in members), members)


def _json_value(member: Any) -> Any:
    from enfold.schema.plain import to_plain

    try:
        return to_plain(member)
    except CallError:
        raise TypeError(f"{member!r} is not a JSON value") from None
