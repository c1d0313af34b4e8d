"""Terminal output of a call: questions of the operation, and a progress line."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr, suppress
from itertools import cycle
from shutil import get_terminal_size
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any, Final, TextIO

from enfold.envelope.content import json_text
from enfold.errors import printable
from enfold.operations import LogMessage, Progress
from enfold.operations.questions import MissingCapabilityError, Question
from enfold.surfaces.command_line.help import fields_of

WIDTH: Final = 24  # characters of the bar
PATIENCE: Final = 0.5  # seconds before progress is shown
TICK: Final = 0.1
_YES: Final = ("y", "yes", "true", "1")
_NO: Final = ("n", "no", "false", "0")


def is_terminal(*streams: TextIO) -> bool:
    return all(stream.isatty() for stream in streams)


class TerminalPeer:
    """The caller of an operation, who is asked at the terminal what it asks."""

    capabilities: Mapping[str, Any] = {"elicitation": {"form": {}, "url": {}}}
    session = None
    meta: Mapping[str, Any] = {}
    answers: Mapping[str, Any] = {}

    def __init__(self, stdin: TextIO, messages: TextIO, line: ProgressLine | None = None) -> None:
        """`line` is removed while the user is asked."""
        self._stdin = stdin
        self._messages = messages
        self._line = line
        self.client: object = self
        self.memory: dict[str, Any] = {}
        self.asked: dict[str, int] = {}

    async def ask(self, questions: Mapping[str, Question]) -> dict[str, Any]:
        return {key: self.answer(question.method, question.params) for key, question in questions.items()}

    def answer(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the user: a form, yes or no; the end of the input declines."""
        if method != "elicitation/create":
            raise MissingCapabilityError((method.partition("/")[0],))
        with nullcontext() if self._line is None else self._line.paused():
            self._write(f"{printable(str(params.get('message', '')))}\n")
            try:
                if params.get("mode") == "url":
                    self._write(f"  {printable(str(params.get('url', '')))}\n")
                    agreed = self._field("done", {"type": "boolean"}, is_required=True)
                    return {"action": "accept" if agreed else "decline"}
                return self._form(params.get("requestedSchema"))
            except EOFError:
                return {"action": "cancel"}

    def _form(self, schema: Any) -> dict[str, Any]:
        fields = fields_of(schema)
        if not fields:
            agreed = self._field("ok", {"type": "boolean"}, is_required=True)
            return {"action": "accept", "content": {}} if agreed else {"action": "decline"}
        content = {name: self._field(name, part, is_required=is_required) for name, part, is_required in fields}
        return {"action": "accept", "content": {name: value for name, value in content.items() if value is not None}}

    def _field(self, name: str, part: Any, *, is_required: bool) -> Any:
        """Ask for one field; an invalid value is asked for again."""
        part = part if isinstance(part, Mapping) else {}
        while True:
            self._write(f"  {printable(str(part.get('title') or name))}{_hint(part)}: ")
            line = self._stdin.readline()
            if not line:
                raise EOFError
            text = line.strip()
            if not text and "default" in part:
                return part["default"]
            if not text and not is_required:
                return None
            try:
                return _read(text, part)
            except ValueError as error:
                self._write(f"  {printable(str(error))}\n")

    def _write(self, text: str) -> None:
        self._messages.write(text)
        self._messages.flush()

    def resource_updated(self, uri: str) -> None:
        """Resources cannot be followed from a shell."""

    def close_stream(self) -> None:
        """Do nothing: there is no connection to close."""


def _hint(part: Mapping[str, Any]) -> str:
    several = part.get("type") == "array"
    choices = "/".join(_choices(part.get("items") if several else part))
    shown = choices or ("y/n" if part.get("type") == "boolean" else "" if several else part.get("type"))
    default = part.get("default", "")
    words = (
        shown,
        "separated by commas" if several else "",
        ",".join(map(str, default)) if isinstance(default, list) else str(default),
    )
    hint = ", ".join(printable(str(each)) for each in words if each)
    return f" ({hint})" if hint else ""


def _choices(part: Any) -> Iterator[str]:
    """Return the values of a field that lists them, with their titles."""
    whole = part if isinstance(part, Mapping) else {}
    if isinstance(whole.get("enum"), list):
        yield from map(str, whole["enum"])
    branches = whole.get("oneOf") or whole.get("anyOf")
    for each in branches if isinstance(branches, list) else ():
        if isinstance(each, Mapping) and "const" in each:
            yield f"{each['const']} ({each['title']})" if "title" in each else str(each["const"])


