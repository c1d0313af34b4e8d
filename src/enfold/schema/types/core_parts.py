"""The parts of a pydantic-core schema: walked, changed, and found by their references."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

Definitions = dict[str, Any]


def definitions_of(core: Any) -> Definitions:
    """What the references of a whole schema refer to."""
    return {each["ref"]: each for each in core["definitions"]} if core.get("type") == "definitions" else {}


def with_parts(core: Any, change: Callable[[Any], Any]) -> Any:
    """A part of a schema with its own parts changed; the same object where none of them has."""
    if isinstance(core, list | tuple):
        return _same_or_new(core, type(core)(map(change, core)))
    if not isinstance(core, dict):
        return core
    return _same_or_new(core, {key: _part(key, part, change) for key, part in core.items()})


def _part(key: str, part: Any, change: Callable[[Any], Any]) -> Any:
    if key in {"fields", "choices"} and isinstance(part, dict):  # its keys are names of the user's
        return _same_or_new(part, {name: change(schema) for name, schema in part.items()})
    return part if key in _NOT_SCHEMAS else change(part)


_NOT_SCHEMAS: Final = {"metadata", "config", "default", "expected", "cls", "ref", "type"}


def _same_or_new(old: Any, new: Any) -> Any:
    parts = zip(old.values(), new.values(), strict=True) if isinstance(old, dict) else zip(old, new, strict=True)
    return old if all(one is other for one, other in parts) else new


def parts_inside(core: Any) -> list[dict[str, Any]]:
    """A schema and all schemas inside it; references are not followed."""
    found: list[dict[str, Any]] = []

    def look(part: Any) -> Any:
        if isinstance(part, dict):
            found.append(part)
        return with_parts(part, look)

    look(core)
    return found
