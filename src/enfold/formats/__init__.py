"""How an envelope is written: sibling modules, each with `write`, `write_error` and `read`, imported when asked for.

What surfaces have to know about a format stands in its module, too; `Format` holds all of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError, invalid_argument
from enfold.operations import OperationSpec

__all__ = ["DEFAULT_FORMAT", "FORMATS", "Format", "Verbs", "find_format", "register_format"]

Schema: TypeAlias = dict[str, Any]

DEFAULT_FORMAT: Final = "result"

_NAMES: Final = ("result", "envelope", "mcp_envelope_v0_1", "tool_envelope_v1", "annotated")


class Verbs(Protocol):
    """What a format has to offer: a module or an object with three functions."""

    def write(self, envelope: ResponseEnvelope[Any], operation: OperationSpec | None = None) -> Any:
        """The wire value of a result."""

    def write_error(self, error: CallError, operation_id: str) -> Any:
        """The wire value of a failure."""

    def read(self, wire: Any) -> ResponseEnvelope[Any]:
        """The envelope of a success; raises the CallError of a failure, FormatError for what is not this format."""


class Format(msgspec.Struct, frozen=True):
    """A format with its name, its three verbs, and what surfaces have to know about it."""

    name: str
    write: Callable[..., Any]
    write_error: Callable[[CallError, str], Any]
    read: Callable[[Any], ResponseEnvelope[Any]]
    success_schema: Callable[[OperationSpec], Schema] | None = None  # of what `write` gives for a result that fits
    error_schema: Schema = {}  # of what `write_error` gives
    holds_errors: bool = True  # a failed result is told in the body; without it HTTP answers 502
    takes_structs: bool = False  # `write` does not look into the data, which may then be a struct
    is_content: bool = False  # `write` gives the blocks of an MCP result: `{"content": [...], "isError": bool}`
    has_prefixes: bool = False  # surfaces put words such as `Function error: ` before what a handler said
    is_wrapper: bool = False  # lists of MCP tools name it, so that another Enfold takes its wrapper off the data

    @property
    def has_structure(self) -> bool:
        """Whether what it writes is an object whose schema is known, as MCP's structured content has to be."""
        return self.success_schema is not None and not self.is_content


# What a module may say of itself: `success_schema` is a function, the others are constants, in capitals.
_FACTS: Final = ("ERROR_SCHEMA", "HOLDS_ERRORS", "TAKES_STRUCTS", "IS_CONTENT", "HAS_PREFIXES", "IS_WRAPPER")


class _Formats(Mapping[str, Format]):
    """The formats by name; a module of ours is imported when it is first taken."""

    def __init__(self) -> None:
        self._known: dict[str, Format | None] = dict.fromkeys(_NAMES)

    def add(self, found: Format) -> None:
        self._known[found.name] = found

    def __getitem__(self, name: str) -> Format:
        found = self._known[name]
        if found is None:
            found = self._known[name] = _read_format(name, import_module(f"enfold.formats.{name}"))
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


def _read_format(name: str, module: Any) -> Format:
    facts = {fact.lower(): getattr(module, fact) for fact in _FACTS if hasattr(module, fact)}
    success_schema = getattr(module, "success_schema", None)
    return Format(name, module.write, module.write_error, module.read, success_schema, **facts)


_formats: Final = _Formats()
FORMATS: Final[Mapping[str, Format]] = _formats


def find_format(name: str) -> Format:
    """The format of a name; a name that no format has is a VALIDATION_ERROR."""
    if name in FORMATS:
        return FORMATS[name]
    expected = f"one of {', '.join(FORMATS)}"
    raise invalid_argument("format", "constraint", expected, f'There is no format "{name[:64]}": use {expected}')


def register_format(name: str, module: Verbs) -> Format:
    """Add a format of one's own: a module or an object with `write`, `write_error` and `read`; every surface knows it then."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        raise ValueError(f"{name!r} is not a legal name of a format: 1 to 64 of A-Z a-z 0-9 _ -")
    if name in FORMATS:
        raise ValueError(f"There is a format {name} already: choose another name")
    missing = [verb for verb in ("write", "write_error", "read") if not callable(getattr(module, verb, None))]
    if missing:
        raise TypeError(f"The format {name} has no {missing[0]}: it needs write, write_error and read")
    found = _read_format(name, module)
    _formats.add(found)
    return found
