"""Plain JSON data: recognizes it, and converts Python objects to it."""

from __future__ import annotations

import datetime as dt
import enum
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from decimal import Decimal
from functools import lru_cache
from types import CoroutineType
from typing import Any, Final, get_args
from uuid import UUID

import msgspec

from enfold.envelope import (
    HTTPResponseMeta,
    LocalResponseMeta,
    MCPResponseMeta,
    ResponseEnvelope,
    ResultWarning,
    to_wire,
)
from enfold.envelope.content import ContentBlock
from enfold.errors import CallError, printable, sentence_of, writable
from enfold.schema.json_pointer import escape

_MAX_REASON: Final = 300  # characters of a message from a user's class
DEEPEST: Final = 256  # nesting levels of a result
_DEEPEST_LENIENTLY: Final = 8  # nesting levels of a value that is not JSON serializable as a whole

_METAS: Final = (LocalResponseMeta, HTTPResponseMeta, MCPResponseMeta)
_NATIVE_TEXT: Final = frozenset(
    {bytes, bytearray, memoryview, Decimal, UUID, dt.datetime, dt.date, dt.time, dt.timedelta}
)
_SAME_IN_MSGSPEC: Final = _NATIVE_TEXT | {str, int, float, bool, type(None), msgspec.UnsetType}
# Types whose wire form differs from their fields.
_WITH_WIRE_FORM: Final = (ResponseEnvelope, *_METAS, ResultWarning, *get_args(ContentBlock))


def is_plain(value: Any) -> bool:
    """Whether a value consists only of the exact builtin JSON types, with text keys and finite numbers."""
    try:
        return _is_plain(value)
    except RecursionError:  # too deep to be written as JSON, or a cycle
        return False


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return True
    if kind is dict:
        return _has_plain_items(value)
    if kind is list:
        return all(map(_is_plain, value))
    return kind is float and value - value == 0  # infinity and NaN differ from themselves


def _has_plain_items(value: dict[Any, Any]) -> bool:
    for key in value:
        if type(key) is not str:
            return False
    return all(map(_is_plain, value.values()))


def to_plain(value: Any, path: str = "") -> Any:
    """Convert a result to JSON data; plain data is returned as the same object.

    Raises CallError with the JSON Pointer of a value that is not JSON serializable, below `path`.
    """
    if is_plain(value):
        return value
    fast = _converted_by_msgspec(value)
    return fast if is_plain(fast) else _Walk().to_plain(value, path)


def _converted_by_msgspec(value: Any) -> Any:
    """Convert with msgspec if possible, otherwise return the value; the result may contain NaN."""
    try:
        return msgspec.to_builtins(value) if is_for_msgspec(value) else value
    except Exception:  # noqa: BLE001 - users' classes may raise anything; the walk finds the location
        return value


def is_for_msgspec(value: Any) -> bool:
    """Whether msgspec converts a value like `to_plain`: no envelopes inside, no class-level defaults, string keys."""
    kind: Any = type(value)
    if kind in _SAME_IN_MSGSPEC:
        return kind is not Decimal or is_finite(value)
    if kind is list:
        return all(map(is_for_msgspec, value))
    if kind is dict:
        return all(type(key) is str for key in value) and all(map(is_for_msgspec, value.values()))
    names = _names_for_msgspec(kind)
    return names is not None and all(is_for_msgspec(getattr(value, name)) for name in names) and _has_all(value, names)


@lru_cache(maxsize=512)
def _names_for_msgspec(kind: type) -> tuple[str, ...] | None:
    """Return the fields of a Struct or dataclass that msgspec can convert; None for other classes."""
    if issubclass(kind, enum.Enum):
        return ("value",)
    if issubclass(kind, msgspec.Struct):
        return None if issubclass(kind, _WITH_WIRE_FORM) else kind.__struct_fields__
    if hasattr(kind, "__dataclass_fields__") and not hasattr(kind, "__pydantic_serializer__"):
        return tuple(_field_names(kind) or ())
    return None


def _has_all(value: Any, names: tuple[str, ...]) -> bool:
    """Whether all fields are set on the instance: msgspec ignores class-level defaults."""
    own = getattr(value, "__dict__", None)
    return own is None or isinstance(value, msgspec.Struct | enum.Enum) or all(name in own for name in names)


