"""How an envelope is written: sibling modules, each with `write`, `write_error` and `read`, imported when asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Final, Protocol, cast

from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError
from enfold.operation import OperationSpec

__all__ = ["FORMATS", "Format", "find_format"]

_NAMES: Final = ("result", "envelope", "mcp_envelope_v0_1", "tool_envelope_v1")


class Format(Protocol):
    """What each module of this folder offers."""

    def write(self, envelope: ResponseEnvelope[Any], operation: OperationSpec | None = None) -> Any:
        """The wire value of a result."""

    def write_error(self, error: CallError, operation_id: str) -> Any:
        """The wire value of a failure."""

    def read(self, wire: Any) -> ResponseEnvelope[Any]:
        """The envelope of a success; raises the CallError of a failure, FormatError for what is not this format."""


class _Formats(Mapping[str, Format]):
    """The formats by name; a module is imported when it is first taken."""

    def __getitem__(self, name: str) -> Format:
        if name not in _NAMES:
            raise KeyError(name)
        return cast("Format", import_module(f"enfold.formats.{name}"))

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)


FORMATS: Final[Mapping[str, Format]] = _Formats()


def find_format(name: str) -> Format:
    """The format a caller names; one that is not there is his mistake."""
    if name in FORMATS:
        return FORMATS[name]
    expected = f"one of {', '.join(FORMATS)}"
    details = {"argument": "format", "reason": "constraint", "expected": expected}
    raise CallError("VALIDATION_ERROR", f'There is no format "{name[:64]}": use {expected}', details)
