"""Operations as a command line: arguments and help from the schema, results on stdout, messages on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import msgspec

from enfold.envelope import ResponseEnvelope, error_text
from enfold.errors import CallError, code_row
from enfold.formats import Format, find_format
from enfold.operation import Context, Identity, OperationSpec, OperationType, Recording
from enfold.registry import Registry
from enfold.surfaces.writing import encode_failure, encode_result

if TYPE_CHECKING:
    from enfold.provenance import Recorder
    from enfold.provenance.records import ArtifactRef

__all__ = ["operation_help", "read_arguments", "to_command_line"]

USAGE: Final = """\
usage: call OPERATION [name=text] [name:=json] [@file] [--json JSON] [--format NAME] [--timeout SECONDS]

  name=text     an argument as text; it is converted where the operation wants a number or a truth value
  name:=json    an argument as JSON
  name=@file    an argument whose text is in a file; name:=@file for JSON
  @file         all arguments as a JSON object in a file; @- reads standard input
  --json JSON   all arguments as a JSON object
  --request R   an mcp.request.v0.1: JSON, @file or @-; --artifact-root DIR lets it refer to files below DIR
  --provenance MODE   record the run (minimal or full); --store FILE keeps the record, --key FILE signs it
  --help        the operation's own arguments"""


def to_command_line(
    registry: Registry,
    arguments: Sequence[str],
    *,
    identity: Identity | None = None,
    recorder: Callable[[Mapping[str, str]], Recorder] | None = None,
    stdin: TextIO | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
) -> int:
    """Run one call as a command and give its exit code; `arguments` are those after `call`.

    `recorder` makes, of the options `--store` and `--key`, what keeps provenance; without it none is recorded.
    """
    out, messages = stdout or sys.stdout, stderr or sys.stderr
    try:
        command = _Command(list(arguments))
        return _run(registry, command, identity, recorder, stdin or sys.stdin, out)
    except CallError as error:
        print(f"{error.code}: {error.message}", file=messages)
        return code_row(error.code).exit_code
    except KeyboardInterrupt:
        print("ABORTED: interrupted", file=messages)
        return code_row("ABORTED").exit_code


def _run(
    registry: Registry,
    command: _Command,
    identity: Identity | None,
    recorder: Callable[[Mapping[str, str]], Recorder] | None,
    stdin: TextIO,
    out: TextIO,
) -> int:
    if "--request" in command.options:
        return _answer_request(registry, command, identity, recorder, stdin, out)
    if command.operation is None:
        print(USAGE, file=out)
        return 0 if command.help else code_row("VALIDATION_ERROR").exit_code
    spec = _find(registry, command.operation)
    if command.help:
        print(operation_help(spec), file=out)
        return 0
    chosen = find_format(command.options.get("--format", "result"))
    context = Context(identity=identity, timeout=command.timeout, inline=True)
    if "--provenance" in command.options and recorder is not None:
        context.recording = _recording(command, recorder(command.options), identity)
    try:
        given = _with_arrays(read_arguments(command.given, stdin), spec)
        if spec.type is OperationType.SUBSCRIPTION:
            return _follow(registry, spec, given, context, chosen, out)
        return _call(registry, spec, given, context, chosen, out)
    except CallError as error:
        if "--format" in command.options:
            _print(encode_failure(chosen.write_error(error, spec.id)), out)
        raise


def _call(
    registry: Registry, spec: OperationSpec, given: dict[str, Any], context: Context, chosen: Format, out: TextIO
) -> int:
    envelope = registry.call_now(spec.id, given, context)
    return _write(envelope, spec, chosen, out)


def _follow(
    registry: Registry, spec: OperationSpec, given: dict[str, Any], context: Context, chosen: Format, out: TextIO
) -> int:
    import asyncio

    async def follow() -> int:
        worst = 0
        async for envelope in registry.follow(spec.id, given, context):
            worst = max(worst, _write(envelope, spec, chosen, out))
            out.flush()
        return worst

    return asyncio.run(follow())


def _write(envelope: ResponseEnvelope[Any], spec: OperationSpec, chosen: Format, out: TextIO) -> int:
    _print(encode_result(chosen.write(envelope, spec)), out)
    if not envelope.is_error:
        return 0
    print(f"EXECUTION_ERROR: {error_text(envelope)}", file=sys.stderr)
    return code_row("EXECUTION_ERROR").exit_code


