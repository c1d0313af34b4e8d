"""Classes with fields read into records: dataclasses, TypedDict, NamedTuple, attrs and msgspec Structs."""

from __future__ import annotations

import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, UNSET

from enfold.schema.types.docstring import parse_docstring
from enfold.schema.types.shapes import Field, RecordShape, Shape

Read = Callable[[Any], Shape]

_EMPTY_CONTAINERS: Final = (list, dict, set, frozenset, tuple)


class StructField:
    """One field of a msgspec Struct; `default` is UNSET where none is known without running the user's code."""

    __slots__ = ("default", "name", "required", "wire_name")

    def __init__(self, name: str, wire_name: str, default: Any) -> None:
        self.name = name
        self.wire_name = wire_name
        self.required = default is NODEFAULT
        factory = getattr(default, "factory", None) if type(default).__name__ == "Factory" else None
        self.default = UNSET if self.required else _known(UNSET if factory else default, factory)


def is_record(cls: Any) -> bool:
    """Whether the class has fields that we can read; a pydantic class is left to pydantic."""
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
    """The record of a class, or of a generic class with its arguments; `names` are those of the scope it is used in.

    `read_own` reads the type of a field that the class sets itself.
    """
    cls = get_origin(annotation) or annotation
    hints = _class_hints(annotation, cls, names)
    if issubclass(cls, msgspec.Struct):
        record = _read_struct(annotation, cls, hints, read)
    elif _is_typed_dict(cls):
        record = RecordShape(annotation, _name_of(annotation), _typed_dict_fields(cls, hints, read), dict)
    elif _is_named_tuple(cls):
        record = RecordShape(annotation, _name_of(annotation), _tuple_fields(cls, hints, read), cls, is_row=True)
    elif hasattr(cls, "__dataclass_fields__"):
        record = RecordShape(annotation, _name_of(annotation), _dataclass_fields(cls, hints, read, read_own), cls)
    else:
        record = RecordShape(annotation, _name_of(annotation), _attrs_fields(cls, hints, read, read_own), cls)
    return _with_documentation(record, cls)


def resolve(annotation: Any, globals_: Mapping[str, Any], locals_: Mapping[str, Any]) -> Any:
    """The annotation with its text evaluated; a name that cannot be found is a NameError."""
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
    """What is left as text: Python does not read an alias inside itself."""
    if isinstance(annotation, typing.ForwardRef):
        yield annotation.__forward_arg__
    for argument in get_args(annotation):
        yield from _unread_texts(argument)


class RecursiveAlias:
    """What stands for an alias inside itself: `JSON` in `JSON = dict[str, "JSON"] | str`. It looks like a TypeAliasType."""

    def __init__(self, name: str, value: Any, module: str | None) -> None:
        self.__name__, self.__value__, self.__module__ = name, value, module or ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecursiveAlias) and self.__value__ is other.__value__

    def __hash__(self) -> int:
        return hash(self.__name__)

    def __or__(self, other: Any) -> Any:
        return typing.Union[self, other]  # noqa: UP007  # it is no type

    def __ror__(self, other: Any) -> Any:
        return typing.Union[other, self]  # noqa: UP007  # it is no type


def names_of_module(name: str | None) -> Mapping[str, Any]:
    module = sys.modules.get(name or "")
    return {} if module is None else vars(module)


def _read_struct(annotation: Any, cls: type[msgspec.Struct], hints: dict[str, Any], read: Read) -> RecordShape:
    config = cls.__struct_config__
    fields = tuple(_struct_field(field, hints[field.name], read) for field in struct_fields(cls))
    return RecordShape(
        annotation,
        _name_of(annotation),
        fields,
        cls,
        is_row=config.array_like,
        is_closed=config.forbid_unknown_fields,
        tag=None if config.tag_field is None else (config.tag_field, _tag(config.tag)),
        omits_defaults=config.omit_defaults,
    )


def struct_fields(cls: type[msgspec.Struct]) -> list[StructField]:
    """What msgspec knows of a struct's fields, without the types: those it may be unable to find."""
    names, defaults = cls.__struct_fields__, cls.__struct_defaults__
    padded = (NODEFAULT,) * (len(names) - len(defaults)) + defaults
    return [StructField(*each) for each in zip(names, cls.__struct_encode_fields__, padded, strict=True)]


def _tag(tag: Any) -> str | int:
    return tag if isinstance(tag, int) else str(tag)


def _struct_field(field: StructField, hint: Any, read: Read) -> Field:
    return Field(field.wire_name, field.name, read(_without_unset(hint)), field.required, field.default)


