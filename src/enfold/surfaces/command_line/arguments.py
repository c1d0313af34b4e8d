"""The words after `call`: read into the operation, its arguments as values, and our own options."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, TextIO, TypeAlias

import msgspec

from enfold.errors import CallError, nearest
from enfold.operations import OperationSpec
from enfold.schema.files import FileArgument, file_argument
from enfold.surfaces.command_line.help import fields_of, variants

USAGE: Final = """\
usage: call OPERATION [name=text] [name:=json] [@file] [options]

  name=text             an argument as text; converted if the operation expects a number or boolean
  --NAME text           the same; --NAME alone is true, --no-NAME false. The options below take precedence over arguments with the same name
  name.field=text       a field of an argument that is an object; name.0=text an item of one that is an array
  name:=json            an argument as JSON
  name=@file            an argument whose text, or whose bytes, are in a file; name:=@file for JSON; @- reads standard input
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
  --tasks STORE         where to store tasks and idempotency keys: a file, or nats://… (default .enfold/tasks.db next to the target)
  --provenance MODE     record the run (minimal or full)
  --store FILE          keep the record of the run in this SQLite file
  --key FILE            sign the record with this private key (PEM)
  --verbose             show the envelope's meta on standard error: where the result came from, when, with which headers;
                        of a handler that failed, its stack
  --help                the operation's own arguments"""

_OPTIONS: Final = (
    "--json", "--format", "--timeout", "--output", "--select", "--provenance", "--store", "--key", "--request",
    "--artifact-root", "--idempotency-key", "--tasks",
)  # fmt: skip


class Words:
    """The parsed words after `call`: the operation, its arguments, and the options of the command."""

    def __init__(self, words: list[str], flags: Collection[str] = ()) -> None:
        """`flags` are the boolean arguments: as `--name` they take no value but true and false."""
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
        """Return the same words, read again with the boolean arguments known."""
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
            raise wrong("Unknown option --: use it before the command of an MCP server")
        elif word.startswith("--"):
            self.given.append(("option", word[2:] if equals else self._with_value(name[2:])))
        elif self.operation is None and not equals and not word.startswith("@"):
            self.operation = word
        else:
            self.given.append(("word", word))

    def _with_value(self, name: str) -> str:
        """Return an argument written as `--name value`, or `--name` if no value follows."""
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
    """Return the option that a word was probably meant to be."""
    return nearest(name, (*_OPTIONS, "--detach", "--verbose", "--help"), 0.75)


def seconds(text: str) -> float:
    """Parse the value of `--timeout`."""
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
        raise _unreadable(what, error) from None
    return text


def _unreadable(what: str, error: OSError | ValueError) -> CallError:
    reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
    is_missing = isinstance(error, FileNotFoundError)
    advice = """ (text that starts with @ is written as JSON: name:='"@text"')""" if is_missing else ""
    return wrong(f"{what} cannot be read: {reason}{advice}")


def _read_file(value: str, stdin: TextIO, file: FileArgument) -> Any:
    """Read a file or standard input as an argument's value."""
    from pathlib import Path  # which takes its time to load

    if value == "@-":
        buffer = getattr(stdin, "buffer", None)  # a caller in this process may have given text
        return file.value(stdin.read().encode() if buffer is None else buffer.read(), None)
    path = Path(value[1:])
    try:
        return file.value(path.read_bytes(), path.name)
    except (OSError, ValueError) as error:
        raise _unreadable(value[1:], error) from None