def _print(text: bytes, out: TextIO) -> None:
    """One line for a program, several for a person at a terminal."""
    indent = 2 if out.isatty() else None
    try:
        print((text if indent is None else msgspec.json.format(text, indent=indent)).decode(), file=out)
    except UnicodeEncodeError:  # Its encoding lacks a character that JSON can name.
        import json

        print(json.dumps(json.loads(text), indent=indent), file=out)


def _find(registry: Registry, name: str) -> OperationSpec:
    try:
        return registry.find(name)
    except CallError as error:
        near = _near(name, registry)
        raise CallError(error.code, f"{error.message}{f'. Did you mean {near}?' if near else ''}") from None


def _near(name: str, registry: Registry) -> str | None:
    from difflib import get_close_matches

    ids = {key: spec.id for spec in registry.list() for key in (spec.name, spec.id)}
    found = get_close_matches(name, ids, 1)
    return ids[found[0]] if found else None


def _recording(command: _Command, recorder: Recorder, identity: Identity | None) -> Recording | None:
    from enfold.provenance import options_from_mode

    return recorder.begin(
        options_from_mode(command.options["--provenance"]),
        adapter="cli",
        identity=identity.id if identity else "",
        wraps=command.options.get("--format") == "mcp_envelope_v0_1",
    )


def _answer_request(
    registry: Registry,
    command: _Command,
    identity: Identity | None,
    recorder: Callable[[Mapping[str, str]], Recorder] | None,
    stdin: TextIO,
    out: TextIO,
) -> int:
    """Run an `mcp.request.v0.1`; its answer is always in the format that goes with it."""
    from enfold.formats import mcp_envelope_v0_1
    from enfold.surfaces.requests import RequestCall

    asked: RequestCall | None = None
    try:
        asked = RequestCall(
            registry,
            _json(_text(command.options["--request"], stdin), "The request"),
            adapter="cli",
            identity=identity,
            timeout=command.timeout,
            inline=True,
            recorder=recorder(command.options) if recorder is not None else None,
            open_artifacts=lambda references: _opened(references, command.options.get("--artifact-root")),
        )
        envelope = registry.call_now(asked.spec.id, asked.input, asked.context)
        _print(encode_result(asked.answer(envelope)), out)
    except CallError as error:
        refusal = mcp_envelope_v0_1.write_error(error, "") if asked is None else asked.refusal(error)
        _print(encode_failure(refusal), out)
        raise
    return code_row("EXECUTION_ERROR").exit_code if envelope.is_error else 0


def _opened(references: Iterable[ArtifactRef], root: str | None) -> list[Any]:
    """The files that references name, read below the root; without a root nothing is opened."""
    if root is None:
        return list(references)
    from enfold.provenance import opened_artifact

    try:
        return [opened_artifact(reference, Path(root)) for reference in references]
    except (OSError, ValueError) as error:
        raise _wrong(f"An artifact cannot be used: {error}") from None


_OPTIONS: Final = (
    "--json",
    "--format",
    "--timeout",
    "--provenance",
    "--store",
    "--key",
    "--request",
    "--artifact-root",
)


class _Command:
    """The words after `call`, sorted: the operation, what is given to it, and our own options."""

    def __init__(self, words: list[str]) -> None:
        self.operation: str | None = None
        self.given: list[tuple[str, str]] = []  # ("--json" | "word", text)
        self.options: dict[str, str] = {}
        self.timeout: float | None = None
        self.help = False
        rest = iter(words)
        for word in rest:
            self._take(word, rest)

    def _take(self, word: str, rest: Any) -> None:
        name, equals, value = word.partition("=")
        if word in ("-h", "--help"):
            self.help = True
        elif name in _OPTIONS:
            self._option(name, value if equals else next(rest, None))
        elif word.startswith("--"):
            raise _wrong(f"Unknown option {name}: write an argument of the operation as {name.lstrip('-')}=value")
        elif self.operation is None and not equals and not word.startswith("@"):
            self.operation = word
        else:
            self.given.append(("word", word))

    def _option(self, name: str, value: str | None) -> None:
        if value is None:
            raise _wrong(f"{name} needs a value")
        if name == "--json":
            self.given.append(("--json", value))
        elif name == "--timeout":
            self.timeout = _seconds(value)
        else:
            self.options[name] = value


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise _wrong(f"--timeout needs a number of seconds, not {text!r}")
    return seconds


