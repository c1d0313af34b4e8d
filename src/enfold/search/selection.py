"""Selections of calls: compiled once per operation and text, applied to envelopes and specs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET

from enfold.envelope import MCPResponseMeta, ResponseEnvelope, ResultWarning, has_own_schema
from enfold.envelope.content import TextContent, json_text
from enfold.errors import CallError
from enfold.log import Log
from enfold.operations import OperationSpec
from enfold.search.fields import EVERY, Fields, check_fields, narrowed_schema, read_fields

LEFT_OUT: Final = "left_out"  # the code of the warning
Select: TypeAlias = Callable[[Any], Any]
_Pairs: TypeAlias = tuple[list[Any], list[Any]]

_DEEPEST_WRITTEN: Final = 3  # levels of objects that one expression builds


def selection_of(spec: OperationSpec, text: str) -> Selection:
    """Compile a selection for the results of an operation; raise VALIDATION_ERROR for unknown fields."""
    fields = read_fields(text)
    check_fields(spec.output_schema, fields)
    return Selection(fields)


class Selection:
    """A selection that is valid for the results of an operation."""

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self._select = compile_fields(fields)

    def of(self, envelope: ResponseEnvelope[Any]) -> ResponseEnvelope[Any]:
        """Apply the selection; failures, bytes, and payloads with their own schema are unchanged."""
        data, meta = envelope.data, envelope.meta
        if envelope.is_error or isinstance(data, bytes) or has_own_schema(data):
            return envelope
        if isinstance(meta, MCPResponseMeta):
            return self._of_tool(envelope, meta)
        selected = self._select(data)
        return self._with_count(msgspec.structs.replace(envelope, data=selected), data)

    def _of_tool(self, envelope: ResponseEnvelope[Any], meta: MCPResponseMeta) -> ResponseEnvelope[Any]:
        """Apply the selection to an MCP result with structured content or a single JSON text; others are unchanged."""
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
        """Add a warning with the number of omitted fields, if any."""
        count = count_left_out(whole, envelope.data, self.fields)
        if not count:
            return envelope
        warning = ResultWarning(LEFT_OUT, "", type="object", count=count)
        return msgspec.structs.replace(envelope, warnings=(*envelope.warnings, warning))


def _structure(given: Any, data: Any, selected: Any) -> Any:
    """Return the structured content after a selection; another server may have wrapped the data."""
    is_wrapped = isinstance(given, dict) and len(given) == 1 and given is not data and given.get("result") == data
    return UNSET if given is UNSET else {"result": selected} if is_wrapped else selected


def _is_content(data: Any) -> bool:
    """Whether the data of a tool's result is its content blocks."""
    return isinstance(data, list) and all(isinstance(each, dict) and isinstance(each.get("type"), str) for each in data)


def _json_in(blocks: list[dict[str, Any]]) -> Any:
    """Return the JSON of the single text block; UNSET where there is none."""
    texts = [block["text"] for block in blocks if block["type"] == "text" and isinstance(block.get("text"), str)]
    if len(texts) != 1:
        return UNSET
    try:
        found = msgspec.json.decode(texts[0])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return UNSET
    return found if isinstance(found, dict | list) else UNSET


def compile_fields(fields: Fields) -> Select:
    """Return the function that applies a selection to a value."""
    return _compiled(fields, {})


def _compiled(fields: Fields, known: dict[int, Select]) -> Select:
    """`compile_fields` with each part of a selection compiled once."""
    found = known.get(id(fields))
    if found is None:
        parts = {name: None if inner is None else _compiled(inner, known) for name, inner in fields.items()}
        found = known[id(fields)] = _of_every(parts) if EVERY in parts else _of_names(parts, fields, known)
    return found


def _of_names(parts: dict[str, Select | None], fields: Fields, known: dict[int, Select]) -> Select:
    def other(value: Any) -> Any:
        """Apply the selection to a value that is not an object or lacks a name."""
        if type(value) is dict:
            names = value if len(value) < len(parts) else parts
            return {name: _taken(parts[name], value[name]) for name in names if name in value and name in parts}
        return select(value) if type(value) is list else value

    code = _Code(known, other)
    written = code.written(fields, "value", "value", "other", 1)
    # The only foreign parts are names of the selection, written through `repr`.
    one: Select = eval(f"lambda value: {written}", code.takes)  # noqa: S307
    each: Select = eval(f"lambda values: [{written} for value in values]", code.takes)  # noqa: S307

    def select(value: Any) -> Any:
        return each(value) if type(value) is list else one(value)

    return select


