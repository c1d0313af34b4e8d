"""A selection applied to values: compiled once, then as quick as building the smaller value by hand. Pure functions.

A list is taken item by item. What is neither a list nor an object stays as it is, and a name that is not there is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

from enfold.selection.grammar import EVERY, Fields

__all__ = ["Select", "compile_fields", "count_left_out"]

Select: TypeAlias = Callable[[Any], Any]

_DEEPEST_WRITTEN: Final = 3  # levels of objects that one expression builds


def compile_fields(fields: Fields) -> Select:
    """The function that takes from a value what is selected."""
    return _compiled(fields, {})


def _compiled(fields: Fields, known: dict[int, Select]) -> Select:
    """The same, each part of a selection once: what contains it needs it, too."""
    found = known.get(id(fields))
    if found is None:
        parts = {name: None if inner is None else _compiled(inner, known) for name, inner in fields.items()}
        found = known[id(fields)] = _of_every(parts) if EVERY in parts else _of_names(parts, fields, known)
    return found


def count_left_out(whole: Any, selected: Any, fields: Fields) -> int:
    """How many entries of objects a selection left out; what lies inside of one that was left out is not counted."""
    return _count([whole], [selected], fields)


def _count(wholes: list[Any], selected: list[Any], fields: Fields) -> int:
    """The same for many values at once, each beside what was selected from it: records are counted all together."""
    count = 0
    while list in (kinds := set(map(type, wholes))):
        pairs = [_pairs(whole, made) for whole, made in zip(wholes, selected, strict=True)]
        wholes, selected = ([each for pair in pairs for each in pair[side]] for side in (0, 1))
    if kinds - {dict}:
        kept = [place for place, whole in enumerate(wholes) if type(whole) is dict]
        wholes, selected = ([values[place] for place in kept] for values in (wholes, selected))
    count += sum(map(len, wholes)) - sum(map(len, selected))
    for name, inner in _inner(fields, wholes):
        count += _count(*_below(name, wholes, selected), inner)
    return count


def _below(name: str, wholes: list[Any], selected: list[Any]) -> tuple[list[Any], list[Any]]:
    """What some objects have under a name, and what was selected of it."""
    try:
        return [whole[name] for whole in wholes], [made[name] for made in selected]
    except KeyError:
        having = [place for place, whole in enumerate(wholes) if name in whole]
        return [wholes[place][name] for place in having], [selected[place][name] for place in having]


def _pairs(whole: Any, made: Any) -> tuple[list[Any], list[Any]]:
    return (whole, made) if type(whole) is list else ([whole], [made])


def _inner(fields: Fields, wholes: list[dict[str, Any]]) -> Iterator[tuple[str, Fields]]:
    """The names inside of which something may have been left out."""
    every = fields.get(EVERY)
    names = {name for whole in wholes for name in whole if name not in fields} if every is not None else ()
    yield from ((name, inner) for name, inner in fields.items() if inner is not None and name != EVERY)
    yield from ((name, every) for name in names if every is not None)


def _of_names(parts: dict[str, Select | None], fields: Fields, known: dict[int, Select]) -> Select:
    record, records = _generated(fields, known)
    items = list(parts.items())

    def one(value: Any) -> Any:
        """A value of whatever kind; an object that lacks a name is looked at closely."""
        if type(value) is dict:
            try:
                return record(value)
            except KeyError:
                return {
                    name: value[name] if take is None else take(value[name]) for name, take in items if name in value
                }
        return select(value) if type(value) is list else value

    def select(value: Any) -> Any:
        if type(value) is list:
            try:
                return records(value)
            except (KeyError, TypeError):  # not all of them are objects that have all the names
                return [one(each) for each in value]
        return one(value)

    return select


def _generated(fields: Fields, known: dict[int, Select]) -> tuple[Select, Select]:
    """A function that takes the names of one object, and one for a list of such objects; both raise where one is missing."""
    code = _Code(known)
    entries = code.entries(fields, "value", 1)
    # All that is not ours in it are names of the selection, written as Python writes texts.
    record: Select = eval(f"lambda value: {entries}", dict(code.takes))  # noqa: S307
    records: Select = eval(f"lambda values: [{entries} for value in values]", dict(code.takes))  # noqa: S307
    return record, records


class _Code:
    """Writes the expression that builds the smaller object; what is inside it and no object is left to `takes`."""

    def __init__(self, known: dict[int, Select]) -> None:
        self._known = known
        self.takes: dict[str, Select] = {}

    def entries(self, fields: Fields, value: str, depth: int) -> str:
        written = (f"{name!r}: {self._entry(name, inner, value, depth)}" for name, inner in fields.items())
        return f"{{{', '.join(written)}}}"

    def _entry(self, name: str, inner: Fields | None, value: str, depth: int) -> str:
        if inner is None:
            return f"{value}[{name!r}]"
        take = f"take{len(self.takes)}"
        self.takes[take] = _compiled(inner, self._known)
        if EVERY in inner or depth == _DEEPEST_WRITTEN:
            return f"{take}({value}[{name!r}])"
        own = f"own{take}"
        entries = self.entries(inner, own, depth + 1)
        return f"{entries} if type({own} := {value}[{name!r}]) is dict else {take}({own})"


def _of_every(parts: dict[str, Select | None]) -> Select:
    every = parts[EVERY]

    def select(value: Any) -> Any:
        if type(value) is list:
            return [select(each) for each in value]
        if type(value) is not dict:
            return value
        return {name: each if (take := parts.get(name, every)) is None else take(each) for name, each in value.items()}

    return select