def read_arguments(given: Sequence[tuple[str, str]], stdin: TextIO) -> dict[str, Any]:
    """The input that words on a command line describe; a name given several times is an array."""
    whole: dict[str, Any] = {}
    named: dict[str, list[Any]] = {}
    for kind, text in given:
        if kind == "--json" or text.startswith("@"):
            whole.update(_object(text, stdin))
        else:
            name, value = _named(text, stdin)
            named.setdefault(name, []).append(value)
    return {**whole, **{name: values[0] if len(values) == 1 else values for name, values in named.items()}}


def _with_arrays(given: dict[str, Any], spec: OperationSpec) -> dict[str, Any]:
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


def _object(text: str, stdin: TextIO) -> dict[str, Any]:
    value = _json(_text(text, stdin), "The arguments")
    if not isinstance(value, dict):
        raise _wrong("The arguments must be a JSON object")
    return value


def _named(word: str, stdin: TextIO) -> tuple[str, Any]:
    name, equals, value = word.partition("=")
    if not equals or not name.strip(":"):
        raise _wrong(f"{word!r} is not an argument: write name=value")
    if name.endswith(":"):
        return name[:-1], _json(_text(value, stdin), f'Argument "{name[:-1]}"')
    return name, _text(value, stdin)


def _text(value: str, stdin: TextIO) -> str:
    if not value.startswith("@"):
        return _whole_text(lambda: value, "An argument")
    if value == "@-":
        return _whole_text(stdin.read, "Standard input")
    return _whole_text(lambda: Path(value[1:]).read_text(encoding="utf-8"), value[1:])


def _whole_text(read: Callable[[], str], what: str) -> str:
    try:
        text = read()
        text.encode()  # Python may keep bytes that are no text as halves of characters.
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise _wrong(f"{what} cannot be read: {reason}") from None
    return text


def _json(text: str, what: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _wrong(f"{what}: not JSON ({error})") from None


def _wrong(message: str) -> CallError:
    return CallError("VALIDATION_ERROR", message)


# --- help ---------------------------------------------------------------------------------------------------------


def operation_help(spec: OperationSpec) -> str:
    """The operation's help, from its schema and words."""
    schema = spec.input_schema
    required = schema.get("required", [])
    lines = [f"{spec.id} ({spec.type.value})"]
    if spec.description:
        lines += ["", spec.description]
    lines += ["", f"usage: call {spec.id}{_synopsis(schema, required)}"]
    rows = [_argument_row(name, part, name in required) for name, part in schema.get("properties", {}).items()]
    if rows:
        width = max(len(left) for left, _ in rows)
        lines += ["", "arguments:", *(f"  {left:<{width}}  {right}".rstrip() for left, right in rows)]
    return "\n".join(lines)


def _synopsis(schema: dict[str, Any], required: list[str]) -> str:
    words = [name if name in required else f"[{name}]" for name in schema.get("properties", {})]
    return "".join(f" {word[:-1]}=…]" if word.startswith("[") else f" {word}=…" for word in words)


def _argument_row(name: str, part: Any, is_required: bool) -> tuple[str, str]:
    part = part if isinstance(part, dict) else {}
    notes = [part["description"]] if part.get("description") else []
    if is_required:
        notes.append("(required)")
    elif "default" in part:
        notes.append(f"(default {msgspec.json.encode(part['default']).decode()})")
    return f"{name}  {_type_text(part)}", " ".join(notes)


def _type_text(part: dict[str, Any]) -> str:
    """A short word for a type: `integer`, `"low" | "high"`, `array of string`."""
    if "const" in part:
        return msgspec.json.encode(part["const"]).decode()
    if "enum" in part:
        return " | ".join(msgspec.json.encode(value).decode() for value in part["enum"])
    for union in ("anyOf", "oneOf"):
        if union in part:
            return " | ".join(_type_text(variant) for variant in part[union] if isinstance(variant, dict))
    kind = part.get("type", str(part["$ref"]).rpartition("/")[2] if "$ref" in part else "any")
    if kind == "array" and isinstance(part.get("items"), dict):
        return f"array of {_type_text(part['items'])}"
    return " | ".join(kind) if isinstance(kind, list) else str(kind)
