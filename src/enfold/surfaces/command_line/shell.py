"""One call as a command: parse the words, run the operation, print its result or error."""

from __future__ import annotations

import sys
from binascii import a2b_base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, TextIO, TypedDict, Unpack

import msgspec

from enfold.envelope import MCPResponseMeta, ResponseEnvelope, error_of, to_wire
from enfold.envelope.content import AudioContent, EmbeddedResource, ImageContent
from enfold.errors import CallError, code_row, printable, printable_json, printable_lines, safe_code
from enfold.formats import DEFAULT_FORMAT, find_format
from enfold.observability.observers import Watch
from enfold.observability.records import SpanStart
from enfold.operations import Context, Identity, OperationSpec, OperationType
from enfold.operations.context import Invocation
from enfold.runtime.handlers import drive
from enfold.runtime.registry import Registry
from enfold.surfaces.command_line.arguments import USAGE, Words, flags_of, read_arguments, read_json, read_text, wrong
from enfold.surfaces.command_line.help import operation_help
from enfold.surfaces.introspection import introduce
from enfold.surfaces.responses import encode_failure, encode_result

if TYPE_CHECKING:
    from enfold.operations.operation import RecordedRun
    from enfold.provenance import Recorder
    from enfold.provenance.records import ArtifactRef
    from enfold.surfaces.command_line.terminal import ProgressLine
    from enfold.tasks import Tasks

_LINE: Final = 80  # a result of so many bytes fits on one line of a terminal
_NO_WORKER: Final = "no process runs tasks of this store: start `enfold serve` or `enfold work`"

MakeRecorder = Callable[[Mapping[str, str]], "Recorder"]
# The tasks of a registry, of which this process runs what it waits for alone; `--tasks` names their store.
OpenTasks = Callable[["Registry", str | None], AbstractAsyncContextManager["Tasks | None"]]


class ShellOptions(TypedDict, total=False):
    """The caller, the streams, and what a program passes to the calls of its command line."""

    identity: Identity | None
    recorder: MakeRecorder | None  # makes, of `--store` and `--key`, what keeps provenance; else none is recorded
    stdin: TextIO | None
    stdout: TextIO | None
    stderr: TextIO | None
    caller: str  # what stands before the operation on the user's command line, for the help: `call`
    tasks: OpenTasks | None  # opens the store for `--detach`


def to_command_line(registry: Registry, arguments: Sequence[str], **options: Unpack[ShellOptions]) -> int:
    """Run one call as a command and return its exit code; `arguments` are the words after `call`."""
    shell = Shell(registry, options)
    try:
        call = shell.prepare(arguments)
        if isinstance(call, int):
            return call
        call.context.inline = True  # A `def` runs in this thread, and without an event loop.
        code: int = drive(
            registry.services.lifetime.during(shell.run(call)), call.needs_loop or registry.needs_loop(call.spec.id)
        )
    except (CallError, KeyboardInterrupt) as error:
        return shell.tell(error)
    return code


async def run_command_line(registry: Registry, arguments: Sequence[str], **options: Unpack[ShellOptions]) -> int:
    """Run `to_command_line` in a program that has an event loop, such as one whose sources hold connections."""
    shell = Shell(registry, options)
    try:
        call = shell.prepare(arguments)
        return call if isinstance(call, int) else await registry.services.lifetime.during(shell.run(call))
    except CallError as error:
        return shell.tell(error)


class PreparedCall(msgspec.Struct):
    """What is to be run, and how its result and its failure are written, each as JSON text."""

    spec: OperationSpec
    input: Mapping[str, Any]
    context: Context
    write: Callable[[ResponseEnvelope[Any]], bytes]
    write_error: Callable[[CallError], bytes] | None = None
    output: str | None = None  # the file that takes the result
    is_verbose: bool = False  # whether the envelope's meta is shown, too
    is_stored: bool = False  # whether a record of provenance outlives the command
    detaches: bool = False  # whether it is only ordered, as a task
    store: str | None = None  # where its task is kept

    @property
    def needs_loop(self) -> bool:
        return self.detaches or self.context.unused_key is not None or self.spec.durable == "required"