def _taken(take: Select | None, value: Any) -> Any:
    return value if take is None else take(value)


class _Code:
    """Generates the expression that builds the smaller object; other values are left to `takes`."""

    def __init__(self, known: dict[int, Select], other: Select) -> None:
        self._known = known
        self.takes: dict[str, Any] = {"other": other}

    def written(self, fields: Fields, given: str, value: str, other: str, depth: int) -> str:
        """Return the expression for an object that has all names; `other` handles the rest."""
        entries = ", ".join(f"{name!r}: {self._entry(name, inner, value, depth)}" for name, inner in fields.items())
        has_names = " and ".join(f"{name!r} in {value}" for name in fields)
        return f"{{{entries}}} if type({given}) is dict and {has_names} else {other}({value})"

    def _entry(self, name: str, inner: Fields | None, value: str, depth: int) -> str:
        if inner is None:
            return f"{value}[{name!r}]"
        take = f"take{len(self.takes)}"
        self.takes[take] = _compiled(inner, self._known)
        if EVERY in inner or depth == _DEEPEST_WRITTEN:
            return f"{take}({value}[{name!r}])"
        own = f"own{take}"
        return self.written(inner, f"{own} := {value}[{name!r}]", own, take, depth + 1)


def _of_every(parts: dict[str, Select | None]) -> Select:
    every = parts[EVERY]

    def select(value: Any) -> Any:
        if type(value) is list:
            return [select(each) for each in value]
        if type(value) is not dict:
            return value
        return {name: _taken(parts.get(name, every), each) for name, each in value.items()}

    return select


def count_left_out(whole: Any, selected: Any, fields: Fields) -> int:
    """Count the object entries that a selection omitted, without those nested inside an omitted one."""
    return _count([whole], [selected], fields)


def _count(wholes: list[Any], selected: list[Any], fields: Fields) -> int:
    """Count for many pairs of a value and its selection."""
    wholes, selected = _objects(wholes, selected)
    count = sum(map(len, wholes)) - sum(map(len, selected))
    for inner, wholes_below, selected_below in _below(wholes, selected, fields):
        count += _count(wholes_below, selected_below, inner)
    return count


def _objects(wholes: list[Any], selected: list[Any]) -> _Pairs:
    """Yield the objects among some values and in nested lists, each with its selection."""
    found: _Pairs = [], []
    while wholes:
        if set(map(type, wholes)) == {dict}:
            return (wholes, selected) if not found[0] else (found[0] + wholes, found[1] + selected)
        pairs = list(zip(wholes, selected, strict=True))
        for side in (0, 1):
            found[side].extend(pair[side] for pair in pairs if type(pair[0]) is dict)
        lists = [pair for pair in pairs if type(pair[0]) is list]
        wholes, selected = ([each for pair in lists for each in pair[side]] for side in (0, 1))
    return found


def _below(wholes: list[Any], selected: list[Any], fields: Fields) -> Iterable[tuple[Fields, list[Any], list[Any]]]:
    """Return the nested values that may have omissions, by the fields selected from them."""
    inner = {name: below for name, below in fields.items() if below is not None and name != EVERY}
    every = fields.get(EVERY)
    if every is None:
        with suppress(KeyError):  # most have all names
            return [
                (below, [whole[name] for whole in wholes], [made[name] for made in selected])
                for name, below in inner.items()
            ]
    groups: dict[int, tuple[Fields, list[Any], list[Any]]] = {}
    for whole, made in zip(wholes, selected, strict=True):
        for name in whole if every is not None or len(whole) < len(inner) else inner:
            below = inner.get(name) if name in fields else every
            if below is not None and name in whole:
                _, values, parts = groups.setdefault(id(below), (below, [], []))
                values.append(whole[name])
                parts.append(made[name])
    return groups.values()


DEFAULT: Final = "select"  # the key in the meta of a spec


def default_selection(spec: OperationSpec) -> Selection | None:
    """Return the default selection of an operation; log and ignore an invalid one."""
    text = spec.meta.get(DEFAULT)
    if not isinstance(text, str):
        return None

    try:
        return selection_of(spec, text)
    except CallError as error:
        Log("enfold.selection").warning("%s: its default selection is not used: %s", spec.id, error.message)
        return None


def narrowed(spec: OperationSpec) -> OperationSpec:
    """Return the spec as listed, with its output narrowed by the default selection."""
    chosen = default_selection(spec) if DEFAULT in spec.meta else None
    if chosen is None:
        return spec
    return spec.replace(output_schema=narrowed_schema(spec.output_schema, chosen.fields))