def read_json(text: str, what: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise wrong(f"{what}: not JSON ({error})") from None


def wrong(message: str) -> CallError:
    return CallError("VALIDATION_ERROR", message)


_MAX_DIGITS: Final = 10  # of the number of an item

Schema: TypeAlias = dict[str, Any]
Path: TypeAlias = tuple[str, ...]


def read_arguments(given: Sequence[tuple[str, str]], stdin: TextIO, spec: OperationSpec) -> dict[str, Any]:
    """Build the input from words: a repeated name is an array, `person.name` a field of `person`."""
    fields = _Fields(spec.input_schema)
    whole: dict[str, Any] = {}
    named: dict[Path, list[Any]] = {}
    for kind, text in given:
        if kind == "--json" or (kind == "word" and text.startswith("@")):
            whole.update(_read_object(text, stdin))
        else:
            name, value = _read_named(_option(text, fields) if kind == "option" else text, stdin, fields)
            named.setdefault(fields.path(name), []).append(value)
    # What is given whole comes before its fields.
    for path in sorted(named, key=len):
        values = named[path]
        fields.put(whole, path, values[0] if len(values) == 1 else values)
    return {name: fields.item_or_array(value, (name,)) for name, value in whole.items()}


def flags_of(spec: OperationSpec) -> set[str]:
    """Return the boolean arguments, as they may be written after `--`."""
    fields = _Fields(spec.input_schema)
    names = {name for name, _, _ in fields_of(spec.input_schema) if fields.is_flag(name)}
    spelled = names | {name.replace("_", "-") for name in names}
    return spelled | {f"no-{name}" for name in spelled}


def _read_object(text: str, stdin: TextIO) -> dict[str, Any]:
    value = read_json(read_text(text, stdin), "The arguments")
    if not isinstance(value, dict):
        raise wrong("The arguments must be a JSON object")
    return value


def _read_named(word: str, stdin: TextIO, fields: _Fields) -> tuple[str, Any]:
    name, equals, value = word.partition("=")
    if not equals or not all(name.removesuffix(":").split(".")):
        raise wrong(f"{word!r} is not an argument: write name=value")
    if name.endswith(":"):
        return name[:-1], read_json(read_text(value, stdin), f'Argument "{name[:-1]}"')
    if value.startswith("@") and (file := fields.file(name)) is not None:
        return name, _read_file(value, stdin, file)
    return name, read_text(value, stdin)


def _option(text: str, fields: _Fields) -> str:
    """Return an argument that was written as an option, as `name=value`."""
    name, equals, value = text.partition("=")
    if equals and fields.has(name):
        return f"{fields.spelled(name)}={value}"
    if fields.is_flag(name):
        return f"{fields.spelled(name)}=true"
    if name.startswith("no-") and fields.is_flag(name[3:]):
        return f"{fields.spelled(name[3:])}=false"
    if not fields.has(name) and (near := nearest_option(f"--{name}")):
        raise wrong(f"Unknown option --{name}: did you mean {near}?")
    if not equals:
        raise wrong(f"--{name} needs a value")
    return text


class _Fields:
    """What an operation takes, by path: the parts of its schema, and where a value goes."""

    def __init__(self, schema: Schema) -> None:
        self._root = schema

    def has(self, name: str) -> bool:
        """Whether an argument has this name, or that of which this is a field."""
        known = self._properties(self._root)
        plain = self.spelled(name).removesuffix(":")
        return plain in known or plain.partition(".")[0] in known

    def spelled(self, name: str) -> str:
        """Return the operation's spelling of a name: a shell uses dashes where Python has underscores."""
        known = self._properties(self._root)
        top = name.removesuffix(":").partition(".")[0]
        own = top.replace("-", "_")
        return own + name[len(top) :] if top not in known and own in known else name

    def is_flag(self, name: str) -> bool:
        """Whether an argument may be true or false."""
        part = self._properties(self._root).get(self.spelled(name))
        return any(each.get("type") == "boolean" for each in variants(part, self._root))

    def file(self, name: str) -> FileArgument | None:
        """Return how a value takes the bytes of a file; None if it takes text."""
        part: Any = self._root
        for key in self.path(name):
            part = self._below(part, key)
        return file_argument(part, self._root)

    def path(self, name: str) -> Path:
        """Return the keys that lead to a value; a field with a dot in its name is one key."""
        part: Any = self._root
        keys: list[str] = []
        while name:
            known = self._properties(part)
            parts = name.split(".")
            heads = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
            key = next((head for head in heads if head in known), parts[0])
            keys.append(key)
            name = name[len(key) + 1 :]
            part = self._below(part, key)
        return tuple(keys)

    def put(self, whole: dict[str, Any], path: Path, value: Any) -> None:
        """Put a value at its place; objects and arrays on the way there are made."""
        container: Any = whole
        part: Any = self._root
        for depth, key in enumerate(path[:-1]):
            part = self._below(part, key)
            is_array = _is_index(path[depth + 1]) and self._wants_array(part)
            inner = container.get(key) if isinstance(container, dict) else _item(container, key, path)
            if inner is None:
                inner = [] if is_array else {}
            if not isinstance(inner, dict) and not (isinstance(inner, list) and _is_index(path[depth + 1])):
                raise wrong(f"{'.'.join(path[: depth + 1])} is given both as a whole and by {'.'.join(path)}")
            container = _assign(container, key, inner.copy(), path)
        _assign(container, path[-1], self.item_or_array(value, path), path)

    def item_or_array(self, value: Any, path: Path) -> Any:
        """Put a single text or object into an array if the schema wants one and does not accept it alone."""
        part: Any = self._root
        for key in path:
            part = self._below(part, key)
        is_one_item = isinstance(value, dict) or (isinstance(value, str) and not value.lstrip().startswith("["))
        return [value] if is_one_item and self._wants_array(part) else value

    def _wants_array(self, part: Any) -> bool:
        """Whether an array fits and text does not, as far as the schema itself says."""
        kinds = [variant.get("type") for variant in variants(part, self._root)]
        return "array" in kinds and all(kind in ("array", "null") for kind in kinds)

    def _below(self, part: Any, key: str) -> Any:
        """Return the schema of a field, or of an item."""
        for variant in variants(part, self._root):
            found = self._properties(variant).get(key)
            found = variant.get("items" if _is_index(key) else "additionalProperties") if found is None else found
            if isinstance(found, dict):
                return found
        return {}

    def _properties(self, part: Any) -> dict[str, Any]:
        return {name: field for each in variants(part, self._root) for name, field, _ in fields_of(each)}


def _is_index(key: str) -> bool:
    return key.isdecimal() and len(key) < _MAX_DIGITS


def _item(array: list[Any], key: str, path: Path) -> Any:
    if not _is_index(key) or int(key) > len(array):
        raise wrong(f"{'.'.join(path)}: give the items of an array in order, from 0")
    return array[int(key)] if int(key) < len(array) else None


def _assign(container: Any, key: str, value: Any, path: Path) -> Any:
    """Set a field, or an item of an array; gives the value."""
    if isinstance(container, dict):
        container[key] = value
    elif _item(container, key, path) is None and int(key) == len(container):
        container.append(value)
    else:
        container[int(key)] = value
    return value
