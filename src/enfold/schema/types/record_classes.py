"""Classes with fields read into records: dataclasses, TypedDict, NamedTuple, attrs and msgspec Structs."""

from __future__ import annotations

import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, UNSET
from msgspec.structs import replace

from enfold.schema.types.docstring import parse_docstring
from enfold.schema.types.shapes import Field, RecordShape, Shape

Read = Callable[[Any], Shape]
Fields = Iterator[Field]

_EMPTY_CONTAINERS: Final = (list, dict, set, frozenset, tuple)


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
    """Without `msgspec.structs.fields`, which needs types that it may be unable to find."""
    names, defaults = cls.__struct_fields__, cls.__struct_defaults__
    padded = (NODEFAULT,) * (len(names) - len(defaults)) + defaults
    for name, wire_name, default in zip(names, cls.__struct_encode_fields__, padded, strict=True):
        factory = default.factory if type(default).__name__ == "Factory" else None
        known = UNSET if default is NODEFAULT or factory else default
        yield Field(wire_name, name, read(_without_unset(hints[name])), default is NODEFAULT, _known(known, factory))


def _without_unset(hint: Any) -> Any:
    """An UNSET field is absent in JSON, so its marker is no type of a value."""
    if msgspec.UnsetType not in get_args(hint):
        return hint
    kept = tuple(member for member in get_args(hint) if member is not msgspec.UnsetType)
    return typing.Union[kept]  # noqa: UP007 - the members are known only here


def _typed_dict_fields(cls: Any, hints: dict[str, Any], read: Read) -> Fields:
    for name, hint in hints.items():
        yield Field(name, name, read(hint), _is_required(hint, name in cls.__required_keys__))


def _is_required(hint: Any, otherwise: bool) -> bool:
    """`__required_keys__` is wrong where annotations are text, so the evaluated marker has the last word."""
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
    """The default, if it is known without running the user's code."""
    return factory() if factory in _EMPTY_CONTAINERS else default


def _documented(cls: type, fields: tuple[Field, ...]) -> tuple[str | None, tuple[Field, ...]]:
    """The description of a class, and its fields with theirs, from its own docstring, unless Python wrote that."""
    text = cls.__dict__.get("__doc__")
    if not isinstance(text, str) or text.startswith(f"{cls.__name__}("):
        return None, fields
    documentation = parse_docstring(text)
    described = (replace(field, description=documentation.parameters.get(field.wire_name)) for field in fields)
    return documentation.text or None, tuple(described)


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
