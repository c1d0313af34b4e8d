"""What the operations of a registry share while they are served: `App` and the commands fill it, calls use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from enfold.runtime.lifespan import Lifetime

if TYPE_CHECKING:
    from enfold.middleware.tasks import DurableCalls
    from enfold.operations import Context, Policy
    from enfold.operations.idempotency import IdempotencyStore
    from enfold.runtime.dependencies import AppDependencies
    from enfold.runtime.env import Env
    from enfold.runtime.threads import Threads

GRACE: Final = 25.0  # seconds for calls to end


class OtherProcesses(Protocol):
    """The other worker processes of this server. They answer questions by name, with plain data."""

    prefix: str  # what ids begin with that belong to this process: the others forward requests for them

    async def ask(self, name: str) -> list[Any]:
        """Ask all siblings and return their answers; one that is gone or slow is left out."""

    async def listen(self, name: str, callback: Callable[[Any], None]) -> None:
        """Call back with each message that they publish under this name, until cancelled."""


class Services:
    """The services of one registry and its views. The registry makes them and passes them on; it uses none itself."""

    __slots__ = (
        "admits_anonymous",
        "dependencies",
        "gauges",
        "grace",
        "has_identities",
        "idempotency_store",
        "lifetime",
        "listed_tool",
        "make_env",
        "new_idempotency_store",
        "siblings",
        "surfaces",
        "tasks",
        "threads",
    )

    def __init__(self, threads: Callable[[], Threads], make_env: Callable[[Context, Policy], Env]) -> None:
        self.threads = threads
        self.make_env = make_env
        self.lifetime = Lifetime(self._close_idempotency_store, self._close_dependencies)
        self.dependencies: AppDependencies | None = None  # those with scope `app`, made with the first of them
        self.grace: Callable[[], float] = lambda: GRACE  # the seconds left of it when the last call has ended
        self.idempotency_store: IdempotencyStore | None = None  # made with the first key
        self.new_idempotency_store: Callable[[], IdempotencyStore | None] = lambda: None  # None: one in memory
        self.tasks: DurableCalls | None = None  # runs durable operations as tasks
        self.siblings: OtherProcesses | None = None
        self.surfaces: dict[str, str] = {}  # the path of each surface by its name
        self.listed_tool: Callable[[str], bytes | None] | None = (
            None  # how a surface lists an operation to models, as JSON
        )
        self.has_identities = False  # whether a surface has callers with identities
        self.admits_anonymous = True  # whether callers without one may call more than what is declared public
        self.gauges: dict[str, Callable[[], Mapping[str, float]]] = {}  # numbers of this moment, such as tasks by state

    def open_idempotency_store(self) -> IdempotencyStore:
        """Return the configured idempotency store, or one in memory that all surfaces share."""
        if self.idempotency_store is None:
            self.idempotency_store = self.new_idempotency_store() or _memory_store()
        return self.idempotency_store

    async def _close_idempotency_store(self, grace: float | None) -> None:
        if self.idempotency_store is not None:
            await self.idempotency_store.close(self.grace() if grace is None else grace)

    def open_dependencies(self) -> AppDependencies:
        """The dependencies of the application, which all operations share."""
        if self.dependencies is None:
            from enfold.runtime.dependencies import AppDependencies  # loaded with the first dependency

            self.dependencies = AppDependencies()
        return self.dependencies

    async def _close_dependencies(self) -> None:
        if self.dependencies is not None:
            await self.dependencies.close()


def _memory_store() -> IdempotencyStore:
    from enfold.middleware.idempotency_store import MemoryIdempotencyStore  # which needs asyncio

    return MemoryIdempotencyStore()
