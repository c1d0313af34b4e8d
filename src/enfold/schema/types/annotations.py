"""Reads Python annotations, and the fields of classes they name, into shapes."""

from __future__ import annotations

import collections
import contextlib
import enum
import re
import sys
import types
import typing
from collections import abc
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal, Never, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, UNSET
from msgspec.structs import replace

from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError
from enfold.schema import types as shapes
from enfold.schema.types import (
    Definitions,
    Field,
    Injected,
    RecordShape,
    Shape,
    is_media_type,
    is_pydantic_metadata,
    limit,
    read_metadata,
)
from enfold.schema.types.docstring import parse_docstring

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

# By name, so that reading an annotation imports nothing.
_FORMATS: Final = {
    "datetime.datetime": "date-time", "datetime.date": "date", "datetime.time": "time",
    "datetime.timedelta": "duration", "uuid.UUID": "uuid", "decimal.Decimal": "decimal",
    "builtins.bytes": "base64", "builtins.bytearray": "base64", "builtins.memoryview": "base64",
    "pathlib.Path": "path", "pathlib.PosixPath": "path", "pathlib.PurePath": "path",
    "pathlib.PurePosixPath": "path", "pathlib.PureWindowsPath": "path", "ipaddress.IPv4Address": "ipv4",
    "ipaddress.IPv6Address": "ipv6", "ipaddress.IPv4Network": "ipv4network",
    "ipaddress.IPv6Network": "ipv6network", "ipaddress.IPv4Interface": "ipv4interface",
    "ipaddress.IPv6Interface": "ipv6interface",
}  # fmt: skip

_UPLOADS: Final = frozenset({"fastapi.UploadFile", "starlette.UploadFile"})

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

# Containers that msgspec builds; pydantic builds the others.
_PLAIN_CONTAINERS: Final = (list, set, frozenset, tuple, dict)

# pydantic accepts these types, but no JSON value is valid for them.
_NOT_DATA: Final = {abc.Callable, abc.Iterator, abc.Generator, abc.Awaitable, abc.Coroutine, type}

_QUALIFIERS: Final = {"Required", "NotRequired", "ReadOnly", "Final", "ClassVar"}


