"""The words after `call`: read into the operation, its arguments as values, and our own options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TextIO

import msgspec

from enfold.errors import CallError
from enfold.operation import OperationSpec

USAGE: Final = """\
usage: call OPERATION [name=text] [name:=json] [@file] [options]

  name=text             an argument as text; it is converted where the operation wants a number or a truth value
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
  --verbose             show the envelope's meta on standard error: where the result came from, when, with which headers
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

    def __init__(self, words: list[str]) -> None:
        self.operation: str | None = None
        self.given: list[tuple[str, str]] = []  # ("--json" | "word", text)
        self.options: dict[str, str] = {}
        self.timeout: float | None = None
        self.help = False
        self.detach = False
        self.is_verbose = False
        rest = iter(words)
        for word in rest:
            self._read_word(word, rest)

    def _read_word(self, word: str, rest: Any) -> None:
        name, equals, value = word.partition("=")
        if word in ("-h", "--help"):
            self.help = True
        elif word == "--detach":
            self.detach = True
        elif word == "--verbose":
            self.is_verbose = True
        elif name in _OPTIONS:
            self._read_option(name, value if equals else next(rest, None))
        elif word.startswith("--"):
            raise wrong(f"Unknown option {name}: {_suggestion(name)}")
        elif self.operation is None and not equals and not word.startswith("@"):
            self.operation = word
        else:
            self.given.append(("word", word))

    def _read_option(self, name: str, value: str | None) -> None:
        if value is None:
            raise wrong(f"{name} needs a value")
        if name == "--json":
            self.given.append(("--json", value))
        elif name == "--timeout":
            self.timeout = seconds(value)
        else:
            self.options[name] = value


def _suggestion(name: str) -> str:
    from enfold.nearest import nearest

    near = nearest(name, (*_OPTIONS, "--detach", "--verbose", "--help"), 0.75)
    return f"did you mean {near}?" if near else f"write an argument of the operation as {name.lstrip('-')}=value"


def seconds(text: str) -> float:
    """The value of `--timeout`."""
    try:
        given = float(text)
    except ValueError:
        given = -1.0
    if not 0 <= given < float("inf"):
        raise wrong(f"--timeout needs a number of seconds, not {text!r}")
    return given


def read_arguments(given: Sequence[tuple[str, str]], stdin: TextIO) -> dict[str, Any]:
    """The input that words on a command line describe; a name given several times is an array."""
    whole: dict[str, Any] = {}
    named: dict[str, list[Any]] = {}
    for kind, text in given:
        if kind == "--json" or text.startswith("@"):
            whole.update(_read_object(text, stdin))
        else:
            name, value = _read_named(text, stdin)
            named.setdefault(name, []).append(value)
    return {**whole, **{name: values[0] if len(values) == 1 else values for name, values in named.items()}}


def with_arrays(given: dict[str, Any], spec: OperationSpec) -> dict[str, Any]:
    """The input with one text put into an array, where the operation wants an array and the text is none itself."""
    properties = spec.input_schema.get("properties", {})
    return {
        name: [value] if _is_one_item(value) and _wants_array(properties.get(name)) else value
        for name, value in given.items()
    }


def _is_one_item(value: Any) -> bool:
    return isinstance(value, str) and not value.lstrip().startswith("[")


def _wants_array(part: Any) -> bool:
    """Whether an array fits and text does not, as far as the schema itself says."""
    if not isinstance(part, dict):
        return False
    variants = part.get("anyOf") or part.get("oneOf") or [part]
    kinds = [variant.get("type") if isinstance(variant, dict) else None for variant in variants]
    return "array" in kinds and all(kind in ("array", "null") for kind in kinds)


def _read_object(text: str, stdin: TextIO) -> dict[str, Any]:
    value = read_json(read_text(text, stdin), "The arguments")
    if not isinstance(value, dict):
        raise wrong("The arguments must be a JSON object")
    return value


def _read_named(word: str, stdin: TextIO) -> tuple[str, Any]:
    name, equals, value = word.partition("=")
    if not equals or not name.strip(":"):
        raise wrong(f"{word!r} is not an argument: write name=value")
    if name.endswith(":"):
        return name[:-1], read_json(read_text(value, stdin), f'Argument "{name[:-1]}"')
    return name, read_text(value, stdin)


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