def _read(text: str, part: Mapping[str, Any]) -> Any:
    """Return the value that a text stands for; raise ValueError, with what is expected, if it does not fit the field."""
    from enfold.schema.arguments import coerce, faults  # few calls ask

    if not text:
        raise ValueError("an answer is required")
    if part.get("type") == "boolean":
        if text.lower() not in (*_YES, *_NO):
            raise ValueError("answer y or n")
        return text.lower() in _YES
    schema, kind = dict(part), part.get("type")
    value: Any = coerce(schema, [each.strip() for each in text.split(",")] if kind == "array" else text)
    if value is text and kind in ("integer", "number"):
        with suppress(ValueError):  # people also write +7 and 007, which JSON does not
            value = int(text) if kind == "integer" else float(text)
    for fault in faults(schema, value):
        raise ValueError(f"the answer {fault.clause or f'must be {fault.expected}'}")
    return value


class ProgressLine:
    """One line at a terminal that is written over and over, and lines above it that stay; elsewhere nothing is shown."""

    def __init__(self, messages: TextIO) -> None:
        self._messages = messages
        self._is_shown = messages.isatty()
        self._lock = Lock()  # a thread shows that time goes by, whatever the call does
        self._shown = ""
        self._is_told = False  # how far it is, by the call itself
        self._is_paused = False

    def hear(self, told: Progress | LogMessage) -> None:
        if isinstance(told, Progress):
            self.show(told)
        else:
            data = [] if told.data is None else [json_text(told.data)]
            self.say(" ".join([f"{told.level}:", *filter(None, [told.message]), *data]))

    def show(self, told: Progress) -> None:
        """Draw how far a call is: a bar, where it says how far there is to go."""
        words = printable(told.message or "")
        if told.total:
            done = min(max(told.progress / told.total, 0.0), 1.0)
            bar = "#" * round(done * WIDTH)
            words = f"[{bar:.<{WIDTH}}] {done:4.0%} {words}"
        with self._lock:
            self._is_told = True
            self._draw(words)

    def say(self, text: str) -> None:
        """Write a line that stays, above the one that changes."""
        if self._is_shown:
            with self._lock:
                shown = self._shown
                self._draw("")
                self._messages.write(f"{printable(text)}\n")
                self._draw(shown)

    def clear(self) -> None:
        with self._lock:
            self._draw("")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Take the line away, and draw nothing while a person is asked."""
        with self._lock:
            self._draw("")
            self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def above(self) -> Any:
        """Return the message stream for other writers; the progress line is removed before they write."""
        return _Above(self, self._messages)

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Show a spinner until progress is reported; lines written to stderr meanwhile appear above it."""
        if not self._is_shown:
            yield
            return
        is_over = Event()
        clock = Thread(target=self._tick, args=(what, is_over), daemon=True)
        clock.start()
        try:
            with redirect_stderr(self.above()) if self._messages is sys.stderr else nullcontext():
                yield
        finally:
            is_over.set()
            clock.join()
            self.clear()

    def _tick(self, what: str, is_over: Event) -> None:
        start = monotonic()
        for sign in cycle("|/-\\"):
            if is_over.wait(PATIENCE if monotonic() - start < PATIENCE else TICK):
                return
            with self._lock:
                if not self._is_told:
                    self._draw(f"{sign} {printable(what)}  {monotonic() - start:.0f} s")

    def _draw(self, words: str) -> None:
        """Replace the shown text; a line that is too long could not be erased."""
        if not self._is_shown or self._is_paused or words == self._shown:
            return
        words = words[: get_terminal_size().columns - 1]
        self._messages.write(f"\r{words:<{len(self._shown)}}" if words else f"\r{' ' * len(self._shown)}\r")
        self._messages.flush()
        self._shown = words


class _Above:
    """A stream whose line that changes is taken away before something is written."""

    def __init__(self, line: ProgressLine, messages: TextIO) -> None:
        self._line = line
        self._messages = messages

    def write(self, text: str) -> int:
        self._line.clear()
        return self._messages.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._messages, name)