class _Walk:
    """One recursive conversion that tracks its location and the enclosing containers."""

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open: set[int] = set()

    def to_plain(self, value: Any, path: str) -> Any:
        leaf = _leaf(value, path)
        if leaf is not NotImplemented:
            return leaf
        if id(value) in self.open:
            raise _not_json(path, "it contains itself")
        if len(self.open) >= DEEPEST:
            raise _not_json(path, "it is nested too deeply")
        self.open.add(id(value))
        plain = self._container(value, path)
        self.open.discard(id(value))
        return plain

    def _container(self, value: Any, path: str) -> Any:
        if isinstance(value, enum.Enum):
            return self.to_plain(value.value, path)
        if isinstance(value, _WITH_WIRE_FORM):
            return self.to_plain(_wire_form(value, path), path)
        if isinstance(value, Mapping):
            return self._mapping(value, path)
        is_array = isinstance(value, msgspec.Struct) and value.__struct_config__.array_like
        if is_array or isinstance(value, Sequence | AbstractSet):
            return [self.to_plain(item, _below(path, place)) for place, item in enumerate(_items(value))]
        if hasattr(type(value), "__pydantic_serializer__"):
            return self.to_plain(self._dump(value, path), path)
        return {name: self.to_plain(item, _below(path, name)) for name, item in _fields(value, path)}

    def _dump(self, value: Any, path: str) -> Any:
        from enfold.schema.types.pydantic_schemas import dump

        try:
            return dump(value)
        except Exception as error:
            for name, item in getattr(value, "__dict__", {}).items():
                self.to_plain(item, _below(path, name))  # raises with the location if the field is the cause
            raise _not_json(path, str(error)) from error

    def _mapping(self, value: Mapping[Any, Any], path: str) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for name, item in value.items():
            key = _key(name, path)
            if key in plain:
                raise _not_json(_below(path, key), "two keys have the same text")
            plain[key] = self.to_plain(item, _below(path, key))
        return plain


def _leaf(value: Any, path: str) -> Any:
    """Return the JSON value of a scalar; NotImplemented for anything else."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        return NotImplemented
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return _finite(value, path)
    if not is_finite(value):
        raise _not_json(path, f"{value} is not a JSON number")
    return _text(value)


def _finite(value: float, path: str) -> float:
    if not math.isfinite(value):
        raise _not_json(path, f"{float(value)} is not a JSON number")
    return float(value)


def _text(value: Any) -> Any:
    """Return the text of a date, UUID, bytes, path and the like; NotImplemented for anything else."""
    if type(value) in _NATIVE_TEXT:
        return msgspec.to_builtins(value)
    return str(value) if is_text_like(value) else NotImplemented


def is_finite(value: Any) -> bool:
    """Whether a value is not a Decimal, or a finite one."""
    return not isinstance(value, Decimal) or value.is_finite()


def is_text_like(value: Any) -> bool:
    """Whether a value is a path or an IP address, represented by its text."""
    return type(value).__module__.split(".")[0] in _TEXT_MODULES


_TEXT_MODULES: Final = frozenset({"pathlib", "ipaddress"})


def _wire_form(value: Any, path: str) -> Any:
    """Return the wire form of an envelope or a part of one, without private headers and warning details."""
    try:
        if isinstance(value, ResponseEnvelope):
            return to_wire(value)
        if isinstance(value, _METAS):
            return to_wire(ResponseEnvelope(None, value))["meta"]
        return value.to_wire()
    except Exception as error:
        raise _not_json(path, str(error)) from error


def _key(name: Any, path: str) -> str:
    """Return a key as text, if its JSON value is a string or a number."""
    if type(name) is str:
        return name
    key = _Walk().to_plain(name, _below(path, name if isinstance(name, str) else "?"))
    if isinstance(key, str):
        return key
    if _has_too_many_digits(key):
        raise _not_json(path, _FLAWS[_has_too_many_digits])
    if isinstance(key, int | float) and not isinstance(key, bool):
        return str(key)
    raise _not_json(path, f"a key of type {type(name).__name__} is not a string")


def _items(value: Any) -> Iterator[Any]:
    if not isinstance(value, msgspec.Struct):
        yield from value
        return
    if value.__struct_config__.tag_field is not None:
        yield value.__struct_config__.tag
    yield from (getattr(value, name) for name in value.__struct_fields__)


def _fields(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a Struct, dataclass or attrs class by their JSON names."""
    if isinstance(value, msgspec.Struct):
        yield from _struct_fields(value)
        return
    names = _field_names(type(value))
    if names is None:
        raise _not_json(path, _reason_not_json(value))
    for name in names:
        item = getattr(value, name, msgspec.UNSET)
        if item is not msgspec.UNSET:
            yield name, item


def _field_names(kind: type) -> list[str] | None:
    """Return the public field names of a class (private ones are not written, as in msgspec); None without fields."""
    if hasattr(kind, "__dataclass_fields__"):
        import dataclasses

        return [field.name for field in dataclasses.fields(kind) if not field.name.startswith("_")]
    if hasattr(kind, "__attrs_attrs__"):
        return [field.name for field in kind.__attrs_attrs__ if not field.name.startswith("_")]
    return None


