"""The words after `call`: read into the operation, its arguments as values, and our own options."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, TextIO

import msgspec

from enfold.errors import CallError

USAGE: Final = """\
usage: call OPERATION [name=text] [name:=json] [@file] [options]

  name=text             an argument as text; it is converted where the operation wants a number or a truth value
  --NAME text           the same; --NAME alone is true, --no-NAME false. The options below win over arguments of their names
  name.field=text       a field of an argument that is an object; name.0=text an item of one that is an array
  name:=json            an argument as JSON
  name=@file            an argument whose text is in a file; name:=@file for JSON
  @file                 all arguments as a JSON object in a file; @- reads standard input
  --json JSON           all arguments as a JSON object
  --format NAME         the format of the answer, errors included
  --timeout SECONDS     how long it may take
  --select TEXT         only these fields of the result, as in items(id,user/login),total
  --output FILE         write the result to a file: bytes, images and sounds as they are, everything else as JSON
  --request R           an mcp.request.v0.1: JSON, @file or @-
  --artifact-root DIR   let the request refer to files below this folder
  --detach              order a durable operation as a task and print its id; `enfold tasks` does the rest
  --idempotency-key KEY run a mutation once for each key: a repeat prints the first result
  --tasks STORE         where tasks and first results are kept: a file, or nats://… (default .enfold/tasks.db beside the target)
  --provenance MODE     record the run (minimal or full)
  --store FILE          keep the record of the run in this SQLite file
  --key FILE            sign the record with this private key (PEM)
  --verbose             show the envelope's meta on standard error: where the result came from, when, with which headers;
                        of a handler that failed, its stack
  --help                the operation's own arguments"""

_OPTIONS: Final = (
    "--json",
    "--format",
    "--timeout",
    "--output",
    "--select",
    "--provenance",
    "--store",
    "--key",
    "--request",
    "--artifact-root",
    "--idempotency-key",
    "--tasks",
)


class Words:
    """The words after `call`, sorted: the operation, what is given to it, and our own options."""

    def __init__(self, words: list[str], flags: Collection[str] = ()) -> None:
        """`flags` are the arguments that are true or false: as `--name` they take no value but these two."""
        self.operation: str | None = None
        self.given: list[tuple[str, str]] = []  # ("--json" | "word" | "option", text); a flag is a name alone
        self.options: dict[str, str] = {}
        self.timeout: float | None = None
        self.help = False
        self.detach = False
        self.is_verbose = False
        self._all = words
        self._flags = flags
        self._rest = words[::-1]
        while self._rest:
            self._read_word(self._rest.pop())

    def for_arguments(self, flags: Callable[[], Collection[str]]) -> Words:
        """The same words, read again once it is known which arguments are true or false."""
        return Words(self._all, flags()) if any(kind == "option" for kind, _ in self.given) else self

    def _read_word(self, word: str) -> None:
        name, equals, value = word.partition("=")
        if word in ("-h", "--help"):
            self.help = True
        elif word == "--detach":
            self.detach = True
        elif word == "--verbose":
            self.is_verbose = True
        elif name in _OPTIONS:
            self._read_option(name, value if equals else self._rest.pop() if self._rest else None)
        elif name == "--":
            raise wrong("Unknown option --: it stands before the command of an MCP server")
        elif word.startswith("--"):
            self.given.append(("option", word[2:] if equals else self._with_value(name[2:])))
        elif self.operation is None and not equals and not word.startswith("@"):
            self.operation = word
        else:
            self.given.append(("word", word))

    def _with_value(self, name: str) -> str:
        """An argument written as `--name value`; `--name` alone where no value follows."""
        following = self._rest[-1] if self._rest else "--"
        is_alone = following not in ("true", "false") if name in self._flags else following.startswith("--")
        return name if is_alone else f"{name}={self._rest.pop()}"

    def _read_option(self, name: str, value: str | None) -> None:
        if value is None:
            raise wrong(f"{name} needs a value")
        if name == "--json":
            self.given.append(("--json", value))
        elif name == "--timeout":
            self.timeout = seconds(value)
        else:
            self.options[name] = value


def nearest_option(name: str) -> str | None:
    """The option of ours that a word was probably meant to be."""
    from enfold.nearest import nearest

    return nearest(name, (*_OPTIONS, "--detach", "--verbose", "--help"), 0.75)


def seconds(text: str) -> float:
    """The value of `--timeout`."""
    try:
        given = float(text)
    except ValueError:
        given = -1.0
    if not 0 <= given < float("inf"):
        raise wrong(f"--timeout needs a number of seconds, not {text!r}")
    return given


def read_text(value: str, stdin: TextIO) -> str:
    if not value.startswith("@"):
        return _checked_text(lambda: value, "An argument")
    if value == "@-":
        return _checked_text(stdin.read, "Standard input")
    from pathlib import Path  # which takes its time to load

    return _checked_text(lambda: Path(value[1:]).read_text(encoding="utf-8"), value[1:])


def _checked_text(read: Callable[[], str], what: str) -> str:
    try:
        text = read()
        text.encode()  # Python may keep bytes that are no text as halves of characters.
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise wrong(f"{what} cannot be read: {reason}") from None
    return text


def read_json(text: str, what: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise wrong(f"{what}: not JSON ({error})") from None


def wrong(message: str) -> CallError:
    return CallError("VALIDATION_ERROR", message)
