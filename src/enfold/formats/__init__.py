"""Wire formats of envelopes: sibling modules, each with `write`, `write_error` and `read`, imported on demand.

A module can declare more properties of its format for surfaces; `Format` collects them.
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

__all__ = ["DEFAULT_FORMAT", "FORMATS", "JSON", "Format", "Verbs", "find_format", "register_format"]

Schema: TypeAlias = dict[str, Any]

DEFAULT_FORMAT: Final = "result"
JSON: Final = "application/json"

_NAMES: Final = ("result", "envelope", "mcp_envelope_v0_1", "tool_envelope_v1", "annotated", "plain", "problem")


class Verbs(Protocol):
    """The interface of a format: a module or an object with three functions."""

    def write(self, envelope: ResponseEnvelope[Any], operation: OperationSpec | None = None) -> Any:
        """Return the wire value of a result."""

    def write_error(self, error: CallError, operation_id: str) -> Any:
        """Return the wire value of a failure."""

    def read(self, wire: Any) -> ResponseEnvelope[Any]:
        """Read the envelope of a success; raise the CallError of a failure, or FormatError for another format."""


class Format(msgspec.Struct, frozen=True):
    """A format with its name, its three functions, and its properties for surfaces."""

    name: str
    write: Callable[..., Any]
    write_error: Callable[[CallError, str], Any]
    read: Callable[..., ResponseEnvelope[Any]]  # takes the wire value, and its `shape` if the format has one
    success_schema: Callable[[OperationSpec], Schema] | None = None  # of the output of `write` for a valid result
    # How `write` wrote a result, where readers cannot see it; surfaces send it beside the result.
    shape: Callable[[ResponseEnvelope[Any], OperationSpec | None], str] | None = None
    error_schema: Schema = {}  # of the output of `write_error`
    error_media_type: str = JSON  # of failures over HTTP; with its own, `write_error` gets status and request id
    holds_errors: bool = True  # failed results are described in the body; otherwise HTTP responds with 502
    takes_structs: bool = False  # `write` does not inspect the data, which may then be a struct
    is_content: bool = False  # `write` returns the blocks of an MCP result: `{"content": [...], "isError": bool}`
    has_prefixes: bool = False  # surfaces prefix handlers' messages, for example with `Function error: `
    is_wrapper: bool = False  # named in lists of MCP tools, so that another Enfold can unwrap the data

    @property
    def has_structure(self) -> bool:
        """Whether the output is an object with a known schema, as MCP's structured content requires."""
        return self.success_schema is not None and not self.is_content


# What a module may declare: two functions, and constants in upper case.
_FUNCTIONS: Final = ("success_schema", "shape")
_FACTS: Final = (
    "ERROR_SCHEMA",
    "ERROR_MEDIA_TYPE",
    "HOLDS_ERRORS",
    "TAKES_STRUCTS",
    "IS_CONTENT",
    "HAS_PREFIXES",
    "IS_WRAPPER",
)


class _Formats(Mapping[str, Format]):
    """The formats by name; built-in modules are imported on first use."""

    def __init__(self) -> None:
        self.known: dict[str, Format | None] = dict.fromkeys(_NAMES)

    def add(self, found: Format) -> None:
        self.known[found.name] = found

    def __getitem__(self, name: str) -> Format:
        found = self.known[name]
        if found is None:
            found = self.known[name] = _read_format(name, import_module(f"enfold.formats.{name}"))
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.known)

    def __len__(self) -> int:
        return len(self.known)


def _read_format(name: str, module: Any) -> Format:
    facts = {fact.lower(): getattr(module, fact) for fact in _FACTS if hasattr(module, fact)}
    facts |= {function: getattr(module, function, None) for function in _FUNCTIONS}
    return Format(name, module.write, module.write_error, module.read, **facts)


FORMATS: Final = _Formats()


def find_format(name: str) -> Format:
    """Return the format of a name; raise VALIDATION_ERROR for an unknown name."""
    if name in FORMATS:
        return FORMATS[name]
    expected = f"one of {', '.join(FORMATS)}"
    raise invalid_argument("format", "constraint", expected, f'Unknown format "{name[:64]}": use {expected}')


def register_format(name: str, module: Verbs) -> Format:
    """Register a custom format for every surface: a module or an object with `write`, `write_error` and `read`."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        raise ValueError(f"{name!r} is not a valid format name: use 1 to 64 of A-Z a-z 0-9 _ -")
    if name in FORMATS:
        raise ValueError(f"The format {name} already exists: choose another name")
    missing = [verb for verb in ("write", "write_error", "read") if not callable(getattr(module, verb, None))]
    if missing:
        raise TypeError(f"The format {name} has no {missing[0]}: it needs write, write_error and read")
    found = _read_format(name, module)
    FORMATS.add(found)
    return found
