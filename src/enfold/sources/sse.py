"""Server-sent events as the HTML standard reads them: bytes in any chunking to events. No I/O, no other part needed."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterator
from typing import Final

import msgspec

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
        """`last_event_id` is the id before the stream began; `max_event` bounds an event's characters."""
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
        """The events that end within this chunk."""
        text = self._decoder.decode(chunk)
        if self._is_first and text:
            text = text.removeprefix("\ufeff")
            self._is_first = False
        for line in self._lines(text):
            event = self._read(line)
            if event is not None:
                yield event

    def _lines(self, text: str) -> Iterator[str]:
        """The lines that end in this text, by CR, LF or CRLF, also where a chunk ends between the two."""
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
        """Take in one line; a blank one dispatches the event."""
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
            raise EventTooLargeError(f"An event is over the limit of {self._max_event} characters")
