"""One table of calls, run on every surface and in every format: same data, same code.

A surface joins with a client in `enfold.testing`; other carriers of the same surfaces stand below, a line each in LEGS.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest
from tests.calls.networks import Server, nats_server_program
from tests.parity_app import ops
from tests.parity_calls import ANN, CALLS, Call, Outcome, outcome

from enfold import Identity, testing
from enfold.auth.tokens import Tokens
from enfold.calls.transports.addresses import open_transport
from enfold.calls.websocket import WebSocketHub
from enfold.formats import find_format
from enfold.operations import OperationType
from enfold.testing.client import Envelopes, Input, Reply, read_answer
from enfold.testing.in_process import CGIClient, ShellClient

ROOT = Path(__file__).parent.parent
FORMATS = ("result", "envelope", "mcp_envelope_v0_1", "plain", "tool_envelope_v1")


# --- other carriers -----------------------------------------------------------------------------------------------


class Getting:
    """HTTP with arguments in the query string, and streams as lines."""

    def __init__(self, client: testing.HTTPClient) -> None:
        self._client = client

    async def call(
        self,
        operation: str,
        input: Input | None = None,
        *,
        identity: Identity | None = None,
        format: str | None = None,
    ) -> Reply:
        answer = self._get(operation, input, identity, format)
        wire = await answer.json()
        return read_answer(answer.status, answer.headers, wire, find_format(str(format)))

    async def subscribe(
        self,
        operation: str,
        input: Input | None = None,
        *,
        identity: Identity | None = None,
        format: str | None = None,
    ) -> Envelopes:
        answer = self._get(operation, input, identity, format)
        written = find_format(str(format))
        *items, end = [json.loads(line) for line in (await answer.body()).split(b"\n") if line]
        for item in items:
            yield written.read(item)
        if end != {"complete": True}:
            _ = read_answer(answer.status, answer.headers, _failure(end, written.name), written).data

    async def list(self, *, identity: Identity | None = None) -> list[str]:
        raise NotImplementedError

    def _get(
        self, operation: str, input: Input | None, identity: Identity | None, format: str | None
    ) -> testing.Conversation:
        query = urlencode({name: _as_text(value) for name, value in (input or {}).items()}, doseq=True)
        headers = {"enfold-format": format, "accept": "application/json, application/x-ndjson", "content-type": None}
        return self._client.request("GET", f"/functions/{operation}?{query}", identity=identity, headers=headers)


def _as_text(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict) else value


def _failure(end: dict[str, Any], format: str) -> Any:
    """The error in the last line of a stream: formats whose own is not in `error` have the whole of it there."""
    is_line = end.pop("complete", None) is False
    return end["error"] if is_line and format not in ("result", "plain", "envelope") else end


@asynccontextmanager
async def getting() -> AsyncIterator[Getting]:
    async with testing.http(ops) as client:
        yield Getting(client)


class CGIProgram(CGIClient):
    """A program that a web server starts for each request."""

    async def run(self, environ: dict[str, str], body: bytes, _: Identity | None, /) -> bytes:
        return (await _program(["cgi", "tests/parity_app.py"], body, environ)).stdout


class ShellProgram(ShellClient):
    """A command, its output and what it says when it fails."""

    async def run(self, *words: str, stdin: str = "", identity: Identity | None = None) -> tuple[int, str, str]:
        assert identity is None
        done = await _program(["call", "tests/parity_app.py", *words], stdin.encode(), {})
        return done.returncode, done.stdout.decode(), done.stderr.decode()


async def _program(words: list[str], stdin: bytes, variables: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "enfold", *words]
    environment = {**os.environ, **variables}
    return await asyncio.to_thread(
        subprocess.run, command, input=stdin, capture_output=True, check=False, cwd=ROOT, env=environment
    )


@asynccontextmanager
async def program(kind: type[CGIProgram | ShellProgram]) -> AsyncIterator[testing.Client]:
    yield kind(ops, {})


@asynccontextmanager
async def calls_around_a_hub() -> AsyncIterator[testing.Client]:
    """The call protocol over WebSockets: worker and callers are spokes of a hub, one of them ann."""
    worker = Identity("worker", resources={"namespace:parity": ["offer"]})
    hub = WebSocketHub(Tokens({"worker": worker, "ann": ANN, "bob": Identity("bob")}))
    await hub.listen()
    reach = partial(open_transport, f"ws://127.0.0.1:{hub.port}")
    try:
        join = lambda identity: reach(token="bob" if identity is None else identity.id)  # noqa: E731
        async with testing.calls(ops, reach(token="worker"), join) as client:
            yield client
    finally:
        await hub.close()


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], str]]:
    """The address of a NATS server, a process of its own that is started when it is first asked for."""
    started: list[Server] = []

    def find() -> str:
        if not started:
            started.append(Server(nats_server_program(), tmp_path_factory.mktemp("nats")))
            started[0].wait_until_ready()
        return started[0].url

    yield find
    for server in started:
        server.close()


class Leg(msgspec.Struct, frozen=True):
    """A surface, and which calls can be made there."""

    open: Callable[..., AbstractAsyncContextManager[testing.Client]]
    takes: Callable[[Call], bool] = lambda _: True
    formats: tuple[str, ...] = FORMATS


def _only_reads(call: Call) -> bool:
    """A query string holds no change, no megabyte, and no number that could be told from text."""
    reads = call.spec is None or call.spec.type is not OperationType.MUTATION
    return reads and len(str(call.input)) < 10_000


def _is_denied(call: Call) -> bool:
    return call.operation == "parity.guarded" and not call.is_ann


def _is_open(call: Call) -> bool:
    return not call.is_ann


LEGS: dict[str, Leg] = {
    **{name: Leg(partial(open_it, ops)) for name, open_it in testing.SURFACES.items()},
    "http get": Leg(getting, _only_reads),
    # There everybody has an identity: to who may not call it, an operation is not there (tests/auth/test_names.py).
    "calls around a hub": Leg(calls_around_a_hub, lambda call: not _is_denied(call), FORMATS[:2]),
    # A process for each call: two formats are enough to see that the surface writes in the one it was asked for.
    "cgi program": Leg(partial(program, CGIProgram), _is_open, FORMATS[:2]),
    # The user of this machine is `local`, who may do everything.
    "command line program": Leg(
        partial(program, ShellProgram), lambda call: _is_open(call) and not _is_denied(call), FORMATS[:2]
    ),
}


# --- the test -----------------------------------------------------------------------------------------------------


def _told(leg: str, format: str, call: Call, expected: Outcome) -> Outcome:
    """The formats `result` and `plain` have no place for a code, and a stream over HTTP has no headers at its end."""
    is_untold = (
        call.is_stream and "fail_at" in call.input and format in ("result", "plain") and leg in ("http", "http get")
    )
    return Outcome(code="EXECUTION_ERROR") if is_untold else expected


@pytest.mark.parametrize(
    ("leg", "format", "call", "expected"),
    [
        pytest.param(leg, written, call, _told(leg, written, call, expected), id=f"{leg}, {written}: {name}")
        for leg in LEGS
        for written in LEGS[leg].formats
        for name, (call, expected) in CALLS.items()
        if LEGS[leg].takes(call)
    ],
)
async def test_a_call_gives_the_same_everywhere(leg: str, format: str, call: Call, expected: Outcome) -> None:
    async with LEGS[leg].open() as client:
        assert await outcome(client, call, format) == expected


@pytest.mark.parametrize(("call", "expected"), [pair for pair in CALLS.values() if _is_open(pair[0])])
async def test_a_call_gives_the_same_over_nats(nats: Callable[[], str], call: Call, expected: Outcome) -> None:
    async with testing.calls(ops, open_transport(nats()), lambda _: open_transport(nats())) as client:
        assert await outcome(client, call, "envelope") == expected
