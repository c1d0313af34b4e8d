"""Clients without a wire: the registry itself, and the call protocol, over a bus in memory unless a transport is given."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from typing import Any, TypeAlias

from enfold.calls.caller.pending import PendingRequestMap
from enfold.calls.memory import MemoryTransport
from enfold.calls.protocol.subjects import peer_name
from enfold.calls.protocol.transport import Transport
from enfold.errors import CallError
from enfold.introspection import introduce
from enfold.operation import Context, Identity
from enfold.registry import Registry
from enfold.sources.calls import from_calls
from enfold.surfaces.calls import serve_calls
from enfold.testing.replies import CallRequest, Envelopes, Reply, SurfaceClient, round_trip

Join: TypeAlias = Callable[[Identity | None], Transport]


@asynccontextmanager
async def direct(registry: Registry) -> AsyncIterator[DirectClient]:
    """The registry itself, with its access rules; what `on_start` opens is closed at the end."""
    await registry.lifetime.start()
    try:
        yield DirectClient(registry)
    finally:
        await registry.lifetime.stop()


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
    """The call protocol: a worker, and a peer for each caller; `options` are those of `serve_calls`.

    They meet on a bus in memory. A worker on another `transport` needs `join`, which gives the transport of a caller.
    """
    bus = MemoryTransport("worker", vouches=True)
    if transport is not None and join is None:
        raise TypeError("A worker on a transport of its own needs join: a function that gives a caller's transport")
    worker, join = transport or bus, join or partial(_join, bus)
    async with AsyncExitStack() as opened:
        opened.push_async_callback(worker.close)
        await opened.enter_async_context(serve_calls(registry, worker, **options))
        yield CallsClient(registry, join, opened)


def _join(bus: MemoryTransport, identity: Identity | None) -> Transport:
    return bus.join(peer_name("stranger" if identity is None else identity.id), identity)


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