class TypeReader:
    """Reads the annotations of one signature and collects the classes they name; `names` are those in scope.

    In a return type every mapping is an object, since none has to be built. `needs_pydantic` is set where msgspec does not
    support a type, `unknown` to the name of a class that is not pydantic's either.
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
        """Return the shape of an evaluated annotation; raise TypeError where there is none."""
        with contextlib.suppress(TypeError):  # not hashable
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
        if name in _UPLOADS:
            raise TypeError(
                f"{cls.__name__} of {cls.__module__.partition('.')[0]} is not supported: annotate a file as bytes"
            )
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
        if any(isinstance(item, Injected) for item in extra):
            raise TypeError(f"{spelled(annotation)} must be the annotation of a parameter itself, not a part of it")
        if bare := next((item for item in extra if isinstance(item, type) and issubclass(item, Injected)), None):
            name = bare.__name__
            raise TypeError(f"{name} needs parentheses: write Annotated[{spelled(inner)}, {name}(...)]")
        if is_pydantic_metadata(extra):
            return self._foreign(annotation)
        metadata = read_metadata(extra)
        if metadata.uses_pydantic or (self._records_open and not metadata.is_plain):
            self.needs_pydantic = True
        shape = limit(self.read(inner), metadata.limits)
        for item in filter(is_media_type, extra):
            self._check_media_type(item, shape, annotation)
        return shape if metadata.notes == shapes.NO_NOTES else shapes.Noted(shape, metadata.notes)

    def _check_media_type(self, item: Any, shape: Shape, annotation: Any) -> None:
        inner = shapes.without_notes(shape)
        members = inner.members if isinstance(inner, shapes.Either) else (inner,)
        if not any(isinstance(each, shapes.Text) and each.format == "base64" for each in members):
            raise TypeError(f"{spelled(annotation)}: MediaType can only be applied to bytes")
        if item.is_range and self._is_result:
            raise TypeError(f"{spelled(annotation)}: the media type of a result must not be a range")

    def _read_tuple(self, arguments: tuple[Any, ...]) -> Shape:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return shapes.Items(tuple, self.read(arguments[0]))
        return shapes.Row(tuple(self.read(argument) for argument in arguments))

    def _read_type_variable(self, variable: Any) -> Shape:
        if variable.__constraints__:
            return self._union([self.read(member) for member in variable.__constraints__])
        return shapes.Anything() if variable.__bound__ is None else self.read(variable.__bound__)

    def _read_alias(self, alias: Any, value: Any) -> Shape:
        """Return the shape of an alias: its value, or a named definition if it is recursive."""
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
            # Reserves the key while the fields are read.
            self.definitions[annotation] = shapes.Alias("", shapes.Anything())
            self._records_open += 1
            self.definitions[annotation] = read_record(annotation, self.read, self._read_own, self._names)
            self._records_open -= 1
        return shapes.Named(annotation)

    def _read_own(self, annotation: Any) -> Shape:
        """Return the shape of a field that the class sets itself, which may have any type."""
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
    """Return an annotation as the user would write it."""
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation).removeprefix("typing.")


def injected_in(annotation: Any) -> Injected | None:
    """Return the mark in the annotation of a parameter that the runtime fills in; the last one counts."""
    return next((mark for mark in reversed(marks_of(annotation)) if isinstance(mark, Injected)), None)


def marks_of(annotation: Any) -> tuple[Any, ...]:
    """Return what `Annotated` adds to the type of a parameter."""
    while _is_alias(annotation) or _is_alias(get_origin(annotation)):
        annotation = annotation.__value__
    return get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()


def _is_mapping(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, Mapping) and not is_record(cls)


def _may_be_key(shape: Shape) -> bool:
    """Whether a value of the type can be a property name."""
    shape = shapes.without_notes(shape)
    match shape:
        case shapes.Items() | shapes.Row() | shapes.Table() | shapes.Scalar(type="boolean" | "null"):
            return False
        case shapes.Either():
            return any(map(_may_be_key, shape.members))
    return True


def _refuse(annotation: Any) -> Never:
    raise TypeError(f"{spelled(annotation)} is not JSON serializable")


def _is_passed_on(cls: type) -> bool:
    """Whether results of this class, an envelope or content, are passed through and do not describe the data."""
    content = sys.modules.get("enfold.envelope.content")  # not loaded means none of its classes is used
    return issubclass(cls, ResponseEnvelope) or (
        content is not None and issubclass(cls, get_args(content.ContentBlock))
    )


def _is_pydantic(annotation: Any) -> bool:
    if get_origin(annotation) is Annotated:
        return True  # its metadata is pydantic's
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


Read = Callable[[Any], Shape]
Fields = Iterator[Field]

_EMPTY_CONTAINERS: Final = (list, dict, set, frozenset, tuple)


def is_record(cls: Any) -> bool:
    """Whether the class has readable fields; pydantic classes are left to pydantic."""
    if not isinstance(cls, type) or hasattr(cls, "__pydantic_core_schema__"):
        return False
    return (
        issubclass(cls, msgspec.Struct)
        or _is_typed_dict(cls)
        or _is_named_tuple(cls)
        or hasattr(cls, "__dataclass_fields__")
        or "__attrs_attrs__" in cls.__dict__
    )


def read_record(annotation: Any, read: Read, read_own: Read, names: Mapping[str, Any]) -> RecordShape:
    """Return the record of a class, possibly generic; `names` are those in scope.

    `read_own` reads the type of a field that the class sets itself.
    """
    cls = get_origin(annotation) or annotation
    hints = _class_hints(annotation, cls, names)
    build, options = cls, {}
    if issubclass(cls, msgspec.Struct):
        fields, options = _struct_fields(cls, hints, read), _struct_options(cls)
    elif _is_typed_dict(cls):
        fields, build = _typed_dict_fields(cls, hints, read), dict
    elif _is_named_tuple(cls):
        fields, options = _tuple_fields(cls, hints, read), {"is_row": True}
    elif hasattr(cls, "__dataclass_fields__"):
        fields = _dataclass_fields(cls, hints, read, read_own)
    else:
        fields = _attrs_fields(cls, hints, read, read_own)
    description, documented = _documented(cls, tuple(fields))
    return RecordShape(annotation, _name_of(annotation), documented, build, description, **options)


def resolve(annotation: Any, globals_: Mapping[str, Any], locals_: Mapping[str, Any]) -> Any:
    """Evaluate an annotation; raise NameError for an unknown name."""
    if annotation is None or isinstance(annotation, type):
        return annotation
    holder = type("Holder", (), {"__annotations__": {"it": annotation}})  # only a class may have a ClassVar
    read = typing.get_type_hints(holder, dict(globals_), dict(locals_), include_extras=True)["it"]
    unread = list(_unread_texts(read))
    scope = {**globals_, **locals_} if unread else {}
    for name, value in scope.items():
        if name in unread or (type(value) is str and value in unread):
            alias = RecursiveAlias(name, value, globals_.get("__name__"))
            return resolve(annotation, globals_, {**locals_, name: alias})
    return read


def _unread_texts(annotation: Any) -> Iterator[str]:
    """Yield the forward references that Python leaves unevaluated: an alias inside itself."""
    if isinstance(annotation, typing.ForwardRef):
        yield annotation.__forward_arg__
    for argument in get_args(annotation):
        yield from _unread_texts(argument)


class RecursiveAlias:
    """An alias inside itself: `JSON` in `JSON = dict[str, "JSON"] | str`. It mimics TypeAliasType."""

    def __init__(self, name: str, value: Any, module: str | None) -> None:
        self.__name__, self.__value__, self.__module__ = name, value, module or ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecursiveAlias) and self.__value__ is other.__value__

    def __hash__(self) -> int:
        return hash(self.__name__)

    def __or__(self, other: Any) -> Any:
        return typing.Union[self, other]  # noqa: UP007  # not a type

    def __ror__(self, other: Any) -> Any:
        return typing.Union[other, self]  # noqa: UP007  # not a type


def names_of_module(name: str | None) -> Mapping[str, Any]:
    module = sys.modules.get(name or "")
    return {} if module is None else vars(module)


def _struct_options(cls: type[msgspec.Struct]) -> dict[str, Any]:
    config = cls.__struct_config__
    tag = config.tag if isinstance(config.tag, int) else str(config.tag)
    return {
        "is_row": config.array_like,
        "is_closed": config.forbid_unknown_fields,
        "tag": None if config.tag_field is None else (config.tag_field, tag),
        "omits_defaults": config.omit_defaults,
    }


def _struct_fields(cls: type[msgspec.Struct], hints: dict[str, Any], read: Read) -> Fields:
    """Read the fields without `msgspec.structs.fields`, which fails for names it cannot resolve."""
    names, defaults = cls.__struct_fields__, cls.__struct_defaults__
    padded = (NODEFAULT,) * (len(names) - len(defaults)) + defaults
    for name, wire_name, default in zip(names, cls.__struct_encode_fields__, padded, strict=True):
        factory = default.factory if type(default).__name__ == "Factory" else None
        known = UNSET if default is NODEFAULT or factory else default
        yield Field(wire_name, name, read(_without_unset(hints[name])), default is NODEFAULT, _known(known, factory))


def _without_unset(hint: Any) -> Any:
    """Remove UnsetType from a union: an UNSET field is absent in JSON."""
    if msgspec.UnsetType not in get_args(hint):
        return hint
    kept = tuple(member for member in get_args(hint) if member is not msgspec.UnsetType)
    return typing.Union[kept]  # noqa: UP007 - the members are known only here


def _typed_dict_fields(cls: Any, hints: dict[str, Any], read: Read) -> Fields:
    for name, hint in hints.items():
        yield Field(name, name, read(hint), _is_required(hint, name in cls.__required_keys__))


def _is_required(hint: Any, otherwise: bool) -> bool:
    """Read the evaluated marker, because `__required_keys__` is wrong for string annotations."""
    origin = get_origin(hint)
    marker = getattr(origin, "_name", None)
    if marker in {"Required", "NotRequired"}:
        return bool(marker == "Required")
    if origin is Annotated or marker == "ReadOnly":
        return _is_required(get_args(hint)[0], otherwise)
    return otherwise


def _tuple_fields(cls: Any, hints: dict[str, Any], read: Read) -> Fields:
    defaults = cls._field_defaults
    for name in cls._fields:
        yield Field(name, name, read(hints.get(name, Any)), name not in defaults, defaults.get(name, UNSET))


def _dataclass_fields(cls: Any, hints: dict[str, Any], read: Read, read_own: Read) -> Fields:
    import dataclasses

    for field in dataclasses.fields(cls):
        default = UNSET if field.default is dataclasses.MISSING else field.default
        factory = UNSET if field.default_factory is dataclasses.MISSING else field.default_factory
        required = default is UNSET and factory is UNSET and field.init
        is_public = not field.name.startswith("_")
        if field.init or is_public:
            shape, known = (read if field.init else read_own)(hints[field.name]), _known(default, factory)
            yield Field(field.name, field.name, shape, required, known, None, is_public, field.init)


def _attrs_fields(cls: Any, hints: dict[str, Any], read: Read, read_own: Read) -> Fields:
    import attr

    for field in attr.fields(cls):
        is_factory = isinstance(field.default, attr.Factory)  # type: ignore[arg-type]  # a class, typed as a function
        default = UNSET if field.default is attr.NOTHING or is_factory else field.default
        factory = field.default.factory if is_factory and not field.default.takes_self else UNSET
        required = field.default is attr.NOTHING and field.init
        is_public = not field.name.startswith("_")
        if field.init or is_public:
            shape = (read if field.init else read_own)(hints.get(field.name, field.type or Any))
            keyword, known = field.alias or field.name, _known(default, factory)
            yield Field(field.name, keyword, shape, required, known, None, is_public, field.init)


def _known(default: Any, factory: Any) -> Any:
    """Return the default if it is known without running the user's code."""
    return factory() if factory in _EMPTY_CONTAINERS else default


