"""The operations of other Enfold processes: found on a transport, called over it, followed as they come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Self

from enfold.calls.caller.peers import PeerDirectory, PeerLimits, PeerListing
from enfold.calls.caller.pending import PendingRequestMap
from enfold.calls.caller.remote import remote_operation
from enfold.calls.protocol.delegation import Sign
from enfold.calls.protocol.settings import CallSettings, Retry
from enfold.calls.protocol.transport import Transport
from enfold.operations import Operation, OperationSpec, OperationType
from enfold.operations.call import Middleware
from enfold.operations.operation import checked_middleware
from enfold.runtime.registry import OperationRegistry
from enfold.runtime.reserved import is_reserved
from enfold.sources.options import Filter, Selection
from enfold.sources.reports import ImportReport, Problem, SyncedRegistries, sync

__all__ = ["CallOperations", "from_calls"]


def from_calls(
    transport: Transport,
    *,
    namespace: str = "",
    name: str = "peers",
    include: Filter | None = None,
    exclude: Filter | None = None,
    rename: Mapping[str, str] | None = None,
    timeout: float | None = None,
    settings: CallSettings | None = None,
    retry: Retry | None = None,
    sign: Sign | None = None,
    refresh: float = 5.0,
    patience: float = 1.0,
    limits: PeerLimits | None = None,
    durable: bool = True,
    middleware: Iterable[Middleware] = (),
) -> CallOperations:
    """The operations of running peers, as `async with from_calls(transport) as operations:`.

    `name` is what `registry.sources` calls them. `include` and `exclude` are patterns over ids or names (`shop.*`), or functions of the spec; `rename` maps ids to ids,
    `namespace` goes before them all. `timeout` is how long a call may take, and how long a subscription may give no item.
    Peers are asked every `refresh` seconds and whenever one speaks up; `patience` is how long one may take, `limits` how
    much one peer may make us keep. With `durable=False` operations that may run as tasks are only called. `middleware` wraps their calls on this side; a worker has its own.
    """
    pending = PendingRequestMap(transport, settings=settings, retry=retry, sign=sign)
    directory = partial(PeerDirectory, transport, refresh=refresh, patience=patience, limits=limits)
    selection = Selection(include, exclude, rename or {})
    around = checked_middleware(middleware)
    return CallOperations(
        transport, pending, directory, name, namespace, selection, timeout, durable=durable, middleware=around
    )


class CallOperations:
    """The operations there are just now; a registry that is given to `keep` is kept in step."""

    def __init__(
        self,
        transport: Transport,
        pending: PendingRequestMap,
        directory: Callable[..., PeerDirectory],
        name: str,
        namespace: str,
        selection: Selection,
        timeout: float | None,
        *,
        durable: bool = True,
        middleware: tuple[Middleware, ...] = (),
    ) -> None:
        self.name = name
        self.pending = pending
        self._transport = transport
        self._namespace = namespace
        self._selection = selection
        self._timeout = timeout
        self._durable = durable
        self._middleware = middleware
        self._registries = SyncedRegistries(self, "calls")
        self._directory = directory(self._changed, self._registries.tell)
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
        """The ids that are there now, and what was left out because another operation has its id."""
        return ImportReport(self._operations, self._skipped)

    @property
    def skipped(self) -> list[Problem]:
        return self._skipped

    @property
    def is_up(self) -> bool:
        """Whether there is a connection to where the peers are; it is tried again until there is."""
        return not self._is_closed and self._directory.is_connected

    @property
    def why(self) -> str:
        """Why it is not up: the transport may know."""
        return "it has been closed" if self._is_closed else getattr(self._transport, "why", "")

    @property
    def workers(self) -> list[PeerListing]:
        return self._directory.workers

    def keep(self, registry: OperationRegistry) -> None:
        """Register what there is, now and from now on; an id that the registry has of its own is never replaced."""
        sync(registry, {}, self._operations)
        self._registries.add(registry, self.name)

    def keep_current(self, registry: OperationRegistry) -> None:
        """Keep a registry up to date that has just taken all of these: `register_all` asks for it."""
        self._registries.add(registry, self.name)

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back whenever the operations are others, or the connection was lost or is back."""
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
                continue  # the verbs of a peer's tasks: called by who knows them, and no operations of ours
            shown = self._shown(spec)
            if shown is not None and shown.id in self._operations:
                self._skipped.append(Problem(spec.id, f"another operation is called {shown.id}: rename one of them"))
            elif shown is not None:
                same = old.get(shown.id)
                kept = same if same is not None and same.spec == shown else None
                self._operations[shown.id] = kept or remote_operation(
                    spec, shown, self.pending, self._transport, source=self.name, idle=self._timeout
                ).replace(middleware=self._middleware)

    def _shown(self, spec: OperationSpec) -> OperationSpec | None:
        """The spec as it stands in our registry; None where it is not wanted."""
        wanted = self._selection.name(spec.id)
        if not self._selection.takes(spec, wanted):
            return None
        namespace, _, name = (f"{self._namespace}.{wanted}" if self._namespace else wanted).rpartition(".")
        is_stream = spec.type is OperationType.SUBSCRIPTION  # which may last: its limit is on being idle
        timeout = spec.timeout if self._timeout is None or is_stream else self._timeout
        durable = spec.durable if self._durable else "never"
        if (namespace, name, timeout, durable) == (spec.namespace, spec.name, spec.timeout, spec.durable):
            return spec
        return spec.replace(namespace=namespace, name=name, timeout=timeout, durable=durable)
