"""A registry served to the peers of a transport: its operations offered, described, and kept in step with it."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from enfold.access import may_list
from enfold.calls.caller.remote import is_reached_over
from enfold.calls.protocol.call_settings import CallSettings, WorkerLimits
from enfold.calls.protocol.delegation import Verify
from enfold.calls.protocol.subjects import peer_name
from enfold.calls.protocol.transport import Transport, TransportError
from enfold.calls.transports.addresses import reached
from enfold.calls.worker.announcer import Announcer
from enfold.calls.worker.handler import CallHandler
from enfold.calls.worker.micro import MicroService
from enfold.calls.worker.once_store import MemoryOnceStore, OnceStore
from enfold.operation import Identity, OperationSpec, Recording
from enfold.registry import Registry

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from enfold.provenance import Recorder

__all__ = ["Serving", "add_work_options", "run_work", "serve_calls", "work"]

_log: Final = logging.getLogger("enfold.calls")


def serve_calls(
    registry: Registry,
    transport: Transport,
    *,
    service: str = "enfold",
    version: str = "1.0.0",
    settings: CallSettings | None = None,
    limits: WorkerLimits | None = None,
    store: OnceStore | None = None,
    verify: Verify | None = None,
    recorder: Recorder | None = None,
) -> Serving:
    """Serve a registry: `async with serve_calls(registry, transport):`, or `await` it and close it later.

    `store` keeps first results for idempotency keys (in memory unless given), `verify` reads delegations, `recorder`
    records the runs of callers who ask for provenance.
    """
    handler = CallHandler(
        registry,
        transport,
        settings=settings,
        limits=limits,
        store=store or MemoryOnceStore(),
        verify=verify,
        record=None if recorder is None else partial(_begin, recorder),
    )
    return Serving(handler, transport, service, version)


def _begin(recorder: Recorder, asked: dict[str, Any], identity: Identity | None) -> Recording | None:
    from enfold.provenance import options_from_call

    return recorder.begin(options_from_call(asked), adapter="calls", identity=identity.id if identity else "")


class Serving:
    """A registry on a transport, from its first offer to its last answer."""

    def __init__(self, handler: CallHandler, transport: Transport, service: str, version: str) -> None:
        self.handler = handler
        self.refused: dict[str, str] = {}  # operations the transport does not let us offer, and why
        self._transport = transport
        self._announcer = Announcer(transport, handler.boot, self._visible)
        self._micro = MicroService(transport, handler, service, version)
        self._stop_watching: Any = None
        self._change = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()

    async def start(self) -> None:
        await self.handler.start()
        self._stop_watching = self.handler.registry.watch(self._change.set)
        await self._offer_all()
        await self._announcer.start()
        await self._micro.start()
        await self._announcer.announce("up")
        self._following = asyncio.create_task(self._follow())

    async def close(self, *, drain: bool = True) -> None:
        """Take no more calls, let those that run come to their end, and say goodbye."""
        if self._following is None:
            return
        self._stop_watching()
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)
        self._following = None
        await self._micro.close()
        await self.handler.close(drain=drain)
        await self._announcer.close()

    async def _follow(self) -> None:
        """Offer what is registered later, and withdraw what is taken away."""
        while True:
            await self._change.wait()
            self._change.clear()
            await self._offer_all()
            await self._announcer.announce("changed")

    async def _offer_all(self) -> None:
        wanted = {spec.id for spec in self._own()}
        for operation_id in set(self.handler.offered) - wanted:
            await self.handler.withdraw(operation_id)
        missing = [operation_id for operation_id in wanted if operation_id not in self.handler.offered]
        await asyncio.gather(*(self._offer(operation_id) for operation_id in missing))

    async def _offer(self, operation_id: str) -> None:
        try:
            await self.handler.offer(operation_id)
            self.refused.pop(operation_id, None)
        except TransportError as error:
            self.refused[operation_id] = str(error)
            _log.warning("%s cannot be offered: %s", operation_id, error)

    def _own(self) -> Iterable[OperationSpec]:
        """What is served here; what we have from this transport ourselves would go round in circles."""
        for operation in self.handler.registry:
            if operation.handler is not None and not is_reached_over(operation, self._transport):
                yield operation.spec

    def _visible(self, identity: Identity | None) -> list[OperationSpec]:
        offered = set(self.handler.offered)
        return [spec for spec in self._own() if spec.id in offered and may_list(spec.access_control, identity)]


# --- the command `enfold work` ------------------------------------------------------------------------------------


def add_work_options(parser: ArgumentParser) -> None:
    """What `enfold work` takes beside its target."""
    from enfold.calls.command import add_address_options

    add_address_options(parser)
    parser.add_argument("--users", type=Path, help="NATS: what each user may do, as for `enfold nats permissions`")
    parser.add_argument("--running", type=int, default=WorkerLimits().running, help="calls that run at the same time")
    parser.add_argument(
        "--waiting", type=int, default=WorkerLimits().waiting, help="calls that may wait for their turn"
    )
    parser.add_argument("--service", default="enfold", help="the name of the service")


def run_work(opened: AbstractAsyncContextManager[Registry], options: Namespace, *, token: str | None = None) -> int:
    """Serve a registry to the peers of a server or hub until told to stop, then let calls come to their end."""
    identities = None if options.users is None else _identities(options.users)

    async def run() -> None:
        place, limits = options.nats or options.hub, WorkerLimits(options.running, options.waiting)
        known = {"name": options.name, "token": token, "insecure": options.insecure, "identities": identities}
        async with opened as registry, reached(place, **known) as transport:
            await work(registry, transport, service=options.service, limits=limits)

    asyncio.run(run())
    return 0


def _identities(file: Path) -> dict[str, Identity]:
    from enfold.calls.command import users_in

    return {peer_name(user.identity.id): user.identity for user in users_in(file)}


async def work(registry: Registry, transport: Transport, *, service: str = "enfold", limits: WorkerLimits) -> None:
    """Serve until the process is told to stop."""
    import signal

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    async with serve_calls(registry, transport, service=service, limits=limits) as serving:
        sys.stderr.write("\n".join(_said(serving, transport)) + "\n")
        sys.stderr.flush()
        await stopping.wait()


def _said(serving: Serving, transport: Transport) -> Iterator[str]:
    count = len(serving.handler.offered)
    yield f"Enfold serves {count} operations as {transport.name}. Press Ctrl-C to stop."
    for operation_id, reason in serving.refused.items():
        yield f"  not {operation_id}: {reason}"
    guarded = [spec.id for spec in serving.handler.registry.list() if not may_list(spec.access_control, None)]
    if guarded and not transport.capabilities.peer_identity:
        yield f"  Nobody can call {', '.join(guarded)}: the server does not say who calls. See: enfold nats permissions"