def _without_unset(hint: Any) -> Any:
    """An UNSET field is absent in JSON, so its marker is no type of a value."""
    if msgspec.UnsetType not in get_args(hint):
        return hint
    kept = tuple(member for member in get_args(hint) if member is not msgspec.UnsetType)
    return typing.Union[kept]  # noqa: UP007 - the members are known only here


def _typed_dict_fields(cls: Any, hints: dict[str, Any], read: Read) -> tuple[Field, ...]:
    return tuple(
        Field(name, name, read(hint), _is_required(hint, name in cls.__required_keys__)) for name, hint in hints.items()
    )


def _is_required(hint: Any, otherwise: bool) -> bool:
    """`__required_keys__` is wrong where annotations are text, so the evaluated marker has the last word."""
    origin = get_origin(hint)
    marker = getattr(origin, "_name", None)
    if marker in {"Required", "NotRequired"}:
        return bool(marker == "Required")
    if origin is Annotated or marker == "ReadOnly":
        return _is_required(get_args(hint)[0], otherwise)
    return otherwise


def _tuple_fields(cls: Any, hints: dict[str, Any], read: Read) -> tuple[Field, ...]:
    defaults = cls._field_defaults
    return tuple(
        Field(name, name, read(hints.get(name, Any)), name not in defaults, defaults.get(name, UNSET))
        for name in cls._fields
    )


def _dataclass_fields(cls: Any, hints: dict[str, Any], read: Read, read_own: Read) -> tuple[Field, ...]:
    import dataclasses

    fields = []
    for field in dataclasses.fields(cls):
        default = UNSET if field.default is dataclasses.MISSING else field.default
        factory = UNSET if field.default_factory is dataclasses.MISSING else field.default_factory
        required = default is UNSET and factory is UNSET
        is_public = _is_public(field.name)
        if field.init or is_public:
            shape, known = (read if field.init else read_own)(hints[field.name]), _known(default, factory)
            fields.append(
                Field(field.name, field.name, shape, required and field.init, known, None, is_public, field.init)
            )
    return tuple(fields)


def _attrs_fields(cls: Any, hints: dict[str, Any], read: Read, read_own: Read) -> tuple[Field, ...]:
    import attr

    fields = []
    for field in attr.fields(cls):
        is_factory = isinstance(field.default, attr.Factory)  # type: ignore[arg-type]  # a class, typed as a function
        default = UNSET if field.default is attr.NOTHING or is_factory else field.default
        factory = field.default.factory if is_factory and not field.default.takes_self else UNSET
        is_public = _is_public(field.name)
        if field.init or is_public:
            shape = (read if field.init else read_own)(hints.get(field.name, field.type or Any))
            required = field.default is attr.NOTHING and field.init
            keyword, known = field.alias or field.name, _known(default, factory)
            fields.append(Field(field.name, keyword, shape, required, known, None, is_public, field.init))
    return tuple(fields)


def _is_public(name: str) -> bool:
    return not name.startswith("_")


def _known(default: Any, factory: Any) -> Any:
    """The default, if it is known without running the user's code."""
    return factory() if factory in _EMPTY_CONTAINERS else default


def _with_documentation(record: RecordShape, cls: type) -> RecordShape:
    """Descriptions of the class and its fields from its own docstring, unless Python wrote that docstring."""
    text = cls.__dict__.get("__doc__")
    if not isinstance(text, str) or text.startswith(f"{cls.__name__}("):
        return record
    documentation = parse_docstring(text)
    fields = tuple(
        msgspec.structs.replace(field, description=documentation.parameters.get(field.wire_name))
        for field in record.fields
    )
    return msgspec.structs.replace(record, description=documentation.text or None, fields=fields)


def _name_of(annotation: Any) -> str:
    """A name for `$defs`: `Box` for a class, `Box_int` for `Box[int]`."""
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
    """The annotations of a class and its bases, evaluated, with type variables replaced by their arguments."""
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
    own = getattr(base, "__annotations__", {})  # the class's own: Python gives each class its own since 3.10
    globals_ = names_of_module(base.__module__)
    # A class made inside a function is not among its module's names, yet it may speak of itself.
    parameters = {each.__name__: each for each in getattr(base, "__parameters__", ())}
    locals_ = {**names, **parameters, cls.__name__: cls, base.__name__: base, **vars(base)}
    return {name: resolve(hint, globals_, locals_) for name, hint in own.items()}


def _bind(cls: Any, arguments: tuple[Any, ...], bindings: dict[type, dict[Any, Any]]) -> None:
    """What each type variable stands for, class by class: a base may use the same variable for another thing."""
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