def _reason_not_json(value: Any) -> str:
    kind, name = type(value).__qualname__, getattr(value, "__qualname__", "")
    named = f"{kind} {name}".rstrip()
    if hasattr(value, "__await__"):
        if isinstance(value, CoroutineType):
            value.close()  # avoid Python's "never awaited" warning
        return f"{named} was not awaited: add `await`"
    if hasattr(value, "__next__") or hasattr(value, "__anext__"):
        return f"{named} is an iterator: collect its items in a list, or register a subscription"
    return f"{named} is not JSON serializable: return a dict, a list, a dataclass or a model"


def _struct_fields(value: msgspec.Struct) -> Iterator[tuple[str, Any]]:
    config = value.__struct_config__
    if config.tag_field is not None:
        yield config.tag_field, config.tag
    names, wire_names, defaults = value.__struct_fields__, value.__struct_encode_fields__, value.__struct_defaults__
    padded = (msgspec.NODEFAULT,) * (len(names) - len(defaults)) + defaults
    for name, wire_name, default in zip(names, wire_names, padded, strict=True):
        item = getattr(value, name)
        is_left_out = config.omit_defaults and _is_default(item, default)
        if item is not msgspec.UNSET and not is_left_out:
            yield wire_name, item


def _is_default(item: Any, default: Any) -> bool:
    """Whether msgspec omits a value as a default: the same object, or an empty container from a factory."""
    return item is default or (type(item) is getattr(default, "factory", None) and not item)


def plain_details(details: Any) -> dict[str, Any]:
    """Return the details of an error as JSON data, whatever the handler passed."""
    plain = to_plain_leniently(details)
    return plain if isinstance(plain, dict) else {"details": plain}


def to_plain_leniently(value: Any, above: tuple[int, ...] = ()) -> Any:
    """Convert a value to plain data with text for parts that are not JSON serializable; `above` are enclosing ids."""
    with suppress(CallError, RecursionError):
        plain = to_plain(value)
        if all(_find_flaw(plain, is_flaw) is None for is_flaw in _FLAWS):
            return plain
    if id(value) in above or len(above) >= _DEEPEST_LENIENTLY:
        return "…"
    within = (*above, id(value))
    if isinstance(value, Mapping):
        return {writable(sentence_of(name)): to_plain_leniently(item, within) for name, item in value.items()}
    if isinstance(value, list | tuple | AbstractSet):
        return [to_plain_leniently(item, within) for item in value]
    return writable(sentence_of(value)) if _has_custom_text(value) else type(value).__name__


def _has_custom_text(value: Any) -> bool:
    """Whether a class defines `__str__` or `__repr__`."""
    kind: Any = type(value)
    return kind.__str__ is not object.__str__ or kind.__repr__ is not object.__repr__


def unwritable(data: Any, error: Exception) -> CallError:
    """Return the error for plain data that cannot be encoded, with the location where it can be found."""
    for is_flaw, reason in _FLAWS.items():
        with suppress(RecursionError):
            steps = _find_flaw(data, is_flaw)
            if steps is not None:
                return _not_json("".join(_below("", step) for step in steps), reason)
    return CallError("EXECUTION_ERROR", f"failed to marshal response: {error}")


def find_unpaired_surrogate(data: Any) -> list[str | int] | None:
    """Return the path to text with an unpaired surrogate, or to the object that has it as a key."""
    return _find_flaw(data, _has_unpaired_surrogate)


def _find_flaw(data: Any, is_flaw: Callable[[Any], bool]) -> list[str | int] | None:
    if is_flaw(data):
        return []
    parts = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list | tuple) else ()
    for step, part in parts:
        if is_flaw(step):
            return []
        steps = _find_flaw(part, is_flaw)
        if steps is not None:
            return [step, *steps]
    return None


def _has_unpaired_surrogate(data: Any) -> bool:
    return isinstance(data, str) and not data.isascii() and data.encode("utf-8", "ignore").decode() != data


def _has_too_many_digits(data: Any) -> bool:
    """Whether an integer exceeds Python's limit for decimal conversion."""
    if not isinstance(data, int) or data.bit_length() <= _BITS_ALWAYS_WRITTEN:
        return False
    try:
        return not str(data)
    except ValueError:
        return True


_BITS_ALWAYS_WRITTEN: Final = 2048  # Python's digit limit is at least 640
_FLAWS: Final = {
    _has_unpaired_surrogate: "the text contains an unpaired surrogate",
    _has_too_many_digits: "the number has too many digits",
}


def _below(path: str, key: Any) -> str:
    return f"{path}/{escape(str(key))}"


def _not_json(path: str, reason: str) -> CallError:
    """Return the error; the reason may come from a user's class and is hidden where exceptions are."""
    sentence = f"failed to marshal response: {path or '/'}"
    shown = printable(reason)[:_MAX_REASON]
    error = CallError("EXECUTION_ERROR", f"{sentence}: {shown}", {"path": path, "reason": reason})
    error.hidden = sentence
    return error
