"""One call as a command: read the words, run the operation, write its result, and tell what went wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from enfold.envelope import ResponseEnvelope, ResultWarning, error_of
from enfold.errors import CallError, code_row
from enfold.formats import DEFAULT_FORMAT, find_format
from enfold.operation import Context, Identity, OperationSpec, OperationType, Recording
from enfold.registry import Registry
from enfold.runtime import drive
from enfold.surfaces.command_line.help import USAGE, operation_help
from enfold.surfaces.command_line.words import Words, read_arguments, read_json, read_text, with_arrays, wrong
from enfold.surfaces.writing import encode_failure, encode_result

if TYPE_CHECKING:
    from enfold.provenance import Recorder
    from enfold.provenance.records import ArtifactRef

__all__ = ["run_command_line", "to_command_line"]

MakeRecorder = Callable[[Mapping[str, str]], "Recorder"]


def to_command_line(
    registry: Registry,
    arguments: Sequence[str],
    *,
    identity: Identity | None = None,
    recorder: MakeRecorder | None = None,
    stdin: TextIO | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
) -> int:
    """Run one call as a command and give its exit code; `arguments` are those after `call`.

    `recorder` makes, of the options `--store` and `--key`, what keeps provenance; without it none is recorded.
    """
    shell = Shell(registry, identity, recorder, stdin, stdout, stderr)
    try:
        call = shell.prepare(arguments)
        if isinstance(call, int):
            return call
        call.context.inline = True  # A `def` runs in this thread, and without an event loop.
        code: int = drive(shell.run(call), registry.needs_loop(call.spec.id))
    except (CallError, KeyboardInterrupt) as error:
        return shell.tell(error)
    return code


async def run_command_line(
    registry: Registry,
    arguments: Sequence[str],
    *,
    identity: Identity | None = None,
    recorder: MakeRecorder | None = None,
    stdin: TextIO | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
) -> int:
    """The same in the event loop that the registry's sources live in."""
    shell = Shell(registry, identity, recorder, stdin, stdout, stderr)
    try:
        call = shell.prepare(arguments)
        return call if isinstance(call, int) else await shell.run(call)
    except CallError as error:
        return shell.tell(error)


class PreparedCall(msgspec.Struct):
    """What is to be run, and how its result and its failure are written, each as JSON text."""

    spec: OperationSpec
    input: Mapping[str, Any]
    context: Context
    write: Callable[[ResponseEnvelope[Any]], bytes]
    write_error: Callable[[CallError], bytes] | None = None


