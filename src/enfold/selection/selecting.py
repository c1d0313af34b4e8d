"""Selections as calls meet them: read and compiled once for an operation and a text, applied to envelopes and to specs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET

from enfold.content import TextContent, json_text
from enfold.envelope import MCPResponseMeta, ResponseEnvelope, ResultWarning, has_own_schema
from enfold.operation import OperationSpec
from enfold.selection.grammar import EVERY, Fields, read_fields
from enfold.selection.narrowing import check_fields

LEFT_OUT: Final = "left_out"  # the code of the warning
Select: TypeAlias = Callable[[Any], Any]

_DEEPEST_WRITTEN: Final = 3  # levels of objects that one expression builds


def selection_of(spec: OperationSpec, text: str) -> Selection:
    """What a text selects from the results of an operation; a VALIDATION_ERROR where they have no such fields."""
    fields = read_fields(text)
    check_fields(spec.output_schema, fields)
    return Selection(fields)


class Selection:
    """A selection that fits the results of an operation."""

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self._select = compile_fields(fields)

    def of(self, envelope: ResponseEnvelope[Any]) -> ResponseEnvelope[Any]:
        """The envelope with what is selected; failures, bytes, and payloads that go by a schema of their own stay whole."""
        data, meta = envelope.data, envelope.meta
        if envelope.is_error or isinstance(data, bytes) or has_own_schema(data):
            return envelope
        if isinstance(meta, MCPResponseMeta):
            return self._of_tool(envelope, meta)
        selected = self._select(data)
        return self._with_count(msgspec.structs.replace(envelope, data=selected), data)

    def _of_tool(self, envelope: ResponseEnvelope[Any], meta: MCPResponseMeta) -> ResponseEnvelope[Any]:
        """The result of an MCP tool: its structure, or the JSON that is its one text; anything else stays whole."""
        data = envelope.data
        if meta.structured_content is UNSET and _is_content(data):
            data = _json_in(data)
            if data is UNSET or has_own_schema(data):
                return envelope
        selected = self._select(data)
        text = TextContent(text=json_text(selected))
        kept = tuple(block for block in meta.content if not isinstance(block, TextContent))
        structure = _structure(meta.structured_content, data, selected)
        meta = msgspec.structs.replace(meta, content=(text, *kept), structured_content=structure)
        return self._with_count(msgspec.structs.replace(envelope, data=selected, meta=meta), data)

    def _with_count(self, envelope: ResponseEnvelope[Any], whole: Any) -> ResponseEnvelope[Any]:
        """The envelope with a warning that counts what was left out, if anything was."""
        count = count_left_out(whole, envelope.data, self.fields)
        if not count:
            return envelope
        warning = ResultWarning(LEFT_OUT, "", type="object", count=count)
        return msgspec.structs.replace(envelope, warnings=(*envelope.warnings, warning))


def _structure(given: Any, data: Any, selected: Any) -> Any:
    """The structured content after a selection: another server may have wrapped what is the data here."""
    is_wrapped = isinstance(given, dict) and len(given) == 1 and given is not data and given.get("result") == data
    return UNSET if given is UNSET else {"result": selected} if is_wrapped else selected


def _is_content(data: Any) -> bool:
    """Whether the data of a tool's result is nothing but its content blocks."""
    return isinstance(data, list) and all(isinstance(each, dict) and isinstance(each.get("type"), str) for each in data)


def _json_in(blocks: list[dict[str, Any]]) -> Any:
    """The JSON that the one text among some blocks holds; UNSET where there is none."""
    texts = [block["text"] for block in blocks if block["type"] == "text" and isinstance(block.get("text"), str)]
    if len(texts) != 1:
        return UNSET
    try:
        found = msgspec.json.decode(texts[0])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return UNSET
    return found if isinstance(found, dict | list) else UNSET


def compile_fields(fields: Fields) -> Select:
    """The function that takes from a value what is selected."""
    return _compiled(fields, {})


def _compiled(fields: Fields, known: dict[int, Select]) -> Select:
    """`compile_fields`, with each part of a selection compiled once: what contains it needs it, too."""
    found = known.get(id(fields))
    if found is None:
        parts = {name: None if inner is None else _compiled(inner, known) for name, inner in fields.items()}
        found = known[id(fields)] = _of_every(parts) if EVERY in parts else _of_names(parts, fields, known)
    return found


def count_left_out(whole: Any, selected: Any, fields: Fields) -> int:
    """How many entries of objects a selection left out; what lies inside of one that was left out is not counted."""
    return _count([whole], [selected], fields)


def _count(wholes: list[Any], selected: list[Any], fields: Fields) -> int:
    """`count_left_out` for many values at once, each beside what was selected from it."""
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
