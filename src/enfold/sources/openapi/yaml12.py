"""YAML 1.2 text into JSON data: the core schema, string keys, bounded aliases. Dates, `NO` and `16:9` stay text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from enfold.errors import FormatError

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


class _Reader:
    """Reads values from parser events, and counts how many nodes they are with every alias expanded."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        self._anchored: dict[str, tuple[Any, int]] = {}

    def read(self, event: Any) -> tuple[Any, int]:
        """The value that begins with this event, and the number of its nodes."""
        kind = type(event).__name__
        if kind == "AliasEvent":
            return self._alias(event.anchor)
        if kind == "ScalarEvent":
            found: tuple[Any, int] = _scalar_value(event), 1
        else:
            found = self._mapping() if kind == "MappingStartEvent" else self._sequence()
        if found[1] > MAX_NODES:
            raise FormatError("The aliases of the document expand beyond any real size")
        if event.anchor:
            self._anchored[event.anchor] = found
        return found

    def _alias(self, anchor: str) -> tuple[Any, int]:
        if anchor not in self._anchored:
            raise FormatError(f"The alias *{anchor} has no finished anchor")
        return self._anchored[anchor]

    def _sequence(self) -> tuple[list[Any], int]:
        items: list[Any] = []
        nodes = 1
        for event in self._until("SequenceEndEvent"):
            item, size = self.read(event)
            items.append(item)
            nodes += size
        return items, nodes

    def _mapping(self) -> tuple[dict[str, Any], int]:
        members: dict[str, Any] = {}
        merges: list[Any] = []
        nodes = 1
        for event in self._until("MappingEndEvent"):
            key = self._key(event)
            value, size = self.read(next(self._events))
            nodes += size
            if key == "<<" and isinstance(value, dict | list):
                merges.append(value)
            else:
                members[key] = value
        _merge(members, merges)
        return members, nodes

    def _key(self, event: Any) -> str:
        """A key as it is written: `200` and `true` are text, as in JSON."""
        kind = type(event).__name__
        if kind == "AliasEvent":
            return str(self._alias(event.anchor)[0])
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