class Shell:
    """The person or program that calls: who they are, and the streams between us."""

    def __init__(self, registry: Registry, options: ShellOptions) -> None:
        introduce(registry, {"command_line": "enfold call TARGET {id}"})
        self._identity = options.get("identity")
        self._registry = registry.guarded(has_identities=self._identity is not None, surface="shell")
        self._recorder = options.get("recorder")
        self._stdin = options.get("stdin") or sys.stdin
        self._out = options.get("stdout") or sys.stdout
        self._messages = options.get("stderr") or sys.stderr
        self._caller = options.get("caller", "call")
        self._open_tasks = options.get("tasks")
        self._line: ProgressLine | None = None  # at a terminal

    def prepare(self, arguments: Sequence[str]) -> PreparedCall | int:
        """Return the call that the words describe; if they ask for help, print it and return the exit code."""
        try:
            return self._read(arguments)
        except CallError as error:
            caller = None if self._identity is None else self._identity.id
            self._registry.services.observers.refused("shell", error.code, caller=caller)
            raise

    def _read(self, arguments: Sequence[str]) -> PreparedCall | int:
        words = Words(list(arguments))
        if words.detach:
            _check_detached(words)
        if "--request" in words.options:
            return self._prepare_tool_request(words)
        if words.operation is None:
            if not words.help:
                first = next((spec.id for spec in self._registry.visible(self._identity)), "OPERATION")
                raise wrong(f"call needs an operation, as in: {self._caller} {first}")
            print(USAGE.replace("usage: call", f"usage: {self._caller}"), file=self._out)
            return 0
        spec = self._registry.find(words.operation, self._identity)
        if words.help:
            print(printable_lines(operation_help(spec, self._caller)), file=self._out)
            return 0
        return self._prepare_call(words.for_arguments(lambda: flags_of(spec)), spec)

    def _prepare_call(self, words: Words, spec: OperationSpec) -> PreparedCall:
        chosen = find_format(words.options.get("--format", DEFAULT_FORMAT))
        context = self._context(words)
        context.select = words.options.get("--select")
        if "--provenance" in words.options and self._recorder is not None:
            context.recording = self._recording(words, self._recorder(words.options))

        def write_error(error: CallError) -> bytes:
            return encode_failure(chosen.write_error(error, spec.id))

        try:
            given = read_arguments(words.given, self._stdin, spec)
        except CallError as error:
            if "--format" in words.options:
                self._print(write_error(error))
            raise
        if "--output" in words.options:
            _check_output(words.options["--output"], spec)
        return PreparedCall(
            spec,
            given,
            context,
            lambda envelope: encode_result(chosen.write, envelope, spec),
            write_error if "--format" in words.options else None,
            output=words.options.get("--output"),
            detaches=words.detach,
            store=words.options.get("--tasks"),
            is_stored="--store" in words.options,
            is_verbose=words.is_verbose,
        )

    def _context(self, words: Words) -> Context:
        """Create the context of a call; at a terminal, the user answers questions and sees progress."""
        key = words.options.get("--idempotency-key")
        if key is not None:
            from enfold.operations.idempotency import check_key

            check_key(key)
        context = Context(identity=self._identity, timeout=words.timeout, idempotency_key=key)
        if self._messages.isatty():
            from enfold.surfaces.command_line.terminal import ProgressLine, TerminalPeer

            self._line = ProgressLine(self._messages)
            context.hear(self._line.hear)
            if self._stdin.isatty():
                context.invocation = Invocation(TerminalPeer(self._stdin, self._messages, self._line))
        return context

    def _recording(self, words: Words, recorder: Recorder) -> RecordedRun | None:
        from enfold.provenance import options_from_mode

        return recorder.begin(
            options_from_mode(words.options["--provenance"]),
            adapter="cli",
            identity=self._identity.id if self._identity else "",
            writer=find_format(words.options.get("--format", DEFAULT_FORMAT)),
        )

    def _prepare_tool_request(self, words: Words) -> PreparedCall:
        """Prepare an `mcp.request.v0.1`; its response always has the matching format."""
        from enfold.formats.mcp_envelope_v0_1 import ANSWER_FORMAT
        from enfold.surfaces.tool_requests import RequestCall

        try:
            asked = RequestCall(
                self._registry,
                read_json(read_text(words.options["--request"], self._stdin), "The request"),
                adapter="cli",
                identity=self._identity,
                timeout=words.timeout,
                recorder=self._recorder(words.options) if self._recorder is not None else None,
                open_artifacts=lambda references: _open_artifacts(references, words.options.get("--artifact-root")),
            )
        except CallError as error:
            self._print(encode_failure(find_format(ANSWER_FORMAT).write_error(error, "")))
            raise
        return PreparedCall(
            asked.spec,
            asked.input,
            asked.context,
            lambda envelope: encode_result(asked.write, envelope),
            lambda error: encode_failure(asked.write_error(error)),
            is_stored="--store" in words.options,
        )

    async def run(self, call: PreparedCall) -> int:
        """Run it, write what comes, and give the exit code.

        A failure is reported at once; what runs on under an idempotency key is awaited afterwards.
        """
        observers = self._registry.services.observers
        watch = observers.begin(lambda: SpanStart(f"call {call.spec.id}", "internal")) if observers.is_on else None
        try:
            return await self._run(call, watch)
        except BaseException as error:
            if watch is not None:
                watch.fail(error)
            if isinstance(error, CallError):
                return self.tell(error)
            raise
        finally:
            if watch is not None:
                watch.end("shell", self._registry.get(call.spec.id), call.context)

    async def _run(self, call: PreparedCall, watch: Watch | None) -> int:
        try:
            if call.detaches:
                return await self._detach(call)
            if call.spec.type is OperationType.SUBSCRIPTION:
                return await self._follow(call, watch)
            with nullcontext() if self._line is None else self._line.waiting(call.spec.id):
                envelope = await self._execute(call)
            if watch is not None:
                watch.record_result(envelope)
            return self._write(call, envelope)
        except CallError as error:
            if call.write_error is not None:
                self._print(call.write_error(error))
            raise
        finally:
            if call.context.recording is not None and call.context.recording.is_kept:
                kept = "" if call.is_stored else " (the record is not stored: use --store FILE)"
                print(f"recorded as run {call.context.recording.run_id}{kept}", file=self._messages)

    async def _detach(self, call: PreparedCall) -> int:
        """Start a task and print its id; another process runs it."""
        async with self._tasks_of(call) as tasks:
            if tasks is None:
                raise wrong(f"{call.spec.id} cannot run as a task: declare it with durable=True")
            is_run = await tasks.store.has_worker()
            if is_run is None:
                message = "A task in memory would be lost when this command exits: pass a file with --tasks"
                raise CallError("UNAVAILABLE", message, {"reason": "store"}, retryable=False)
            handle = await tasks.order(call.spec.id, call.input, call.context)
        print(handle.id, file=self._out)
        who = "a server or a worker runs it" if is_run else _NO_WORKER
        print(f"{who}. Follow it: enfold tasks wait {handle.id}", file=self._messages)
        return 0

    async def _execute(self, call: PreparedCall) -> ResponseEnvelope[Any]:
        """Run the call; if it becomes a task, run the task here."""
        if call.context.unused_key is None and call.spec.durable != "required":
            return await self._registry.execute(call.spec.id, call.input, call.context)
        async with self._tasks_of(call):
            return await self._registry.execute(call.spec.id, call.input, call.context)

    def _tasks_of(self, call: PreparedCall) -> AbstractAsyncContextManager[Tasks | None]:
        return nullcontext() if self._open_tasks is None else self._open_tasks(self._registry, call.store)

    async def _follow(self, call: PreparedCall, watch: Watch | None) -> int:
        worst = 0
        if watch is not None:
            watch.stream()
        async for envelope in self._registry.subscribe(call.spec.id, call.input, call.context):
            if watch is not None:
                watch.item()
            worst = max(worst, self._write(call, envelope))
            self._out.flush()
        return worst

    def _write(self, call: PreparedCall, envelope: ResponseEnvelope[Any]) -> int:
        if call.output is not None:
            self._save(call, envelope, call.output)
        elif not envelope.is_error or call.write_error is not None:  # otherwise reported below, like every failure
            self._print(call.write(envelope))
        for warning in envelope.warnings:
            times = f" ({warning.count} times)" if warning.count > 1 else ""
            print(f"warning: {printable(warning.sentence)}{times}", file=self._messages)
        if call.is_verbose:
            print(f"meta: {printable(encode_failure(to_wire(envelope)['meta']).decode())}", file=self._messages)
        if not envelope.is_error:
            return 0
        self.tell(error_of(envelope))
        return code_row("EXECUTION_ERROR").exit_code

    def _save(self, call: PreparedCall, envelope: ResponseEnvelope[Any], file: str) -> None:
        """Write a result to a file, and say so: bytes as they are, everything else as it would have been printed."""
        from pathlib import Path  # which takes its time to load, as below

        found = binary_data(envelope, call.spec)
        data = call.write(envelope) + b"\n" if found is None else found
        Path(file).write_bytes(data)
        print(f"{Path(file)}: {len(data)} bytes", file=self._messages)

    def _print(self, text: bytes) -> None:
        """Print one line for a program; at a terminal, several if one would be long."""
        indent = 2 if len(text) > _LINE and self._out.isatty() else None
        try:
            shown = (text if indent is None else msgspec.json.format(text, indent=indent)).decode()
            print(printable_json(shown) if self._out.isatty() else shown, file=self._out)
        except UnicodeEncodeError:  # Its encoding lacks a character that JSON can name.
            import json

            print(json.dumps(json.loads(text), indent=indent), file=self._out)

    def tell(self, error: CallError | KeyboardInterrupt) -> int:
        """Say what went wrong, and give its exit code."""
        if self._line is not None:
            self._line.clear()
        told = error if isinstance(error, CallError) else CallError("ABORTED", "interrupted")
        print(f"{safe_code(told.code)}: {printable(told.message)}", file=self._messages)
        return told.row.exit_code