class Shell:
    """The person or program that calls: who they are, and the streams between us."""

    def __init__(
        self,
        registry: Registry,
        identity: Identity | None,
        recorder: MakeRecorder | None,
        stdin: TextIO | None,
        stdout: TextIO | None,
        stderr: TextIO | None,
    ) -> None:
        self._registry = registry.guarded()
        self._identity = identity
        self._recorder = recorder
        self._stdin = stdin or sys.stdin
        self._out = stdout or sys.stdout
        self._messages = stderr or sys.stderr

    def prepare(self, arguments: Sequence[str]) -> PreparedCall | int:
        """The call that the words describe; where they ask for help, it is printed, and the exit code given."""
        words = Words(list(arguments))
        if "--request" in words.options:
            return self._prepare_request(words)
        if words.operation is None:
            print(USAGE, file=self._out)
            return 0 if words.help else code_row("VALIDATION_ERROR").exit_code
        spec = _find(self._registry, words.operation)
        if words.help:
            print(operation_help(spec), file=self._out)
            return 0
        return self._prepare_call(words, spec)

    def _prepare_call(self, words: Words, spec: OperationSpec) -> PreparedCall:
        chosen = find_format(words.options.get("--format", DEFAULT_FORMAT))
        context = Context(identity=self._identity, timeout=words.timeout)
        if "--provenance" in words.options and self._recorder is not None:
            context.recording = self._recording(words, self._recorder(words.options))

        def write_error(error: CallError) -> bytes:
            return encode_failure(chosen.write_error(error, spec.id))

        try:
            given = with_arrays(read_arguments(words.given, self._stdin), spec)
        except CallError as error:
            if "--format" in words.options:
                self._print(write_error(error))
            raise
        return PreparedCall(
            spec,
            given,
            context,
            lambda envelope: encode_result(chosen.write(envelope, spec)),
            write_error if "--format" in words.options else None,
        )

    def _recording(self, words: Words, recorder: Recorder) -> Recording | None:
        from enfold.provenance import options_from_mode

        return recorder.begin(
            options_from_mode(words.options["--provenance"]),
            adapter="cli",
            identity=self._identity.id if self._identity else "",
            writer=find_format(words.options.get("--format", DEFAULT_FORMAT)),
        )

    def _prepare_request(self, words: Words) -> PreparedCall:
        """An `mcp.request.v0.1`; its answer is always in the format that goes with it."""
        from enfold.formats.mcp_request_v0_1 import ANSWER_FORMAT
        from enfold.surfaces.requests import RequestCall

        try:
            asked = RequestCall(
                self._registry,
                read_json(read_text(words.options["--request"], self._stdin), "The request"),
                adapter="cli",
                identity=self._identity,
                timeout=words.timeout,
                recorder=self._recorder(words.options) if self._recorder is not None else None,
                open_artifacts=lambda references: _opened(references, words.options.get("--artifact-root")),
            )
        except CallError as error:
            self._print(encode_failure(find_format(ANSWER_FORMAT).write_error(error, "")))
            raise
        return PreparedCall(
            asked.spec,
            asked.input,
            asked.context,
            lambda envelope: encode_result(asked.answer(envelope)),
            lambda error: encode_failure(asked.refusal(error)),
        )

    async def run(self, call: PreparedCall) -> int:
        """Run it, write what comes, and give the exit code."""
        try:
            if call.spec.type is OperationType.SUBSCRIPTION:
                return await self._follow(call)
            return self._write(call, await self._registry.execute(call.spec.id, call.input, call.context))
        except CallError as error:
            if call.write_error is not None:
                self._print(call.write_error(error))
            raise
        finally:
            if call.context.recording is not None and call.context.recording.is_kept:
                print(f"recorded as run {call.context.recording.run_id}", file=self._messages)

    async def _follow(self, call: PreparedCall) -> int:
        worst = 0
        async for envelope in self._registry.subscribe(call.spec.id, call.input, call.context):
            worst = max(worst, self._write(call, envelope))
            self._out.flush()
        return worst

    def _write(self, call: PreparedCall, envelope: ResponseEnvelope[Any]) -> int:
        self._print(call.write(envelope))
        if envelope.warnings:
            self._warn(envelope.warnings)
        if not envelope.is_error:
            return 0
        self.tell(error_of(envelope))
        return code_row("EXECUTION_ERROR").exit_code

    def _warn(self, warnings: Iterable[ResultWarning]) -> None:
        """A line for each change made to a result, and for each place where it is not what was promised."""
        for warning in warnings:
            times = f" ({warning.count} times)" if warning.count > 1 else ""
            print(f"warning: {printable(warning.sentence)}{times}", file=self._messages)

    def _print(self, text: bytes) -> None:
        """One line for a program, several for a person at a terminal."""
        indent = 2 if self._out.isatty() else None
        try:
            print((text if indent is None else msgspec.json.format(text, indent=indent)).decode(), file=self._out)
        except UnicodeEncodeError:  # Its encoding lacks a character that JSON can name.
            import json

            print(json.dumps(json.loads(text), indent=indent), file=self._out)

    def tell(self, error: CallError | KeyboardInterrupt) -> int:
        """Say what went wrong, and give its exit code."""
        told = error if isinstance(error, CallError) else CallError("ABORTED", "interrupted")
        print(f"{told.code}: {printable(told.message)}", file=self._messages)
        return told.row.exit_code


def printable(text: str) -> str:
    """The text without what a terminal would obey: a stranger's words may hold escapes and line breaks."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " if char == "\n" else repr(char)[1:-1] for char in text)


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


def _opened(references: Iterable[ArtifactRef], root: str | None) -> list[Any]:
    """The files that references name, read below the root; without a root nothing is opened."""
    if root is None:
        return list(references)
    from enfold.provenance import opened_artifact

    try:
        return [opened_artifact(reference, Path(root)) for reference in references]
    except (OSError, ValueError) as error:
        raise wrong(f"An artifact cannot be used: {error}") from None
