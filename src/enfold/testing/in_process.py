"""Clients in this process: the registry itself, and the call protocol over a bus in memory or a given transport."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from io import BytesIO, StringIO
from typing import Any, TypeAlias

import msgspec

from enfold.calls.caller.pending import PendingRequestMap
from enfold.calls.memory import MemoryTransport
from enfold.calls.protocol.transport import Transport, peer_name
from enfold.errors import CallError
from enfold.operations import Context, Identity
from enfold.runtime.registry import Registry
from enfold.sources.calls import from_calls
from enfold.surfaces.calls import serve_calls
from enfold.surfaces.cgi import to_cgi
from enfold.surfaces.command_line import run_command_line
from enfold.surfaces.introspection import introduce
from enfold.testing.asgi import ids_in
from enfold.testing.client import CallRequest, Envelopes, Reply, SurfaceClient, read_answer, round_trip

Join: TypeAlias = Callable[[Identity | None], Transport]


@asynccontextmanager
async def direct(registry: Registry) -> AsyncIterator[DirectClient]:
    """Open a client of the registry itself, with its access rules; `on_stop` runs when it is closed."""
    await registry.services.lifetime.start()
    try:
        yield DirectClient(registry)
    finally:
        await registry.services.lifetime.stop()


class DirectClient(SurfaceClient):
    """Calls a registry in this process."""

    def __init__(self, registry: Registry) -> None:
        introduce(registry, {"direct": ""})
        self._registry = registry
        self._guarded = registry.guarded()

    async def _call(self, request: CallRequest) -> Reply:
        try:
            envelope = await self._guarded.execute(request.operation, request.input, Context(identity=request.identity))
            return Reply(round_trip(request.format)(envelope, self._registry.get_spec(request.operation)))
        except CallError as error:
            return Reply(error=error)

    async def _subscribe(self, request: CallRequest) -> Envelopes:
        read = round_trip(request.format)
        async with aclosing(
            self._guarded.subscribe(request.operation, request.input, Context(identity=request.identity))
        ) as items:
            async for envelope in items:
                yield read(envelope, self._registry.get_spec(request.operation))

    async def list(self, *, identity: Identity | None = None) -> Sequence[str]:
        return [spec.id for spec in self._registry.visible(identity)]


@asynccontextmanager
async def calls(
    registry: Registry, transport: Transport | None = None, join: Join | None = None, **options: Any
) -> AsyncIterator[CallsClient]:
    """Open a client of the call protocol: a worker, and a peer for each caller; `options` are those of `serve_calls`.

    They use a bus in memory. For another `transport`, pass `join`, which returns the transport of a caller.
    """
    bus = MemoryTransport("worker", has_identities=True)
    if transport is not None and join is None:
        raise TypeError("A custom transport needs join=: a function that returns a caller's transport")
    worker, join = transport or bus, join or partial(_join, bus)
    async with AsyncExitStack() as opened:
        opened.push_async_callback(worker.close)
        await opened.enter_async_context(serve_calls(registry, worker, **options))
        yield CallsClient(registry, join, opened)


def _join(bus: MemoryTransport, identity: Identity | None) -> Transport:
    return bus.join(peer_name("anonymous" if identity is None else identity.id), identity)


class CallsClient(SurfaceClient):
    """Calls a worker over a transport; each identity is a peer of its own."""

    def __init__(self, registry: Registry, join: Join, opened: AsyncExitStack) -> None:
        self._registry = registry
        self._join = join
        self._opened = opened
        self._peers: list[tuple[Identity | None, Transport, PendingRequestMap]] = []

    async def _call(self, request: CallRequest) -> Reply:
        _, pending = self._peer(request.identity)
        try:
            envelope = await pending.call(request.operation, request.input)
            return Reply(round_trip(request.format)(envelope, self._registry.get_spec(request.operation)))
        except CallError as error:
            return Reply(error=error)

    async def _subscribe(self, request: CallRequest) -> Envelopes:
        read = round_trip(request.format)
        _, pending = self._peer(request.identity)
        async with aclosing(pending.subscribe(request.operation, request.input)) as items:
            async for envelope in items:
                yield read(envelope, self._registry.get_spec(request.operation))

    async def list(self, *, identity: Identity | None = None) -> Sequence[str]:
        transport, _ = self._peer(identity)
        async with from_calls(transport) as operations:
            return [operation.spec.id for operation in operations]

    def _peer(self, identity: Identity | None) -> tuple[Transport, PendingRequestMap]:
        for known, transport, pending in self._peers:
            if known == identity:
                return transport, pending
        transport = self._join(identity)
        pending = PendingRequestMap(transport)
        self._opened.push_async_callback(transport.close)
        self._opened.push_async_callback(pending.close)
        self._peers.append((identity, transport, pending))
        return transport, pending


@asynccontextmanager
async def cgi(registry: Registry, **options: Any) -> AsyncIterator[CGIClient]:
    """Open a client of the CGI program, run in a thread with its own loop; `options` are those of `to_cgi`."""
    yield CGIClient(registry, options)


class CGIClient(SurfaceClient):
    """Runs a CGI program once for each call."""

    def __init__(self, registry: Registry, options: dict[str, Any]) -> None:
        self._registry = registry
        self._options = options

    async def _call(self, request: CallRequest) -> Reply:
        chosen = request.chosen_format
        variables = {"REQUEST_METHOD": "POST", "CONTENT_TYPE": "application/json", "HTTP_ENFOLD_FORMAT": chosen.name}
        answer = await self.request(
            f"/functions/{request.operation}",
            msgspec.json.encode(request.input),
            identity=request.identity,
            **variables,
        )
        return read_answer(*answer, chosen)

    async def list(self, *, identity: Identity | None = None) -> Sequence[str]:
        _, _, document = await self.request("/openapi.json", identity=identity, REQUEST_METHOD="GET")
        return ids_in(document)

    async def request(
        self, path: str, body: bytes = b"", *, identity: Identity | None = None, **variables: str
    ) -> tuple[int, dict[str, str], Any]:
        """Send any request and return status, headers and JSON; `variables` are those of its environment."""
        environ = {"PATH_INFO": path, "CONTENT_LENGTH": str(len(body)), **variables}
        if identity is not None:
            environ["REMOTE_USER"] = identity.id
        return _read(await self.run(environ, body, identity))

    async def run(self, environ: dict[str, str], body: bytes, identity: Identity | None, /) -> bytes:
        """Run the program and return its stdout."""
        out = BytesIO()
        program = partial(to_cgi, environ=environ, stdin=BytesIO(body), stdout=out, **self._options)
        await asyncio.to_thread(program, self._registry, identify=lambda _: identity)
        return out.getvalue()


def _read(answer: bytes) -> tuple[int, dict[str, str], Any]:
    head, _, text = answer.partition(b"\r\n\r\n")
    lines = [line.partition(": ") for line in head.decode("latin-1").split("\r\n")]
    headers = {name.lower(): value for name, _, value in lines}
    return int(headers["status"].split()[0]), headers, json.loads(text)


@asynccontextmanager
async def command_line(registry: Registry, **options: Any) -> AsyncIterator[ShellClient]:
    """Open a client of the command line; `options` are those of `run_command_line`. The status is the exit code."""
    yield ShellClient(registry, options)


class ShellClient(SurfaceClient):
    """Runs the command line in this process and captures its output."""

    def __init__(self, registry: Registry, options: dict[str, Any]) -> None:
        self._registry = registry
        self._options = options

    async def _call(self, request: CallRequest) -> Reply:
        chosen = request.chosen_format
        status, lines, messages = await self._printed(request, chosen.name)
        if not lines:
            return Reply(None, _error_in(messages), status)
        try:
            return Reply(chosen.read(lines[-1]), None, status, wire=lines[-1])
        except CallError as error:
            return Reply(None, _with_code(error, messages), status, wire=lines[-1])

    async def _subscribe(self, request: CallRequest) -> Envelopes:
        chosen = request.chosen_format
        status, lines, messages = await self._printed(request, chosen.name)
        try:
            for line in lines:
                yield chosen.read(line)
        except CallError as error:
            raise _with_code(error, messages) from None
        if status and not lines:
            raise _error_in(messages)

    async def list(self, *, identity: Identity | None = None) -> Sequence[str]:
        """List as `enfold list` prints, which is a command beside this surface."""
        return [spec.id for spec in self._registry.visible(identity)]

    async def _printed(self, request: CallRequest, format: str) -> tuple[int, Sequence[Any], str]:
        """Return the exit code, the lines of stdout as JSON, and the text on stderr."""
        words, given = (request.operation, "@-", "--format", format), msgspec.json.encode(request.input).decode()
        status, out, messages = await self.run(*words, stdin=given, identity=request.identity)
        return status, [json.loads(line) for line in out.split("\n") if line], messages

    async def run(self, *words: str, stdin: str = "", identity: Identity | None = None) -> tuple[int, str, str]:
        """Run a command line and return its exit code, stdout and stderr."""
        out, messages = StringIO(), StringIO()
        status = await run_command_line(
            self._registry,
            words,
            identity=identity,
            stdin=StringIO(stdin),
            stdout=out,
            stderr=messages,
            **self._options,
        )
        return status, out.getvalue(), messages.getvalue()


def _error_in(messages: str) -> CallError:
    code, _, message = messages.rstrip("\n").rpartition("\n")[2].partition(": ")
    return CallError(code, message)


def _with_code(error: CallError, messages: str) -> CallError:
    """Return the error as the format has it, with the code on stderr, which some formats lack."""
    return CallError(_error_in(messages).code, error.message, error.details, error.retryable)
