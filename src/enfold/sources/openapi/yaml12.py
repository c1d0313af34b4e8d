"""YAML 1.2 text into JSON data: the core schema, string keys, bounded aliases. Dates, `NO` and `16:9` stay text.

A schema that contains an alias of itself refers to itself by `$ref`, as OpenAPI documents do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, Self
from urllib.parse import quote

import msgspec

from enfold.errors import FormatError
from enfold.json_pointer import escape

MAX_NODES: Final = 5_000_000  # counted with every alias expanded: a bomb has more, the largest real document has not

_INTEGER: Final = re.compile(r"[-+]?[0-9]+\Z")
_OTHER_INTEGER: Final = re.compile(r"0o[0-7]+\Z|0x[0-9a-fA-F]+\Z")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_MAX_DIGITS: Final = 400
_WORDS: Final[dict[str, bool | None]] = {
    "": None,
    "~": None,
    **dict.fromkeys(("null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NUMBER_STARTS: Final = frozenset("0123456789+-.")
# To the parser, which follows YAML 1.1, these are line breaks or forbidden; in 1.2 they are characters like others.
_UNLIKE: Final = (0x7F, *range(0x80, 0xA0), 0x2028, 0x2029, 0xFEFF)
_UNLIKE_1_1: Final = re.compile(rb"\x7f|\xc2[\x80-\x9f]|\xe2\x80[\xa8\xa9]|.\xef\xbb\xbf", re.DOTALL)
_FIRST_STAND_IN: Final = 0xFFF00
_STAND_INS: Final = re.compile(f"[{chr(_FIRST_STAND_IN)}-{chr(_FIRST_STAND_IN + len(_UNLIKE) - 1)}]")
_KEYWORDS: Final = ("allOf", "anyOf", "oneOf", "properties")  # whose values are no schemas, though schemas are in them
_STANDARD_TAG: Final = "tag:yaml.org,2002:"


def read_yaml(text: bytes) -> Any:
    """The first document of a YAML stream as JSON data; a FormatError says why it cannot be read."""
    import yaml

    try:
        if _UNLIKE_1_1.search(text):
            return _first_value(_without_stand_ins(_events(_with_stand_ins(text.decode("utf-8-sig")))))
        return _first_value(_events(text))
    except (yaml.YAMLError, UnicodeError) as error:
        raise FormatError(f"Not YAML: {' '.join(str(error).split())[:300]}") from error


def _first_value(events: Iterator[Any]) -> Any:
    for event in events:
        if hasattr(event, "anchor"):  # the marks of streams and documents have none
            return _Reader(events).read(event)[0]
    return None


def plain_scalar(text: str) -> Any:
    """What a plain scalar stands for in the core schema of YAML 1.2."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMBER_STARTS or len(text) > _MAX_DIGITS:
        return text
    if _INTEGER.match(text):
        return int(text)
    if _OTHER_INTEGER.match(text):
        return int(text, 0)
    return _finite(text) if _FLOAT.match(text) else text


def _finite(text: str) -> float | str:
    # JSON has no infinity, so a number too large for a float stays the text it was.
    number = float(text)
    return number if number - number == 0 else text


def _with_stand_ins(text: str) -> str:
    """The text with private characters for those that YAML 1.2 takes as they are and the parser of 1.1 does not."""
    if _STAND_INS.search(text):
        raise FormatError("Not YAML: private characters stand beside control characters")
    return text.translate({code: _FIRST_STAND_IN + index for index, code in enumerate(_UNLIKE)})


def _without_stand_ins(events: Iterator[Any]) -> Iterator[Any]:
    """The events with the characters that were meant."""
    for event in events:
        if type(event).__name__ == "ScalarEvent":
            event.value = _STAND_INS.sub(lambda found: chr(_UNLIKE[ord(found[0]) - _FIRST_STAND_IN]), event.value)
        yield event


def _events(text: bytes | str) -> Iterator[Any]:
    import yaml

    # libyaml, where it was built, is some ten times faster; only its events are used, none of its constructors.
    loader = (yaml.CBaseLoader if yaml.__with_libyaml__ else yaml.BaseLoader)(text)
    try:
        while loader.check_event():
            yield loader.get_event()
    finally:
        loader.dispose()


class _UnfinishedAnchor(msgspec.Struct, frozen=True):
    """An anchored value that is being read: a reference to it, or to the schema that it is a keyword of."""

    reference: dict[str, str]
    keyword: str  # empty where the value is no keyword's
    is_mapping: bool

    @classmethod
    def at(cls, path: list[str | int], *, is_mapping: bool) -> Self:
        is_keyword = bool(path) and path[-1] in _KEYWORDS and path[-2:-1] != ["properties"]
        names = path[:-1] if is_keyword else path
        pointer = "".join(f"/{quote(escape(str(name)), safe='~')}" for name in names)
        return cls({"$ref": f"#{pointer}"}, str(path[-1]) if is_keyword else "", is_mapping)


