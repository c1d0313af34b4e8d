"""What was changed, and what still does not fit, in as few entries as will say it: array siblings share one."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

from enfold.envelope import ResultWarning
from enfold.schema.nodes.compare import json_type

__all__ = ["Entry", "Path", "Report"]

# A place inside a value: the place of its container, and the key or position in it. None is the root.
Path: TypeAlias = "tuple[Path, Any] | None"
# Code, place, old value, new value.
Entry: TypeAlias = tuple[str, Path, Any, Any]

_MOST_ENTRIES: Final = 50
_LONGEST: Final = 200


class Report:
    """Entries in the order they were made. An attempt that is given up takes its own back."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def add(self, code: str, path: Path, old: Any = None, new: Any = None) -> None:
        self.entries.append((code, path, old, new))

    def take_back(self, length: int) -> list[Entry]:
        """Forget the entries after the first `length`, and give them to the caller."""
        taken = self.entries[length:]
        del self.entries[length:]
        return taken

    def warnings(self) -> tuple[ResultWarning, ...]:
        groups = _collapsed(self.entries)
        if len(groups) <= _MOST_ENTRIES:
            return tuple(map(_warning, groups))
        shown = tuple(map(_warning, groups[: _MOST_ENTRIES - 1]))
        return (*shown, ResultWarning("more", "", count=len(groups) - len(shown)))


class _Position:
    """Stands where an array position was: no key is equal to it."""


_POSITION: Final = _Position()


class _Group(msgspec.Struct):
    """Entries of one code whose places differ in array positions alone; the first stands for all."""

    code: str
    words: tuple[Any, ...]  # from the inside out, with a sign for each position
    positions: list[int | None]  # from the inside out too; None where the entries differ
    old: Any
    new: Any
    count: int = 1


def _collapsed(entries: list[Entry]) -> list[_Group]:
    groups: dict[Any, _Group] = {}
    group: _Group | None = None  # of the entry before, if that is of a property of an object in an array
    code = ""
    array: Any = None
    key: Any = None
    position: Any = None
    for entry in entries:
        next_code, (parent, next_key) = entry[0], entry[1] or _ROOT
        next_array, next_position = parent or _ROOT
        # The same property of another object in the same array: nothing has to be compared.
        is_sibling = next_array is array and next_key == key and next_code == code and next_position != position
        if group is not None and is_sibling:
            group.count += 1
            group.positions[0] = None
        else:
            found = _grouped(groups, entry)
            group = found if type(next_position) is int and type(next_key) is str and next_key != "*" else None
        code, array, key, position = next_code, next_array, next_key, next_position
    return list(groups.values())


_ROOT: Final = (None, None)


def _grouped(groups: dict[Any, _Group], entry: Entry) -> _Group:
    """The group that an entry belongs to, with the entry counted."""
    code, path, old, new = entry
    words: list[Any] = []
    positions: list[int | None] = []
    while path is not None:
        path, step = path
        if type(step) is int:
            positions.append(step)
            words.append(_POSITION)
        else:
            words.append(step)
    # A key that is `*` would read like the sign for every position.
    shape = (code, *words, len(groups)) if "*" in words else (code, *words)
    group = groups.get(shape)
    if group is None:
        group = groups[shape] = _Group(code, tuple(words), positions, old, new)
    elif group.count > 1 or group.positions != positions:  # else the same is said twice of one place
        group.count += 1
        pairs = zip(group.positions, positions, strict=True)
        group.positions = [mine if mine == other else None for mine, other in pairs]
    return group


def _warning(group: _Group) -> ResultWarning:
    is_absent = group.code in {"default", "missing"}
    size = 0 if is_absent else _size(group.old)
    old = _cut(group.old, size)
    new = old if group.new is group.old else _cut(group.new, _size(group.new))
    return ResultWarning(group.code, _pointer(group), old, new, json_type(group.old), size, group.count)


def _pointer(group: _Group) -> str:
    positions = iter(group.positions)
    pointer = ""
    for word in group.words:
        pointer = f"/{_position(next(positions)) if word is _POSITION else _token(word)}{pointer}"
    return pointer


def _position(position: int | None) -> str:
    return "*" if position is None else str(position)


def _token(word: Any) -> str:
    if type(word) is not str:
        return type(word).__name__  # a key that JSON does not have
    return word.replace("~", "~0").replace("/", "~1") if "~" in word or "/" in word else word


def _size(value: Any) -> int:
    """The length of a value as JSON text."""
    return 4 if value is None else len(_text(value))


def _cut(value: Any, size: int) -> Any:
    """A value as it is if it is short, else the beginning of its text."""
    if size <= _LONGEST:
        return value
    return (value if type(value) is str else _text(value))[:_LONGEST]


def _text(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except Exception:  # noqa: BLE001  # whatever cannot be written still has a place in the report
        return f'"{value}"' if type(value) is str else type(value).__name__
