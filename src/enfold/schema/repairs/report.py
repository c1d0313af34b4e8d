"""The report of a repair: changes and remaining mismatches, collapsed so that array siblings share one entry."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

from enfold.envelope import MISFITS, ResultWarning
from enfold.schema.json_pointer import escape
from enfold.schema.nodes.values import json_type

# A location inside a value: the location of its container and the key or position in it. None is the root.
Path: TypeAlias = "tuple[Path, Any] | None"

_MAX_ENTRIES: Final = 50
_MAX_NAME: Final = 200


class Entry(msgspec.Struct, gc=False):
    """One finding at a location, or at the same property of several objects in one array."""

    code: str
    path: Path
    old: Any = None
    new: Any = None
    count: int = 1  # including later objects in the same array


class Report:
    """Entries in order of occurrence. A discarded attempt removes its entries."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def add(self, code: str, path: Path, old: Any = None, new: Any = None) -> None:
        self.entries.append(Entry(code, path, old, new))

    def remove_after(self, length: int) -> list[Entry]:
        """Remove and return the entries after the first `length`."""
        taken = self.entries[length:]
        del self.entries[length:]
        return taken

    def warnings(self) -> tuple[ResultWarning, ...]:
        groups = _collapsed(self.entries)
        if len(groups) <= _MAX_ENTRIES:
            return tuple(map(_warning, groups))
        groups.sort(key=lambda group: group.first.code not in MISFITS)  # remaining mismatches first
        shown = tuple(map(_warning, groups[: _MAX_ENTRIES - 1]))
        return (*shown, ResultWarning("more", "", count=len(groups) - len(shown)))


def may_share(path: Path) -> bool:
    """Whether a location in one object of an array can represent all; a key `*` would read like every position."""
    if path is None or type(path[1]) is not str:
        return False
    while path is not None and path[1] != "*":
        path = path[0]
    return path is None


_POSITION: Final = object()  # replaces array positions; equal to no key


class _Group(msgspec.Struct):
    """Entries with the same code whose locations differ only in array positions; the first represents all."""

    first: Entry
    steps: list[Any]  # innermost first, with `_POSITION` for each position
    positions: list[int | None]  # innermost first; None where the entries differ
    count: int


def _collapsed(entries: list[Entry]) -> list[_Group]:
    groups: dict[Any, _Group] = {}
    siblings: dict[tuple[str, Any, int], _Group] = {}  # by code, key and the identity of their array's location
    for entry in entries:
        parent, key = entry.path or _ROOT
        array, position = parent or _ROOT
        place = (entry.code, key, id(array))
        group = siblings.get(place) if type(position) is int else None
        if group is None:
            group = _grouped(groups, entry)
            if type(position) is int and may_share(entry.path):
                siblings[place] = group
        elif group.count > 1 or group.positions[0] != position:
            group.count += entry.count
            group.positions[0] = None
    return list(groups.values())


_ROOT: Final = (None, None)


def _grouped(groups: dict[Any, _Group], entry: Entry) -> _Group:
    """Add an entry to its group."""
    path = entry.path
    steps: list[Any] = []
    positions: list[int | None] = []
    while path is not None:
        path, step = path
        if type(step) is int:
            positions.append(step)
            steps.append(_POSITION)
        else:
            steps.append(step)
    if entry.count > 1:
        positions[0] = None
    shape = (entry.code, *steps, len(groups)) if "*" in steps else (entry.code, *steps)
    group = groups.get(shape)
    if group is None:
        group = groups[shape] = _Group(entry, steps, positions, entry.count)
    elif group.count > 1 or group.positions != positions:  # otherwise a duplicate
        group.count += entry.count
        pairs = zip(group.positions, positions, strict=True)
        group.positions = [mine if mine == other else None for mine, other in pairs]
    return group


def _warning(group: _Group) -> ResultWarning:
    code, old, new = group.first.code, group.first.old, group.first.new
    size = 0 if code in _ABSENT else _size(old)
    shown = _beginning(old) if size > _MAX_NAME else old
    replaced = shown if new is old else _beginning(new) if _size(new) > _MAX_NAME else new
    return ResultWarning(code, _pointer(group), shown, replaced, json_type(old), size, group.count)


# Codes about properties that were absent.
_ABSENT: Final = frozenset({"default", "missing"})


def _pointer(group: _Group) -> str:
    positions = iter(group.positions)
    pointer = ""
    for step in group.steps:
        if type(step) is str:
            pointer = f"/{escape(step)}{pointer}"
        elif step is _POSITION:
            position = next(positions)
            pointer = f"/{'*' if position is None else position}{pointer}"
        else:  # a key outside JSON
            pointer = f"/{type(step).__name__}{pointer}"
    return pointer


def _size(value: Any) -> int:
    """Return the length of a value as JSON text."""
    return 4 if value is None else len(_text(value))


def _beginning(value: Any) -> str:
    return (value if type(value) is str else _text(value))[:_MAX_NAME]


def _text(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except Exception:  # noqa: BLE001  # values that cannot be encoded are reported too
        return f'"{value}"' if type(value) is str else type(value).__name__


def differences(old: Any, new: Any) -> tuple[ResultWarning, ...]:
    """Return a `cast` warning for each location where two values differ."""
    report = Report()
    # Iterative: values may be nested deeper than Python's stack.
    waiting: list[tuple[Any, Any, Path]] = [(old, new, None)]
    while waiting:
        was, now, path = waiting.pop()
        if was is now:
            continue
        if type(was) is dict and type(now) is dict:
            waiting += _pairs_of_objects(was, now, path, report)
        elif type(was) is list and type(now) is list and len(was) == len(now):
            waiting += [
                (mine, theirs, (path, index)) for index, (mine, theirs) in enumerate(zip(was, now, strict=True))
            ]
        elif type(was) is not type(now) or was != now:
            report.add("cast", path, was, now)
    return report.warnings()


def _pairs_of_objects(
    was: dict[str, Any], now: dict[str, Any], path: Path, report: Report
) -> list[tuple[Any, Any, Path]]:
    for key in was.keys() - now.keys():
        report.add("cast", (path, key), was[key])
    for key in now.keys() - was.keys():
        report.add("cast", (path, key), None, now[key])
    return [(was[key], now[key], (path, key)) for key in was.keys() & now.keys()]