class _Reader:
    """Reads values from parser events, and counts how many nodes they are with every alias expanded."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        self._anchored: dict[str, tuple[Any, int]] = {}
        self._unfinished: dict[str, _UnfinishedAnchor] = {}
        self._path: list[str | int] = []

    def read(self, event: Any) -> tuple[Any, int]:
        """The value that begins with this event, and the number of its nodes."""
        kind = type(event).__name__
        if kind == "AliasEvent":
            return self._alias(event.anchor)
        anchor = event.anchor
        if anchor:
            self._unfinished[anchor] = _UnfinishedAnchor.at(self._path, is_mapping=kind == "MappingStartEvent")
        if kind == "ScalarEvent":
            found: tuple[Any, int] = _scalar_value(event), 1
        else:
            found = self._mapping() if kind == "MappingStartEvent" else self._sequence()
        if found[1] > MAX_NODES:
            raise FormatError("The aliases of the document expand beyond any real size")
        if anchor:
            self._anchored[anchor] = found
            self._unfinished.pop(anchor, None)
        return found

    def _alias(self, anchor: str) -> tuple[Any, int]:
        """The value of an alias; inside that value, which JSON data could not hold, a reference to it."""
        unfinished = self._unfinished.get(anchor)
        if unfinished is not None and unfinished.is_mapping and not unfinished.keyword:
            return unfinished.reference, 1
        if unfinished is not None or anchor not in self._anchored:
            raise FormatError(f"The alias *{anchor} has no finished anchor")
        return self._anchored[anchor]

    def _owner(self, key: str, event: Any) -> dict[str, str] | None:
        """A reference to the schema whose own keyword an alias repeats inside of it, as `oneOf` or `properties`."""
        unfinished = self._unfinished.get(event.anchor) if type(event).__name__ == "AliasEvent" else None
        return unfinished.reference if unfinished is not None and unfinished.keyword == key else None

    def _sequence(self) -> tuple[list[Any], int]:
        items: list[Any] = []
        nodes = 1
        for event in self._until("SequenceEndEvent"):
            self._path.append(len(items))
            item, size = self.read(event)
            self._path.pop()
            items.append(item)
            nodes += size
        return items, nodes

    def _mapping(self) -> tuple[dict[str, Any], int]:
        members: dict[str, Any] = {}
        merges: list[Any] = []
        owners: list[Any] = []
        nodes = 1
        for event in self._until("MappingEndEvent"):
            key = self._key(event)
            start = next(self._events)
            owner = self._owner(key, start)
            if owner is not None:
                owners.append(owner)
                continue
            self._path.append(key)
            value, size = self.read(start)
            self._path.pop()
            nodes += size
            if key == "<<" and isinstance(value, dict | list):
                if type(start).__name__ == "AliasEvent" and start.anchor in self._unfinished:
                    raise FormatError(f"The mapping &{start.anchor} is merged into itself")
                merges.append(value)
            else:
                members[key] = value
        _merge(members, merges)
        if owners:
            members["allOf"] = [*members.get("allOf", ()), *owners]
        return members, nodes

    def _key(self, event: Any) -> str:
        """A key as it is written: `200` and `true` are text, as in JSON."""
        kind = type(event).__name__
        if kind == "AliasEvent" and not isinstance(key := self._alias(event.anchor)[0], dict | list):
            return str(key)
        if kind != "ScalarEvent":
            raise FormatError("A mapping key must be a scalar: JSON has no other keys")
        if event.anchor:
            self._anchored[event.anchor] = event.value, 1
        return str(event.value)

    def _until(self, end: str) -> Iterator[Any]:
        for event in self._events:
            if type(event).__name__ == end:
                return
            yield event


def _merge(target: dict[str, Any], merges: list[Any]) -> None:
    """Fill in what `<<` brings: keys of the mapping itself win, then those of the earlier source."""
    for merged in merges:
        for source in merged if isinstance(merged, list) else [merged]:
            if isinstance(source, dict):
                for key, value in source.items():
                    target.setdefault(key, value)


def _scalar_value(event: Any) -> Any:
    if event.tag is None:
        return plain_scalar(event.value) if event.implicit[0] else event.value
    if event.tag.startswith(_STANDARD_TAG) and event.tag[len(_STANDARD_TAG) :] in ("int", "float", "bool", "null"):
        return plain_scalar(event.value)
    return event.value
