"""Decoders of responses: server-sent events, streams of JSON texts, and JSON with NaN, huge numbers or unpaired surrogates. No I/O."""

from __future__ import annotations

import json
import math
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from enfold.envelope import ResultWarning
from enfold.schema.json_pointer import escape

DEFAULT_EVENT: Final = "message"


class ServerSentEvent(msgspec.Struct, frozen=True):
    """One dispatched event; `id` is the last event id at that moment."""

    data: str
    event: str = DEFAULT_EVENT
    id: str = ""


class EventTooLargeError(ValueError):
    """An event grew beyond the limit before it ended."""


class EventDecoder:
    """Reads a stream chunk by chunk; an event that has not ended with a blank line is never given."""

    def __init__(self, *, last_event_id: str = "", max_event: int | None = None) -> None:
        """`last_event_id` is the id before the stream began; `max_event` limits the characters of an event."""
        self.last_event_id = last_event_id  # what to send on reconnection
        self.retry: int | None = None  # milliseconds the server asks for before a reconnection
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._max_event = max_event
        self._is_first = True
        self._after_cr = False
        self._line: list[str] = []  # pieces of a line that has not ended yet
        self._data: list[str] = []
        self._event = ""
        self._id = last_event_id
        self._line_size = 0
        self._data_size = 0

    def feed(self, chunk: bytes) -> Iterator[ServerSentEvent]:
        """Return the events that end within this chunk."""
        text = self._decoder.decode(chunk)
        if self._is_first and text:
            text = text.removeprefix("\ufeff")
            self._is_first = False
        for line in self._lines(text):
            event = self._read(line)
            if event is not None:
                yield event

    def end(self) -> Iterator[ServerSentEvent]:
        """Return what the end of the stream completes: no event, because each ends with a blank line."""
        return iter(())

    def _lines(self, text: str) -> Iterator[str]:
        """Return the lines that end in this text, by CR, LF or CRLF, even if a chunk ends between the two."""
        if self._after_cr and text:
            self._after_cr = False
            text = text.removeprefix("\n")
        # Only these three end a line: str.splitlines knows many more.
        *ended, rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._after_cr = text.endswith("\r") or (self._after_cr and not text)
        for line in ended:
            self._line.append(line)
            yield self._take_line()
        if rest:
            self._line.append(rest)
            self._line_size += len(rest)
            self._check_size()

    def _take_line(self) -> str:
        line = self._line[0] if len(self._line) == 1 else "".join(self._line)
        self._line.clear()
        self._line_size = 0
        return line

    def _read(self, line: str) -> ServerSentEvent | None:
        """Process one line; a blank one dispatches the event."""
        if not line:
            return self._dispatch()
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
            self._data_size += len(value) + 1
            self._check_size()
        elif field == "event":
            self._event = value
        elif field == "id":
            if "\0" not in value:
                self._id = value
        elif field == "retry" and value.isascii() and value.isdecimal() and len(value) < 19:
            self.retry = int(value)
        return None

    def _dispatch(self) -> ServerSentEvent | None:
        self.last_event_id = self._id
        data, name = self._data, self._event
        self._data, self._event, self._data_size = [], "", 0
        return ServerSentEvent("\n".join(data), name or DEFAULT_EVENT, self._id) if data else None

    def _check_size(self) -> None:
        if self._max_event is not None and self._line_size + self._data_size > self._max_event:
            raise EventTooLargeError(f"An event exceeds the limit of {self._max_event} characters")


class RecordDecoder:
    """JSON texts with a separator, given as events without a name: lines, or the record separator of RFC 7464."""

    last_event_id: str = ""
    retry: int | None = None

    def __init__(self, separator: bytes, limit: int) -> None:
        self._separator = separator
        self._limit = limit
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> Iterator[ServerSentEvent]:
        self._rest += chunk
        if self._separator in chunk:
            *records, rest = bytes(self._rest).split(self._separator)
            self._rest = bytearray(rest)
            for record in records:
                yield from _record(record)
        if len(self._rest) > self._limit:
            raise EventTooLargeError(f"A record exceeds the limit of {self._limit} bytes")

    def end(self) -> Iterator[ServerSentEvent]:
        """Return the last record, which needs no separator."""
        yield from _record(bytes(self._rest))


