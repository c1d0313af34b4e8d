"""The application behind a registry: its name for clients, the services that its calls use, its start and its stop.

`App` and the commands fill in the services; the registry makes them and passes them on.
"""

from __future__ import annotations

import os.path
from _thread import allocate_lock, get_ident  # `threading` takes longer to import, and few programs need it
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

import msgspec

from enfold.operations import is_coroutine_function
from enfold.runtime.handlers import loop_is_running

if TYPE_CHECKING:
    from concurrent.futures import Future
    from importlib.metadata import Distribution

    from enfold.middleware.tasks import DurableCalls
    from enfold.operations import Context, Policy
    from enfold.operations.idempotency import IdempotencyStore
    from enfold.runtime.dependencies import AppDependencies
    from enfold.runtime.env import Env
    from enfold.runtime.source_states import SourceTable
    from enfold.runtime.threads import Threads

DEFAULT_NAME: Final = "enfold"
NO_VERSION: Final = "0.0.0"
GRACE: Final = 25.0  # seconds for calls to end

Hook: TypeAlias = Callable[[], Any]  # a `def` or an `async def`
T = TypeVar("T")


class Application(msgspec.Struct, frozen=True):
    """An application as clients see it: `serverInfo` over MCP, `info` in the OpenAPI document."""

    name: str
    version: str


def file_name(path: str) -> str:
    """Return the name of a file without its extension; for the main file of a package, the name of the package."""
    folder, file = os.path.split(os.path.abspath(path))
    stem = file.partition(".")[0] or file
    return os.path.basename(folder) if stem in ("__init__", "__main__") else stem


def module_name(module: Mapping[str, Any]) -> str:
    """Return the name of the file that a module (its globals) was loaded from; "" if it has none."""
    path = module.get("__file__")
    return file_name(path) if isinstance(path, str) else ""


def module_version(module: Mapping[str, Any]) -> str:
    """Return the version of the distribution that a module (its globals) comes from; "" if there is none.

    A script outside of any package is not looked up: reading the installed distributions takes longer than it takes to start.
    """
    package = _top_package(module)
    return _distribution_version(package) if package else ""


def _top_package(module: Mapping[str, Any]) -> str:
    """Return the top-level package of a module, also for a file in a package that was loaded by its path."""
    package = str(module.get("__package__") or "").partition(".")[0]
    path = module.get("__file__")
    if package or not isinstance(path, str):
        return package
    folder, file = os.path.split(os.path.abspath(path))
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, package = os.path.split(folder)
    is_installed = os.path.basename(folder) in ("site-packages", "dist-packages")
    return package or (file.partition(".")[0] if is_installed else "")


def _distribution_version(package: str) -> str:
    # Slow to import, and only asked for by applications that are part of a package.
    from importlib.metadata import PackageNotFoundError, distributions, version

    try:
        return version(package)  # usually both have one name
    except PackageNotFoundError:
        return next((found.version for found in distributions() if _provides(found, package)), "")


def _provides(distribution: Distribution, package: str) -> bool:
    """Whether a package belongs to a distribution. The texts are searched, because parsing all of them takes too long."""
    record = "\n" + (distribution.read_text("RECORD") or "")
    named = (distribution.read_text("top_level.txt") or "").split()
    return package in named or f"\n{package}/" in record or f"\n{package}.py," in record


class OtherProcesses(Protocol):
    """The other worker processes of this server. They answer questions by name, with plain data."""

    prefix: str  # what ids begin with that belong to this process: the others forward requests for them

    async def ask(self, name: str) -> list[Any]:
        """Ask all siblings and return their answers; one that is gone or slow is left out."""

    async def listen(self, name: str, callback: Callable[[Any], None]) -> None:
        """Call back with each message that they publish under this name, until cancelled."""


class Services:
    """What the calls and surfaces of one registry share. An `App` owns and fills them; without one, the defaults do."""

    def __init__(self, make_env: Callable[[Context, Policy], Env], thread_limit: int) -> None:
        from enfold.observability.observers import Observers  # with the first registry: many only import us

        self.make_env = make_env
        self._thread_limit = thread_limit
        self.observers = Observers()  # each gets a record of every call
        self._lock = allocate_lock()  # calls of several threads share what the first of them makes
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

    @cached_property
    def threads(self) -> Threads:
        """The worker threads for `def` handlers."""
        from enfold.runtime.threads import Threads  # which needs asyncio

        return Threads(self._thread_limit)

    @cached_property
    def sources(self) -> SourceTable:
        """The sources of the operations, and the current state of each."""
        from enfold.runtime.source_states import SourceTable  # a program without sources starts without

        return SourceTable()

    def open_idempotency_store(self) -> IdempotencyStore:
        """Return the configured idempotency store, or one in memory that all surfaces share."""
        if self.idempotency_store is None:
            with self._lock:
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

            with self._lock:
                if self.dependencies is None:
                    self.dependencies = AppDependencies()
        return self.dependencies

    async def _close_dependencies(self) -> None:
        if self.dependencies is not None:
            await self.dependencies.close()


def _memory_store() -> IdempotencyStore:
    from enfold.middleware.idempotency_store import MemoryIdempotencyStore  # which needs asyncio

    return MemoryIdempotencyStore()