def _check_detached(words: Words) -> None:
    """Refuse what is said about a result that is not waited for."""
    given = {*words.options, *(["--timeout"] if words.timeout is not None else [])}
    for name in ("--output", "--format", "--timeout", "--request"):
        if name in given:
            raise wrong(
                f"--detach does not wait for a result: omit {name}; `enfold tasks wait` accepts a timeout and a format"
            )


def _check_output(file: str, spec: OperationSpec) -> None:
    """Refuse a file that cannot take the result, before the operation is run."""
    from pathlib import Path

    if spec.type is OperationType.SUBSCRIPTION:
        raise wrong(f"--output needs a single result; {spec.id} returns a stream")
    try:
        Path(file).open("ab").close()
    except OSError as error:
        raise wrong(f"Cannot write {file}: {error.strerror}") from None


def binary_data(envelope: ResponseEnvelope[Any], spec: OperationSpec) -> bytes | None:
    """Return the bytes of a result: an HTTP body, the first binary block of an MCP result, or a function's bytes."""
    data = envelope.data
    if isinstance(data, bytes):
        return data
    if isinstance(envelope.meta, MCPResponseMeta):
        data = next(filter(None, map(_base64_of, envelope.meta.content)), None)
    elif spec.output_schema.get("contentEncoding") != "base64":
        return None
    try:
        return a2b_base64(data) if isinstance(data, str) else None
    except ValueError:
        return None


def _base64_of(block: Any) -> str | None:
    """Return the base64 text of a content block that has one."""
    if isinstance(block, EmbeddedResource):
        return block.resource.get("blob")
    return block.data if isinstance(block, ImageContent | AudioContent) else None


def _open_artifacts(references: Iterable[ArtifactRef], root: str | None) -> list[Any]:
    """Read the files that references name, below the root; without a root nothing is opened."""
    if root is None:
        return list(references)
    from pathlib import Path

    from enfold.provenance import opened_artifact

    try:
        return [opened_artifact(reference, Path(root)) for reference in references]
    except (OSError, ValueError) as error:
        raise wrong(f"Invalid artifact: {error}") from None
