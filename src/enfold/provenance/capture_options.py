"""How a caller asks for provenance: `params._meta` of a request or an MCP call, an HTTP header, a command-line option."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from enfold.errors import CallError

__all__ = [
    "CAPTURE_HEADER",
    "META_FIELDS",
    "CaptureOptions",
    "Mode",
    "Unasked",
    "options_from_call",
    "options_from_meta",
    "options_from_mode",
]

Mode: TypeAlias = Literal["minimal", "full"]
Unasked: TypeAlias = Literal["asked", "mutations", "all"]  # which calls are recorded: those that ask, or more

CAPTURE_HEADER: Final = "enfold-capture-provenance"
META_FIELDS: Final = ("capture_provenance", "capture_artifacts", "provenance_mode")
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
    """The options in a `call.requested` event: `{mode, parents}`."""
    if not isinstance(wire, Mapping):
        return None
    parents = wire.get("parents", [])
    if not isinstance(parents, list) or not all(isinstance(each, str) and 0 < len(each) <= 200 for each in parents):
        raise _refused("provenance.parents", "a list of run ids")
    return CaptureOptions(_mode(wire.get("mode", "minimal")), parents=tuple(parents[:MAX_PARENTS]))


def _flag(meta: Mapping[str, Any], name: str) -> bool:
    value = meta.get(name, False)
    if not isinstance(value, bool):
        raise _refused(f"_meta.{name}", "boolean")
    return value


def _mode(value: Any) -> Mode:
    if value == "minimal":
        return "minimal"
    if value == "full":
        return "full"
    raise _refused("provenance_mode", "minimal or full")


def _refused(argument: str, expected: str) -> CallError:
    details = {"argument": argument, "reason": "constraint", "expected": expected}
    return CallError("VALIDATION_ERROR", f"{argument} must be {expected}", details)