class Lifetime:
    """The hooks of `on_start` and `on_stop`, and whether the `on_start` hooks have run.

    A server calls `start` and `stop`; several may share one registry. Without a server the first call runs the `on_start`
    hooks, and `during` runs the `on_stop` hooks after a piece of work.
    """

    __slots__ = (
        "_after_stop",
        "_before_stop",
        "_hooks_run_in",
        "_included",
        "_includers",
        "_is_open",
        "_lock",
        "_on_start",
        "_on_stop",
        "_opening",
        "_started",
        "_stop_watching",
        "_users",
        "is_ready",
    )

    def __init__(
        self,
        before_stop: Callable[[float | None], Awaitable[None]] | None = None,
        after_stop: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`before_stop` is awaited with the grace period when the last user has gone, `after_stop` after the hooks."""
        self._before_stop = before_stop
        self._after_stop = after_stop
        self._on_start: list[Hook] = []
        self._on_stop: list[Hook] = []
        self._included: list[Lifetime] = []  # those of registries whose operations this one has taken
        self._includers: list[Lifetime] = []  # of registries that have taken the operations of this one
        self._started: list[Lifetime] = []  # of the included ones
        self._users = 0
        self._is_open = False
        self._opening: Future[None] | None = None  # callers on other threads and loops wait for it, too
        self._hooks_run_in: object = None  # the task or thread
        self._lock = allocate_lock()
        self._stop_watching: Callable[[], None] | None = None
        self.is_ready = True  # as long as there is nothing to run

    def add(self, start: Hook | None = None, stop: Hook | None = None) -> None:
        if self._is_open:
            raise RuntimeError(
                "The registry is already in use: register on_start and on_stop functions before the first call"
            )
        self._on_start += [] if start is None else [start]
        self._on_stop += [] if stop is None else [stop]
        self._must_open()

    def include(self, other: Lifetime) -> None:
        """Start another registry, whose operations this one has taken, before the own hooks, and stop it after them."""
        if other is self or other in self._included:
            return
        self._included.append(other)
        other._includers.append(self)
        if not other.is_ready:
            self._must_open()

    def _must_open(self) -> None:
        """Note that there is something to start before the next call, here and for all who include this."""
        if self.is_ready or self._opening is not None:
            self.is_ready, self._opening = False, None
            for each in self._includers:
                each._must_open()

    @property
    def needs_loop(self) -> bool:
        """Whether a hook is an `async def`."""
        hooks = (*self._on_start, *self._on_stop)
        return any(is_coroutine_function(hook) for hook in hooks) or any(each.needs_loop for each in self._included)

    @property
    def needs_stop(self) -> bool:
        """Whether there is anything to close after the last call."""
        return bool(self._on_stop) or any(each.needs_stop for each in self._included)

    async def start(self) -> None:
        """Add a user; the first one runs the `on_start` hooks. Warns of operations that block the event loop."""
        from enfold.observability.loop_watch import watch_running_loop  # for servers alone

        self._users += 1
        if self._stop_watching is None:
            self._stop_watching = watch_running_loop()
        try:
            await self.make_ready()
        except BaseException:
            self._leave()
            raise

    async def make_ready(self) -> None:
        """Run the `on_start` hooks unless they have run; callers at the same time wait for one run.

        Calls that a hook makes do not wait for it.
        """
        if self.is_ready or self._hooks_run_in == _here():
            return
        opening, is_own = self._begin_opening()
        if is_own and not self.needs_loop:
            await self._open(opening)
            return
        if not is_own and not loop_is_running():
            opening.result()
            return
        import asyncio  # slow to import: without hooks that wait no loop is needed

        # A task continues if the caller who started it leaves.
        await asyncio.shield(asyncio.ensure_future(self._open(opening)) if is_own else asyncio.wrap_future(opening))

    def _begin_opening(self) -> tuple[Future[None], bool]:
        """Return a future that all callers wait for, and whether this caller is the first and runs the hooks."""
        from concurrent.futures import Future  # only programs with hooks need it

        with self._lock:
            is_own = self._opening is None
            self._opening = opening = self._opening or Future()
        return opening, is_own

    async def stop(self, grace: float | None = None) -> None:
        """Remove a user; the last one runs the `on_stop` hooks in reverse order.

        Calls with an idempotency key that run on after their callers have left get `grace` seconds to end first.
        """
        self._leave()
        if self._users:
            return
        if self._before_stop is not None:
            await self._before_stop(grace)
        try:
            if self._is_open:
                self._is_open, self.is_ready, self._opening = False, False, None
                self._hooks_run_in = _here()
                for hook in reversed(self._on_stop):
                    await _run(hook)
        finally:
            self._hooks_run_in = None
            try:
                while self._started:
                    await self._started.pop().stop(grace)
            finally:
                if self._after_stop is not None:
                    await self._after_stop()

    def _leave(self) -> None:
        self._users = max(0, self._users - 1)
        if not self._users and self._stop_watching is not None:
            self._stop_watching()
            self._stop_watching = None

    async def during(self, work: Awaitable[T]) -> T:
        """Await some work, then run the `on_stop` hooks if it caused the `on_start` hooks to run."""
        try:
            return await work
        finally:
            await self.stop()

    async def _open(self, opening: Future[None]) -> None:
        self._hooks_run_in = _here()
        try:
            for each in self._included:
                if each not in self._started:
                    await each.make_ready()
                    each._users += 1
                    self._started.append(each)
            for hook in () if self._is_open else self._on_start:
                await _run(hook)
            self._is_open = self.is_ready = True
            opening.set_result(None)
        except BaseException as error:
            self._opening = None
            is_plain = isinstance(error, Exception)
            opening.set_exception(error if is_plain else RuntimeError("The start was cancelled"))
            raise
        finally:
            self._hooks_run_in = None


def _here() -> object:
    """Return the asyncio task that runs, or the thread where there is none."""
    if not loop_is_running():
        return get_ident()
    import asyncio  # loaded already

    return asyncio.current_task()


async def _run(hook: Hook) -> None:
    result = hook()
    if hasattr(result, "__await__"):
        await result
