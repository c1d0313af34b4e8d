"""YAML 1.2 text into JSON data: the core schema, string keys, bounded aliases. Dates, `NO` and `16:9` stay text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from enfold.errors import FormatError

MAX_NODES: Final = 5_000_000  # counted with every alias expanded: a bomb has more, the largest real document has not
MAX_DEPTH: Final = 500

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
            return _Builder().build(_without_stand_ins(_events(_with_stand_ins(text.decode("utf-8-sig")))))
        return _Builder().build(_events(text))
    except (yaml.YAMLError, UnicodeError) as error:
        raise FormatError(f"Not YAML: {_one_line(error)}") from error


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


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


class _Open:
    """A mapping or sequence under construction."""

    __slots__ = ("anchor", "key", "merges", "value", "weight")

    def __init__(self, value: dict[str, Any] | list[Any], anchor: str | None) -> None:
        self.value = value
        self.anchor = anchor
        self.key: str | None = None
        self.merges: list[Any] = []
        self.weight = 1


class _Builder:
    """Builds values from parser events without recursion, and counts what aliases would expand to."""

    def __init__(self) -> None:
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._result: Any = None
        self._done = False

    def build(self, events: Iterator[Any]) -> Any:
        for event in events:
            self._ACTIONS.get(type(event).__name__, _Builder._ignore)(self, event)
            if self._done:
                break
        return self._result

    def _ignore(self, event: Any) -> None:
        """Stream and document marks carry no data."""

    def _document_end(self, _event: Any) -> None:
        self._done = True

    def _start_mapping(self, event: Any) -> None:
        self._push(_Open({}, event.anchor))

    def _start_sequence(self, event: Any) -> None:
        self._push(_Open([], event.anchor))

    def _push(self, opened: _Open) -> None:
        parent = self._open[-1] if self._open else None
        if parent is not None and parent.key is None and isinstance(parent.value, dict):
            raise FormatError("A mapping key must be a scalar: JSON has no other keys")
        if len(self._open) >= MAX_DEPTH:
            raise FormatError(f"The document is nested deeper than {MAX_DEPTH} levels")
        self._open.append(opened)

    def _end(self, _event: Any) -> None:
        closed = self._open.pop()
        if isinstance(closed.value, dict):
            _merge(closed.value, closed.merges)
        self._add(closed.value, closed.anchor, closed.weight)

    def _scalar(self, event: Any) -> None:
        if self._awaits_key():
            self._put_key(event.value, event.anchor)
        else:
            self._add(_scalar_value(event), event.anchor, 1)

    def _alias(self, event: Any) -> None:
        if event.anchor not in self._anchors:
            raise FormatError(f"The alias *{event.anchor} has no finished anchor")
        value, weight = self._anchors[event.anchor]
        if self._awaits_key():
            self._put_key(str(value), None)
        else:
            self._add(value, None, weight)

    def _awaits_key(self) -> bool:
        return bool(self._open) and self._open[-1].key is None and isinstance(self._open[-1].value, dict)

    def _put_key(self, key: str, anchor: str | None) -> None:
        self._open[-1].key = key
        if anchor:
            self._anchors[anchor] = (key, 1)

    def _add(self, value: Any, anchor: str | None, weight: int) -> None:
        if anchor:
            self._anchors[anchor] = (value, weight)
        if not self._open:
            self._result = value
            return
        parent = self._open[-1]
        parent.weight += weight
        if parent.weight > MAX_NODES:
            raise FormatError("The aliases of the document expand beyond any real size")
        _attach(parent, value)

    _ACTIONS: Final = {
        "MappingStartEvent": _start_mapping,
        "SequenceStartEvent": _start_sequence,
        "MappingEndEvent": _end,
        "SequenceEndEvent": _end,
        "ScalarEvent": _scalar,
        "AliasEvent": _alias,
        "DocumentEndEvent": _document_end,
    }


def _attach(parent: _Open, value: Any) -> None:
    if isinstance(parent.value, list):
        parent.value.append(value)
        return
    if parent.key == "<<" and isinstance(value, dict | list):
        parent.merges.append(value)
    else:
        parent.value[str(parent.key)] = value
    parent.key = None


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