def _documented(cls: type, fields: tuple[Field, ...]) -> tuple[str | None, tuple[Field, ...]]:
    """Return the description of a class and its fields from its docstring, unless generated by Python."""
    text = cls.__dict__.get("__doc__")
    if not isinstance(text, str) or text.startswith(f"{cls.__name__}("):
        return None, fields
    documentation = parse_docstring(text)
    described = (replace(field, description=documentation.parameters.get(field.wire_name)) for field in fields)
    return documentation.text or None, tuple(described)


def _name_of(annotation: Any) -> str:
    """Return a name for `$defs`: `Box` for a class, `Box_int` for `Box[int]`."""
    origin = get_origin(annotation)
    if origin is None:
        return str(annotation.__name__)
    parts = [origin.__name__, *(getattr(argument, "__name__", str(argument)) for argument in get_args(annotation))]
    return re.sub(r"[^A-Za-z0-9_]+", "_", "_".join(parts)).strip("_")


def _is_typed_dict(cls: type) -> bool:
    return issubclass(cls, dict) and hasattr(cls, "__total__") and hasattr(cls, "__required_keys__")


def _is_named_tuple(cls: type) -> bool:
    return issubclass(cls, tuple) and hasattr(cls, "_fields")


def _class_hints(annotation: Any, cls: type, names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the evaluated annotations of a class and its bases, with type variables substituted."""
    bindings: dict[type, dict[Any, Any]] = {}
    _bind(cls, get_args(annotation), bindings)
    hints: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base.__module__ == "builtins":
            continue
        for name, hint in _own_hints(base, cls, names).items():
            hints[name] = _substitute(hint, bindings.get(base, {}))
    return hints


def _own_hints(base: type, cls: type, names: Mapping[str, Any]) -> dict[str, Any]:
    own = getattr(base, "__annotations__", {})  # since Python 3.10 not inherited
    globals_ = names_of_module(base.__module__)
    # A local class is not in its module's namespace but may refer to itself.
    parameters = {each.__name__: each for each in getattr(base, "__parameters__", ())}
    locals_ = {**names, **parameters, cls.__name__: cls, base.__name__: base, **vars(base)}
    return {name: resolve(hint, globals_, locals_) for name, hint in own.items()}


def _bind(cls: Any, arguments: tuple[Any, ...], bindings: dict[type, dict[Any, Any]]) -> None:
    """Bind type variables per class: a base may use the same variable differently."""
    variables = getattr(cls, "__parameters__", ())
    bindings[cls] = dict(zip(variables, arguments, strict=False))
    for base in getattr(cls, "__orig_bases__", ()):
        origin = get_origin(base)
        if isinstance(origin, type) and origin is not typing.Generic:
            _bind(origin, tuple(_substitute(argument, bindings[cls]) for argument in get_args(base)), bindings)


def _substitute(hint: Any, binding: dict[Any, Any]) -> Any:
    if isinstance(hint, TypeVar):
        return binding.get(hint, hint)
    variables = getattr(hint, "__parameters__", ())
    if not binding or not variables or isinstance(hint, type):
        return hint
    return hint[tuple(binding.get(variable, variable) for variable in variables)]
