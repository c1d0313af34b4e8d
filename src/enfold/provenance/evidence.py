"""Evidence: anchors that lead from a field of the output to a place in an artifact. Reading, making, checking them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET

from enfold.errors import FormatError
from enfold.json_pointer import follow
from enfold.provenance.records import EVIDENCE_VERSION, Evidence

JSON_POINTER_METHOD: Final = "engine.extract.evidence.json_pointer"
TEXT_LINES_METHOD: Final = "engine.extract.evidence.text_lines"

_POINTER: Final = re.compile(r"(?:/(?:[^~/]|~[01])*)*\Z", re.DOTALL)
_SOURCE: Final = re.compile(
    r"artifact:(?P<id>.+?)(?:#json:(?P<pointer>/.*)|#text:line:(?P<start>[0-9]+)(?:-(?P<end>[0-9]+))?)?\Z", re.DOTALL
)


class Anchor(msgspec.Struct, frozen=True):
    """A place in an artifact: by JSON Pointer, by lines (counted from 1), or all of it."""

    artifact_id: str
    pointer: str | None = None
    lines: tuple[int, int] | None = None


def read_anchor(source: str) -> Anchor:
    """The place a source names: `artifact:<id>#json:/…`, `artifact:<id>#text:line:<start>[-<end>]`, `artifact:<id>`."""
    found = _SOURCE.match(source)
    if found is None or "#json:" in found["id"] or "#text:" in found["id"]:
        raise FormatError(f"{source!r} is not an anchor: artifact:<id>#json:/… or artifact:<id>#text:line:<n>")
    if found["pointer"] is not None:
        return Anchor(found["id"], pointer=_checked_pointer(found["pointer"]))
    if found["start"] is None:
        return Anchor(found["id"])
    start, end = int(found["start"]), int(found["end"] or found["start"])
    if not 1 <= start <= end:
        raise FormatError(f"{start}-{end} is not a range of lines: they are counted from 1")
    return Anchor(found["id"], lines=(start, end))


def _checked_pointer(pointer: str) -> str:
    """The same text; FormatError where it is no JSON Pointer of RFC 6901."""
    if not _POINTER.match(pointer):
        raise FormatError(f"{pointer!r} is not a JSON Pointer")
    return pointer


# --- making -------------------------------------------------------------------------------------------------------


def json_pointer_evidence(
    artifact_id: str, content: Any, fields: Mapping[str, str], method: str | None = None
) -> tuple[Evidence, ...]:
    """Anchors for output fields, each supported by the place its pointer names; a list supports item by item.

    A pointer that leads nowhere in the content gives no evidence.
    """
    return tuple(
        _evidence(field, f"artifact:{artifact_id}#json:{place}", method)
        for name, pointer in fields.items()
        for field, place in _places(content, name, pointer)
    )


def _places(content: Any, field: str, pointer: str) -> list[tuple[str, str]]:
    try:
        found = follow(content, _checked_pointer(pointer))
    except LookupError:
        return []
    if isinstance(found, list | tuple):
        return [(f"{field}[{index}]", f"{pointer}/{index}") for index in range(len(found))]
    return [(field, pointer)]


def text_line_evidence(
    artifact_id: str, text: str, fields: Mapping[str, int | tuple[int, int]], method: str | None = None
) -> tuple[Evidence, ...]:
    """Anchors for output fields, each supported by a line or a range of lines; lines that are not there give none."""
    count = len(text.splitlines())
    ranges = {field: (lines, lines) if isinstance(lines, int) else lines for field, lines in fields.items()}
    return tuple(
        _evidence(field, f"artifact:{artifact_id}#text:line:{start}{'' if start == end else f'-{end}'}", method)
        for field, (start, end) in ranges.items()
        if 1 <= start <= end <= count
    )


def coerce_evidence(items: Iterable[Any]) -> tuple[Evidence, ...]:
    """What a tool gave as evidence, as far as it can be read as evidence.v0.1; too long a text is cut where it may be."""
    found = []
    for item in items:
        if not isinstance(item, Mapping):
            continue
        field, source, note = item.get("field"), item.get("source"), item.get("note")
        if isinstance(field, str) and isinstance(source, str) and 0 < len(field) <= 200 and 0 < len(source) <= 1000:
            kept = note[:400] if isinstance(note, str) else UNSET
            found.append(Evidence(schema_version=EVIDENCE_VERSION, field=field, source=source, note=kept))
    return tuple(found)


def _evidence(field: str, source: str, method: str | None) -> Evidence:
    return Evidence(
        schema_version=EVIDENCE_VERSION, field=field, source=source, method=UNSET if method is None else method
    )


# --- checking -----------------------------------------------------------------------------------------------------


def anchor_fault(source: str, artifact_ids: Iterable[str], contents: Mapping[str, Any] | None = None) -> str | None:
    """What is wrong with an anchor: its form, an artifact nobody registered, or a place its content does not have."""
    try:
        anchor = read_anchor(source)
    except FormatError as error:
        return str(error)
    if anchor.artifact_id not in artifact_ids:
        return f"{source!r} names an artifact the record does not have"
    if contents is None or anchor.artifact_id not in contents:
        return None
    return None if _is_there(anchor, contents[anchor.artifact_id]) else f"{source!r} leads nowhere in its artifact"


def _is_there(anchor: Anchor, content: Any) -> bool:
    if anchor.lines is not None:
        return isinstance(content, str) and anchor.lines[1] <= len(content.splitlines())
    if anchor.pointer is None:
        return True
    try:
        follow(content, anchor.pointer)
    except LookupError:
        return False
    return True