def _record(record: bytes) -> Iterator[ServerSentEvent]:
    text = record.decode("utf-8", "replace").strip("\ufeff \t\r\n")
    if text:
        yield ServerSentEvent(text, event="")


NOT_A_NUMBER: Final = "not_a_number"
HALF_CHARACTER: Final = "half_character"
LARGE_NUMBER: Final = "large_number"
_MAX_WARNINGS: Final = 50
_MAX_DIGITS: Final = 4_000  # of an integer; Python neither reads nor writes much longer ones


def read_json(text: str | bytes) -> tuple[Any, tuple[ResultWarning, ...]]:
    """JSON as data, with U+FFFD for each lone surrogate, text for each number that is too large, and a warning for both.

    Anything but JSON raises msgspec's error.
    """
    try:
        return msgspec.json.decode(text), ()
    except (msgspec.DecodeError, UnicodeError) as error:
        # Only an escape can spell an unpaired surrogate, and only the other parser reads it; of a type that is not given, only
        # the range of a number can be wrong.
        has_escapes = b"\\u" in text if isinstance(text, bytes) else "\\u" in text
        if not has_escapes and not isinstance(error, msgspec.ValidationError):
            raise
        try:
            found = parse_numbers(text, parse_constant=_refuse)
        except (ValueError, RecursionError):
            raise error from None
    replacements = Replacements()
    return replacements.apply(found, ""), replacements.warnings_below("")


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


class _LargeNumber(str):
    """The text of a number that is too large for us."""

    __slots__ = ()


def parse_numbers(text: str | bytes, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """JSON as `json.loads` reads it; numbers that are too large are marked for `Replacements`."""
    return json.loads(text, parse_float=_float, parse_int=_integer, parse_constant=parse_constant)


def _float(text: str) -> float | _LargeNumber:
    number = float(text)
    return number if math.isfinite(number) else _LargeNumber(text)


def _integer(text: str) -> int | _LargeNumber:
    return int(text) if len(text) <= _MAX_DIGITS else _LargeNumber(text)


class Replacements:
    """Replaces what JSON cannot hold in the values of one message, and collects a warning for each."""

    def __init__(self) -> None:
        self._warnings: list[ResultWarning] = []

    def warnings_below(self, start: str) -> tuple[ResultWarning, ...]:
        """Return the warnings below a path, relative to it."""
        below = [each for each in self._warnings if each.path.startswith(start)]
        return tuple(ResultWarning(each.code, each.path.removeprefix(start), type=each.type) for each in below)

    def apply(self, value: Any, path: str) -> Any:
        """Replace every unpaired surrogate and every number that JSON cannot hold in the value at a path."""
        match value:
            case dict():
                return {
                    _without_surrogates(key): self.apply(item, f"{path}/{escape(_without_surrogates(key))}")
                    for key, item in value.items()
                }
            case list():
                return [self.apply(item, f"{path}/{place}") for place, item in enumerate(value)]
            case _LargeNumber():
                self._warn(LARGE_NUMBER, path, "number")
                return str(value)
            case str() if (whole := _without_surrogates(value)) != value:
                self._warn(HALF_CHARACTER, path, "string")
                return whole
            case float() if not math.isfinite(value):
                self._warn(NOT_A_NUMBER, path, "number")
                return None
        return value

    def _warn(self, code: str, path: str, kind: str) -> None:
        if len(self._warnings) < _MAX_WARNINGS:
            self._warnings.append(ResultWarning(code, path, type=kind))


def _without_surrogates(text: str) -> str:
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
