"""One table of calls, run on every surface and in every format: same data, same code.

A surface joins with one function that gives a way to run a call, and one line in LEGS.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from tempfile import mkdtemp
from threading import Thread
from typing import Any, TypeAlias
from urllib.parse import urlencode

import msgspec
import pytest
from tests.calls.networks import Server, nats_server_program
from tests.parity_app import ops
from tests.serving import Answer, Client, serve

from enfold import CallError, Context, Identity, ResponseEnvelope
from enfold.calls import PendingRequestMap
from enfold.calls.memory import MemoryTransport
from enfold.calls.protocol.transport import Transport
from enfold.calls.transports.addresses import open_transport
from enfold.calls.websocket import WebSocketHub
from enfold.formats import find_format
from enfold.operation import OperationSpec, OperationType
from enfold.surfaces.calls import serve_calls
from enfold.surfaces.http import to_http
from enfold.tokens import Tokens

ROOT = Path(__file__).parent.parent
ANN = Identity("ann", frozenset({"parity"}))
FORMATS = ("result", "envelope", "mcp_envelope_v0_1", "tool_envelope_v1")


class Call(msgspec.Struct, frozen=True):
    """A call that is made on every surface."""

    operation: str
    input: dict[str, Any] = {}
    is_ann: bool = False  # made by somebody who is known, and has the scope

    @property
    def spec(self) -> OperationSpec | None:
        return ops.get_spec(self.operation) if self.operation in ops else None

    @property
    def is_stream(self) -> bool:
        return self.spec is not None and self.spec.type is OperationType.SUBSCRIPTION


class Outcome(msgspec.Struct, frozen=True):
    """What came of it: data, which for a stream is the list of its items, or the code of the failure."""

    data: Any = None
    code: str | None = None


Run: TypeAlias = Callable[[Call, str], Outcome]

CALLS: dict[str, tuple[Call, Outcome]] = {
    "good": (Call("parity.add", {"x": 7, "y": 3}), Outcome(10)),
    "text that stands for a number": (Call("parity.add", {"x": "7", "y": 3}), Outcome(10)),
    "arrays and objects": (
        Call("parity.total", {"prices": [1.5, 2], "fees": {"a": 0.25}}),
        Outcome({"prices": 3.5, "fees": 0.25}),
    ),
    "bad": (Call("parity.add", {"x": "seven", "y": 3}), Outcome(code="VALIDATION_ERROR")),
    "missing": (Call("parity.add", {"x": 7}), Outcome(code="VALIDATION_ERROR")),
    "unknown argument": (Call("parity.add", {"x": 7, "y": 3, "z": 1}), Outcome(code="VALIDATION_ERROR")),
    "unknown operation": (Call("parity.none"), Outcome(code="OPERATION_NOT_FOUND")),
    "denied": (Call("parity.guarded"), Outcome(code="ACCESS_DENIED")),
    "allowed": (Call("parity.guarded", is_ann=True), Outcome("ann")),
    "failing": (Call("parity.divide", {"x": 1, "y": 0}), Outcome(code="EXECUTION_ERROR")),
    "failing with a code of its own": (Call("parity.sell", {"left": 0}), Outcome(code="SOLD_OUT")),
    "slow": (Call("parity.slow"), Outcome(code="TIMEOUT")),
    "unicode": (Call("parity.echo", {"text": 'grün ☃ 𝄞 \u2028 \x00 \\ "'}), Outcome('grün ☃ 𝄞 \u2028 \x00 \\ "')),
    "empty text": (Call("parity.echo", {"text": ""}), Outcome("")),
    "large": (Call("parity.echo", {"text": "x" * 1_000_000}), Outcome("x" * 1_000_000)),
    "several values": (Call("parity.divide", {"x": 7, "y": 2}), Outcome([3, 1])),
    "no value": (Call("parity.forget"), Outcome(None)),
    "a None that is a value": (Call("parity.maybe"), Outcome(None)),
    "streaming": (Call("parity.count", {"to": 3}), Outcome([0, 1, 2])),
    "an empty stream": (Call("parity.count", {"to": 0}), Outcome([])),
    "a stream that fails": (Call("parity.count", {"to": 3, "fail_at": 2}), Outcome(code="DATA_LOSS")),
    "a stream that fails at once": (Call("parity.count", {"to": "three"}), Outcome(code="VALIDATION_ERROR")),
}


# --- legs ---------------------------------------------------------------------------------------------------------


@contextmanager
def direct() -> Iterator[Run]:
    """The registry itself, in this process."""

    async def run(call: Call, format: str) -> Outcome:
        context = Context(identity=ANN if call.is_ann else None)
        try:
            if call.is_stream:
                stream = ops.guarded().subscribe(call.operation, call.input, context)
                return Outcome([_read(format, envelope, call.spec) async for envelope in stream])
            return Outcome(_read(format, await ops.guarded().execute(call.operation, call.input, context), call.spec))
        except CallError as error:
            return Outcome(code=error.code)

    yield lambda *asked: asyncio.run(run(*asked))


def _read(format: str, envelope: ResponseEnvelope[Any], spec: OperationSpec | None) -> Any:
    """The data after it was written in a format and read again."""
    module = find_format(format)
    return module.read(json.loads(json.dumps(module.write(envelope, spec)))).data


@contextmanager
def http() -> Iterator[Run]:
    """A server and a socket; arguments in the body."""
    with _served() as client:

        def run(call: Call, format: str) -> Outcome:
            answer = client.post(f"/functions/{call.operation}", call.input, **_headers(call, format))
            return _outcome(answer, format)

        yield run


@contextmanager
def http_get() -> Iterator[Run]:
    """The same with arguments in the query string, and streams as lines."""
    with _served() as client:

        def run(call: Call, format: str) -> Outcome:
            query = urlencode({name: _as_text(value) for name, value in call.input.items()}, doseq=True)
            headers = {**_headers(call, format), "Accept": "application/json, application/x-ndjson"}
            return _outcome(client.get(f"/functions/{call.operation}?{query}", **headers), format)

        yield run


def _served() -> AbstractContextManager[Client]:
    return serve(to_http(ops, tokens=Tokens({"token-of-ann": ANN}), allow_anonymous=True))


def _headers(call: Call, format: str) -> dict[str, str]:
    return {"Enfold-Format": format, **({"Authorization": "Bearer token-of-ann"} if call.is_ann else {})}


def _as_text(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict) else value


def _outcome(answer: Answer, format: str) -> Outcome:
    kind = answer.headers["content-type"]
    if kind != "application/json":
        return _stream_outcome(_messages(answer.body, kind), format)
    if answer.status == 200:
        return Outcome(find_format(format).read(answer.json).data)
    with pytest.raises(CallError):  # what is no success must not be read as one
        find_format(format).read(answer.json)
    return Outcome(code=answer.headers["enfold-code"])


def _messages(body: bytes, kind: str) -> list[Any]:
    lines = body.decode().split("\n")
    prefix = "data: " if kind == "text/event-stream" else "{"
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith(prefix)]


def _stream_outcome(messages: list[Any], format: str) -> Outcome:
    *items, end = messages
    if end == {"complete": True}:
        return Outcome([find_format(format).read(item).data for item in items])
    if end.pop("complete", None) is False and format not in ("result", "envelope"):
        end = end["error"]  # a line has the whole error of a format whose own is not in `error`
    with pytest.raises(CallError) as raised:
        find_format(format).read(end)
    # The format `result` has no place for a code, and a stream has no headers at its end.
    return Outcome(code=raised.value.code if format != "result" else _code_of(raised.value.message))


def _code_of(message: str) -> str | None:
    return {"A number is missing": "DATA_LOSS"}.get(message)


@contextmanager
def cgi() -> Iterator[Run]:
    """A program that a web server starts for each request."""

    def run(call: Call, format: str) -> Outcome:
        body = json.dumps(call.input).encode()
        variables = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": f"/functions/{call.operation}",
            "CONTENT_TYPE": "application/json",
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_ENFOLD_FORMAT": format,
        }
        head, _, answer = _program(["cgi", "tests/parity_app.py"], body, variables).stdout.partition(b"\r\n\r\n")
        lines = [line.partition(": ") for line in head.decode().split("\r\n")]
        headers = {name.lower(): value for name, _, value in lines}
        return _outcome(Answer(int(headers["status"].split()[0]), headers, answer), format)

    yield run


@contextmanager
def command_line() -> Iterator[Run]:
    """A command, its output and what it says when it fails."""

    def run(call: Call, format: str) -> Outcome:
        words = ["call", "tests/parity_app.py", call.operation, "@-", "--format", format]
        done = _program(words, json.dumps(call.input).encode(), {})
        if done.returncode:
            return Outcome(code=done.stderr.decode().partition(":")[0])
        data = [find_format(format).read(json.loads(line)).data for line in done.stdout.splitlines()]
        return Outcome(data if call.is_stream else data[0])

    yield run


def _program(words: list[str], stdin: bytes, variables: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "enfold", *words]
    environment = {**os.environ, **variables}
    return subprocess.run(command, input=stdin, capture_output=True, check=False, cwd=ROOT, env=environment)


@contextmanager
def calls_in_memory() -> Iterator[Run]:
    """The call protocol over a bus in memory: two peers, one of them ann."""
    bus = MemoryTransport("worker")
    with _calling(bus, {True: bus.join("ann", ANN), False: bus.join("nobody", None)}) as run:
        yield run


@contextmanager
def calls_over_nats() -> Iterator[Run]:
    """The call protocol over a NATS server, which is a process of its own."""
    server = Server(nats_server_program(), Path(mkdtemp()))
    server.wait_until_ready()
    try:
        with _calling(open_transport(server.url), {False: open_transport(server.url)}) as run:
            yield run
    finally:
        server.close()


@contextmanager
def calls_around_a_hub() -> Iterator[Run]:
    """The call protocol over WebSockets: worker and callers are spokes of a hub, one of them ann."""
    worker = Identity("worker", resources={"namespace:parity": ["offer"]})
    tokens = {"worker": worker, "ann": ANN, "bob": Identity("bob")}
    hub = WebSocketHub(Tokens(tokens))
    with _own_loop() as loop:
        _in(loop, hub.listen())
        url = f"ws://127.0.0.1:{hub.port}"
        spokes = {name: open_transport(url, token=name) for name in tokens}
        with _calling(spokes["worker"], {True: spokes["ann"], False: spokes["bob"]}) as run:
            yield run
        _in(loop, hub.close())


@contextmanager
def _own_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def _calling(worker: Transport, callers: dict[bool, Transport]) -> Iterator[Run]:
    """A worker and its callers, in a loop of their own."""

    async def run(call: Call, format: str) -> Outcome:
        caller = pending[call.is_ann]
        try:
            if call.is_stream:
                stream = caller.subscribe(call.operation, call.input)
                return Outcome([_read(format, envelope, call.spec) async for envelope in stream])
            return Outcome(_read(format, await caller.call(call.operation, call.input), call.spec))
        except CallError as error:
            return Outcome(code=error.code)

    async def close() -> None:
        for caller in pending.values():
            await caller.close()
        await serving.__aexit__(None, None, None)
        for transport in (*callers.values(), worker):
            await transport.close()

    with _own_loop() as loop:
        serving = _in(loop, _entered(serve_calls(ops, worker)))
        pending = {is_ann: PendingRequestMap(transport) for is_ann, transport in callers.items()}
        try:
            yield lambda *asked: _in(loop, run(*asked))
        finally:
            _in(loop, close())


async def _entered(serving: Any) -> Any:
    await serving.__aenter__()
    return serving


def _in(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run_coroutine_threadsafe(work, loop).result(60)


class Leg(msgspec.Struct, frozen=True):
    """A surface, and which calls can be made there."""

    open: Callable[[], AbstractContextManager[Run]]
    takes: Callable[[Call], bool] = lambda _: True
    formats: tuple[str, ...] = FORMATS


def _only_reads(call: Call) -> bool:
    """A query string holds no change, no megabyte, and no number that could be told from text."""
    reads = call.spec is None or call.spec.type is not OperationType.MUTATION
    return reads and len(str(call.input)) < 10_000


LEGS: dict[str, Leg] = {
    "direct": Leg(direct),
    "http": Leg(http),
    "http get": Leg(http_get, _only_reads),
    # A process for each call: two formats are enough to see that the surface writes in the one it was asked for.
    # An operation that nobody serves is UNAVAILABLE to a caller who cannot know whether somebody will.
    "calls in memory": Leg(calls_in_memory, lambda call: call.spec is not None),
    "calls around a hub": Leg(calls_around_a_hub, lambda call: call.spec is not None, FORMATS[:2]),
    "calls over NATS": Leg(calls_over_nats, lambda call: call.spec is not None and not call.is_ann, FORMATS[:2]),
    "cgi": Leg(cgi, lambda call: not call.is_ann, FORMATS[:2]),
    "command line": Leg(command_line, lambda call: not call.is_ann, FORMATS[:2]),
}


# --- the test -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs() -> Iterator[Callable[[str], Run]]:
    """Each leg is opened when it is first needed, and kept for the whole table."""
    opened: dict[str, Run] = {}
    with ExitStack() as stack:

        def find(name: str) -> Run:
            if name not in opened:
                opened[name] = stack.enter_context(LEGS[name].open())
            return opened[name]

        yield find


@pytest.mark.parametrize(
    ("leg", "format", "call", "expected"),
    [
        pytest.param(leg, written, call, expected, id=f"{leg}, {written}: {name}")
        for leg in LEGS
        for written in LEGS[leg].formats
        for name, (call, expected) in CALLS.items()
        if LEGS[leg].takes(call)
    ],
)
def test_a_call_gives_the_same_everywhere(
    runs: Callable[[str], Run], leg: str, format: str, call: Call, expected: Outcome
) -> None:
    assert runs(leg)(call, format) == expected
