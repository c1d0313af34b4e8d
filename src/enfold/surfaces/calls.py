"""Serve a registry to the peers of a transport: offer and describe its operations, and follow its changes."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from enfold.calls.caller.pending import RemoteHandler
from enfold.calls.protocol.delegation import Verify
from enfold.calls.protocol.settings import CallSettings, WorkerLimits
from enfold.calls.protocol.transport import DeniedError, Transport, TransportError
from enfold.calls.worker.announcer import Announcer
from enfold.calls.worker.handler import CallHandler
from enfold.observability.log import Log
from enfold.operations import Identity, OperationSpec
from enfold.operations.access import may_list
from enfold.operations.idempotency import IdempotencyStore
from enfold.runtime.registry import Registry
from enfold.runtime.reserved import TASK_VERBS

if TYPE_CHECKING:
    from enfold.operations.operation import RecordedRun
    from enfold.provenance import Recorder

__all__ = ["Serving", "serve_calls"]

OFFER_AGAIN: Final = 0.5  # seconds until what could not be offered without a connection is offered again

_log: Final = Log("enfold.calls")


def serve_calls(
    registry: Registry,
    transport: Transport,
    *,
    service: str = "enfold",
    version: str = "1.0.0",
    settings: CallSettings | None = None,
    limits: WorkerLimits | None = None,
    store: IdempotencyStore | None = None,
    verify: Verify | None = None,
    recorder: Recorder | None = None,
) -> Serving:
    """Serve a registry: `async with serve_calls(registry, transport):`, or `await` it and close it later.

    `store` is the idempotency store (by default, a bucket that all workers on NATS share; otherwise memory), `verify` reads
    delegations, `recorder` records the runs of callers who ask for provenance.
    """
    handler = CallHandler(
        registry,
        transport,
        settings=settings,
        limits=limits,
        store=store,
        verify=verify,
        record=None if recorder is None else partial(_begin, recorder),
    )
    return Serving(handler, transport, service, version)


def _begin(
    recorder: Recorder, spec: OperationSpec, asked: dict[str, Any] | None, identity: Identity | None
) -> RecordedRun | None:
    from enfold.provenance import options_from_call  # with the first call that asks for a record

    caller = identity.id if identity else ""
    return recorder.begin(options_from_call(asked), operation=spec, adapter="calls", identity=caller)


class Serving:
    """A registry that is served on a transport."""

    def __init__(self, handler: CallHandler, transport: Transport, service: str, version: str) -> None:
        self.handler = handler
        self.refused: dict[str, str] = {}  # operations the transport does not let us offer, and why
        self._transport = transport
        self._announcer = Announcer(transport, handler, self._visible, service, version)
        self._stop_watching: Any = None
        self._change = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self._is_disconnected = False  # an operation could not be offered for want of a connection

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()

    async def start(self) -> None:
        await self.handler.registry.services.lifetime.start()
        await self.handler.start()
        self._stop_watching = self.handler.registry.watch(self._change.set)
        await self._offer_all()
        await self._announcer.start()
        self._following = asyncio.create_task(self._follow())

    async def close(self, *, drain: bool = True) -> None:
        """Accept no more calls, let running calls finish, and announce the end to peers."""
        if self._following is None:
            return
        self._stop_watching()
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)
        self._following = None
        await self.handler.close(drain=drain)
        await self._announcer.close()
        await self.handler.registry.services.lifetime.stop()

    async def _follow(self) -> None:
        """Offer operations that are registered later, and withdraw those that are removed."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(OFFER_AGAIN if self._is_disconnected else None):
                    await self._change.wait()
            has_changed, before = self._change.is_set(), self.handler.offered
            self._change.clear()
            await self._offer_all()
            if has_changed or self.handler.offered != before:
                await self._announcer.announce("changed")

    async def _offer_all(self) -> None:
        self._is_disconnected = False
        wanted = {spec.id for spec in self._servable()}
        for operation_id in set(self.handler.offered) - wanted:
            await self.handler.withdraw(operation_id)
        missing = [operation_id for operation_id in wanted if operation_id not in self.handler.offered]
        await asyncio.gather(*(self._offer(operation_id) for operation_id in missing))

    async def _offer(self, operation_id: str) -> None:
        try:
            await self.handler.offer(operation_id)
            self.refused.pop(operation_id, None)
        except TransportError as error:
            self._is_disconnected |= not isinstance(error, DeniedError)
            if self.refused.get(operation_id) != str(error):
                self.refused[operation_id] = str(error)
                _log.warning("%s cannot be offered: %s", operation_id, error)

    def _servable(self) -> Iterable[OperationSpec]:
        """Return the operations to offer, without those imported from the same transport, which would loop."""
        for operation in self.handler.registry:
            handler: object = operation.handler
            is_theirs = isinstance(handler, RemoteHandler) and handler.transport is self._transport
            if handler is not None and not is_theirs:
                yield operation.spec
        yield from self.handler.registry.list(namespace=TASK_VERBS)

    def _visible(self, identity: Identity | None) -> list[OperationSpec]:
        offered = set(self.handler.offered)
        return [spec for spec in self._servable() if spec.id in offered and may_list(spec.access_control, identity)]
