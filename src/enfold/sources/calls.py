"""The operations of other Enfold processes: discovered on a transport, called over it, and kept in sync."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Self

import msgspec

from enfold.calls.caller.peers import Discovery, PeerDirectory, PeerListing
from enfold.calls.caller.pending import PendingRequestMap, RemoteHandler
from enfold.calls.protocol.transport import Transport
from enfold.operations import Operation, OperationSpec, OperationType, Origin
from enfold.operations.call import Middleware
from enfold.operations.http_route import route_below
from enfold.operations.operation import checked_middleware
from enfold.runtime.registry import OperationRegistry
from enfold.runtime.reserved import is_reserved
from enfold.sources.options import Selection
from enfold.sources.reports import ImportReport, Problem, SyncedRegistries, sync

__all__ = ["CallOperations", "Discovery", "from_calls"]


def from_calls(
    transport: Transport,
    *,
    namespace: str = "",
    name: str = "peers",
    calls: PendingRequestMap | None = None,
    selection: Selection = Selection(),
    timeout: float | None = None,
    durable: bool = True,
    discovery: Discovery = Discovery(),
    middleware: Iterable[Middleware] = (),
) -> CallOperations:
    """Import the operations of running peers: `async with from_calls(transport) as operations:`.

    `name` identifies the source in `registry.services.sources`; `namespace` is prepended to every id. `calls` makes the calls; pass
    your own to change timeouts, retries or delegation. `selection` filters and renames by id (`shop.*`).
    `timeout` limits a call, and how long a subscription may be idle. With `durable=False` operations that may run as tasks
    are always called directly. `middleware` wraps the calls on this side; a worker has its own.
    """
    pending = calls or PendingRequestMap(transport)
    return CallOperations(
        transport,
        pending,
        discovery,
        Import(name, namespace, selection, timeout, durable, checked_middleware(middleware)),
    )


class Import(msgspec.Struct, frozen=True):
    """How the operations of peers are imported."""

    name: str
    namespace: str
    selection: Selection
    timeout: float | None
    durable: bool
    middleware: tuple[Middleware, ...]

    def apply(self, spec: OperationSpec) -> OperationSpec | None:
        """Return the spec for our registry; None if it is not selected."""
        wanted = self.selection.name(spec.id)
        if not self.selection.takes(spec, wanted):
            return None
        namespace, _, name = (f"{self.namespace}.{wanted}" if self.namespace else wanted).rpartition(".")
        is_stream = spec.type is OperationType.SUBSCRIPTION  # limited by its idle time instead
        timeout = spec.timeout if self.timeout is None or is_stream else self.timeout
        durable = spec.durable if self.durable else "never"
        http = route_below(self.namespace, spec.http)
        if (namespace, name, timeout, durable) == (spec.namespace, spec.name, spec.timeout, spec.durable):
            return spec
        return spec.replace(namespace=namespace, name=name, timeout=timeout, durable=durable, http=http)


class CallOperations:
    """The operations that peers serve now; registries passed to `keep` are kept in sync."""

    def __init__(
        self, transport: Transport, pending: PendingRequestMap, discovery: Discovery, imported: Import
    ) -> None:
        self.name = imported.name
        self.pending = pending
        self._transport = transport
        self._import = imported
        self._registries = SyncedRegistries(self, "calls")
        self._directory = PeerDirectory(transport, self._changed, self._registries.tell, discovery)
        self._operations: dict[str, Operation] = {}
        self._skipped: list[Problem] = []
        self._is_closed = False

    async def __aenter__(self) -> Self:
        await self._directory.start()
        self._read()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._directory.close()
        await self.pending.close()
        self._is_closed = True
        self._registries.close()

    def __iter__(self) -> Iterator[Operation]:
        return iter(list(self._operations.values()))

    def __len__(self) -> int:
        return len(self._operations)

    def __repr__(self) -> str:
        return f"<CallOperations {len(self)} of {len(self.workers)} workers>"

    @property
    def report(self) -> ImportReport:
        """The ids that are imported, and those that were skipped because another operation has the id."""
        return ImportReport(self._operations, self._skipped)

    @property
    def skipped(self) -> list[Problem]:
        return self._skipped

    @property
    def is_up(self) -> bool:
        """Whether there is a connection; it is retried until there is."""
        return not self._is_closed and self._directory.is_connected

    @property
    def why(self) -> str:
        """Why the source is not up, if the transport knows."""
        return "it has been closed" if self._is_closed else getattr(self._transport, "why", "")

    @property
    def workers(self) -> list[PeerListing]:
        return self._directory.workers

    def keep(self, registry: OperationRegistry) -> None:
        """Register the operations and keep the registry in sync; ids that it already has are never replaced."""
        sync(registry, {}, self._operations)
        self._registries.add(registry, self.name)

    def keep_current(self, registry: OperationRegistry) -> None:
        """Keep a registry in sync that has just registered all operations; called by `register_all`."""
        self._registries.add(registry, self.name)

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back whenever the operations change, or the connection is lost or restored."""
        self._registries.watch(callback)

    def _changed(self) -> None:
        before = self._operations
        self._read()
        self._registries.update(before, self._operations)

    def _read(self) -> None:
        """Make an operation of each spec; one that has not changed stays the operation it was."""
        old, self._operations, self._skipped = self._operations, {}, []
        for spec in self._directory.specs().values():
            self.pending.remember(spec.id)
            if is_reserved(spec.namespace):
                continue  # task operations of a peer, which are called internally
            try:
                shown = self._import.apply(spec)
            except ValueError as error:  # the id is too long below our namespace
                self._skipped.append(Problem(spec.id, str(error)))
                continue
            if shown is not None and shown.id in self._operations:
                self._skipped.append(Problem(spec.id, f"another operation is called {shown.id}: rename one of them"))
            elif shown is not None:
                same = old.get(shown.id)
                kept = same if same is not None and same.spec == shown else None
                self._operations[shown.id] = kept or Operation(
                    shown,
                    RemoteHandler(spec, self.pending, self._transport, self._import.timeout),
                    origin=Origin("calls", self.name),
                    middleware=self._import.middleware,
                )
