"""How a caller asks for provenance: `params._meta` of a request or an MCP call, an HTTP header, a command-line option."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from enfold.errors import invalid_argument

Mode: TypeAlias = Literal["minimal", "full"]
Unasked: TypeAlias = Literal["asked", "mutations", "all"]  # which calls are recorded: those that ask, or more

CAPTURE_HEADER: Final = "enfold-capture-provenance"
MAX_PARENTS: Final = 100


class CaptureOptions(msgspec.Struct, frozen=True):
    """What a caller wants recorded, and the runs this one depends on."""

    mode: Mode = "minimal"
    artifacts: bool = False
    parents: tuple[str, ...] = ()


def options_from_meta(meta: Mapping[str, Any] | None) -> CaptureOptions | None:
    """The options in a `_meta` object; None where provenance is not asked for."""
    if not meta or not _flag(meta, "capture_provenance"):
        return None
    return CaptureOptions(_mode(meta.get("provenance_mode", "minimal")), _flag(meta, "capture_artifacts"))


def options_from_mode(text: str | None) -> CaptureOptions | None:
    """The options that a header or a command-line option names: `minimal`, `full`, or None for nothing."""
    return None if not text else CaptureOptions(_mode(text.strip().lower()))


def options_from_call(wire: Any) -> CaptureOptions | None:
    """The options in a `call.requested` event, `{mode, parents}`, and those of a task, which may have `artifacts`."""
    if not isinstance(wire, Mapping):
        return None
    parents = wire.get("parents", [])
    if not isinstance(parents, list) or not all(isinstance(each, str) and 0 < len(each) <= 200 for each in parents):
        raise invalid_argument("provenance.parents", "constraint", "a list of run ids")
    return CaptureOptions(
        _mode(wire.get("mode", "minimal")), wire.get("artifacts") is True, tuple(parents[:MAX_PARENTS])
    )


def _flag(meta: Mapping[str, Any], name: str) -> bool:
    value = meta.get(name, False)
    if not isinstance(value, bool):
        raise invalid_argument(f"_meta.{name}", "constraint", "boolean")
    return value


def _mode(value: Any) -> Mode:
    if value not in ("minimal", "full"):
        raise invalid_argument("provenance_mode", "constraint", "minimal or full")
    mode: Mode = value
    return mode
