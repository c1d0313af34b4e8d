"""The sources of a configuration, opened together: one that is down does not stop the others, is tried again, and shown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from enfold.app.file import Config, Logins, SourceEntry, read_config
from enfold.app.sources import RULES, OpenSource, load_middleware, open_source, patterns_of, under_rules
from enfold.errors import CallError, sentence_of
from enfold.log import Log, counted
from enfold.operations import DEFAULT_POLICY, Operation, Policy
from enfold.runtime.registry import OperationRegistry
from enfold.runtime.source_states import REQUIRED
from enfold.sources.reports import DefinitionLedger
from enfold.version import install_command

log: Final = Log("enfold.app")

PATIENCE: Final = 20.0  # seconds that the start waits for slow sources
SHORT_PATIENCE: Final = 0.5  # the same, for sources that are not required, where somebody waits for us to serve
QUIET: Final = 3.0  # of these, the seconds after which it says for whom it waits
FIRST_BACKOFF: Final = 1.0  # seconds before a source that is down is tried again; each time twice as many
MAX_BACKOFF: Final = 60.0
LOGIN_BACKOFF: Final = 600.0  # seconds before a user is asked again to log in
POLL_INTERVAL: Final = 2.0  # seconds between two looks at a source that was up
DRAIN_TIMEOUT: Final = 60.0  # seconds for the calls of a source that is no longer wanted
DRAIN_INTERVAL: Final = 0.05


class Difference(msgspec.Struct, frozen=True):
    """What another configuration changed: the names of sources, and of the tables that are read only at the start."""

    opened: list[str]
    reopened: list[str]
    closed: list[str]
    needs_restart: list[str]

    def __str__(self) -> str:
        words = {"opened": self.opened, "opened anew": self.reopened, "closed": self.closed}
        parts = [f"{', '.join(names)} {word}" for word, names in words.items() if names]
        return "; ".join(parts) or "nothing to open or close"


class ConfiguredRegistry(OperationRegistry):
    """The operations of all sources of a file, as they come and go; `sources` shows how each source is."""

    def __init__(self, config: Config) -> None:
        super().__init__(**config.policy, **config.app)
        self.module = {"__file__": config.path}
        self.config = config
        self.definitions = DefinitionLedger()
        for middleware in load_middleware(config.middleware, config):
            self.middleware(middleware)
        self._keepers: dict[str, _Keeper] = {}
        self._retiring: set[asyncio.Task[None]] = set()

    def apply(self, config: Config) -> Difference:
        """Change to another configuration: sources that are new or changed are opened, the others are not touched.

        A changed source goes on until its successor is there, or could not be opened; then its calls come to their end.
        So does one that has another name now. Until then it serves under the rules of the new configuration.
        """
        old_config, self.config = self.config, config
        is_all = config.policy != old_config.policy
        if is_all:
            self._policy = Policy(**config.policy).over(DEFAULT_POLICY)
        opened, reopened = [], []
        closed = self._keepers.keys() - {source.name for source in config.sources}
        renamed = {_location(self._keepers[name].source): name for name in closed}
        for source in config.sources:
            old = self._keepers.get(source.name)
            if old is None:
                opened.append(source.name)
                old = self._keepers.pop(renamed.pop(_location(source), ""), None)
            elif is_all or not old.is_for(source, config):
                reopened.append(source.name)
            else:
                continue
            before = None if old is None else old.hand_over()
            if before is not None:
                before.adopt_rules(source)
            self._keepers[source.name] = _Keeper(source, config, self, before)
            self._keepers[source.name].start()
        for name in closed & self._keepers.keys():
            self._close(name)
        return Difference(opened, reopened, sorted(closed), _needing_restart(old_config, config))

    def _close(self, name: str) -> None:
        keeper = self._keepers.pop(name).hand_over()
        self.sources.remove(name)
        if keeper is not None:
            self.retire(keeper)

    def retire(self, keeper: _Keeper) -> None:
        """Let the running calls of a source finish, and close it."""
        if keeper.name not in self._keepers:
            self.sources.remove(keeper.name)
        task = asyncio.get_running_loop().create_task(keeper.retire())
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def first_tries(self, patience: float, for_optional: float) -> None:
        """Wait until every source has been tried once; for one that is not required, no longer than `for_optional`."""
        required = [keeper for keeper in self._keepers.values() if keeper.is_required]
        optional = [keeper for keeper in self._keepers.values() if not keeper.is_required]
        await asyncio.gather(_first_tries(required, patience), _first_tries(optional, for_optional))

    def check_programs(self) -> None:
        """Refuse a configuration whose `functions` name a file, a module or an attribute that is not there, or is empty."""
        for keeper in self._keepers.values():
            if keeper.is_misnamed:
                raise CallError("VALIDATION_ERROR", keeper.mistake)

    async def aclose(self) -> None:
        """Close all sources at once, even under calls that still run."""
        keepers = [each for keeper in self._keepers.values() for each in keeper.with_predecessor()]
        await asyncio.gather(*(keeper.close() for keeper in keepers))
        for task in list(self._retiring):
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)


def _location(source: SourceEntry) -> str:
    """The namespace or the program of a source: two sources of one location cannot both be open."""
    is_named = source.kind != "functions" or "namespace" in source.entry
    return source.namespace if is_named else str(source.entry["functions"])


def _needing_restart(before: Config, after: Config) -> list[str]:
    """The tables that have changed, and are read only at the start."""
    fields = [name for name in Config.__struct_fields__ if name not in _APPLIED]
    changed = [name for name in fields if getattr(before, name) != getattr(after, name)]
    return ["auth" if name == "issuers" else name for name in changed]


# The fields of a configuration that `apply` changes, or that are not of the file.
_APPLIED: Final = frozenset({"path", "folder", "sources", "policy", "logins", "text", "version"})


def open_config(
    path: str | Path | Config,
    environ: Mapping[str, str],
    *,
    patience: float = PATIENCE,
    logins: Logins | None = None,
    operation: str | None = None,
    waits_for_optional: bool = True,
) -> AbstractAsyncContextManager[ConfiguredRegistry]:
    """Open every source of a file: `async with open_config("mcp.json", os.environ) as registry`.

    In place of its path a file may be given that has been read already. One that is wrong raises at once. Sources
    that are not up within `patience` seconds come later, by themselves. `logins` says how a user logs in where a server
    asks for it, and where that is kept. With `operation` only the sources are opened that may have it. Without
    `waits_for_optional` a source that is not required has no more than half a second until it comes later.
    """
    found = path if isinstance(path, Config) else read_config(path, environ)
    whole = msgspec.structs.replace(found, logins=logins or Logins())
    config = whole if operation is None else whole.with_only(operation)
    has_login = any("auth" in source.entry for source in config.sources)
    whole_patience = max(patience, config.logins.patience) if has_login else patience
    return open_sources(config, patience=whole_patience, waits_for_optional=waits_for_optional)


@asynccontextmanager
async def open_sources(
    config: Config, *, patience: float = PATIENCE, waits_for_optional: bool = True
) -> AsyncIterator[ConfiguredRegistry]:
    """Open every source of a configuration, and close them at the end."""
    registry = ConfiguredRegistry(msgspec.structs.replace(config, sources=()))
    registry.apply(config)
    try:
        await registry.first_tries(patience, patience if waits_for_optional else min(patience, SHORT_PATIENCE))
        yield registry
    finally:
        await registry.aclose()


async def _first_tries(keepers: list[_Keeper], patience: float) -> None:
    """Wait until every source has been tried once, and say which ones take long."""
    tries = {asyncio.create_task(keeper.tried.wait()): keeper for keeper in keepers}
    if not tries:
        return
    _, slow = await asyncio.wait(tries, timeout=min(QUIET, patience))
    if slow and patience > QUIET:
        log.info("Waiting for %s", ", ".join(keeper.name for trying, keeper in tries.items() if trying in slow))
        _, slow = await asyncio.wait(slow, timeout=patience - QUIET)
    for trying in slow:
        trying.cancel()
        tries[trying].is_late = True
        log.info("%s has not answered yet", tries[trying].name)


class _Keeper:
    """Keeps one source open: retries until it is, registers its operations, and reconnects when it was lost."""

    def __init__(
        self, source: SourceEntry, config: Config, registry: ConfiguredRegistry, before: _Keeper | None = None
    ) -> None:
        """`before` keeps what the source was until now; it serves until this one can."""
        self.source = source
        self._config = config
        self._registry = registry
        self._before = before
        self._opened: OpenSource | None = None
        self._rules = source.entry  # under which it serves; those of its successor, once that is wanted
        self._stop_following: Callable[[], None] = lambda: None  # the state of a source that does not register itself
        self._failure = ""  # why the source is down
        self.is_misnamed = False  # because there is no such program, or nothing in it
        self._retired = asyncio.Event()
        self._is_closing = False
        self._task: asyncio.Task[None] | None = None
        self.is_late = False  # so late that the start did not wait for it
        self.tried = asyncio.Event()
        if before is None:
            self._registry.sources.unread.add(self.name)
            self._enter("starting")

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def is_required(self) -> bool:
        """Whether the server is not ready without it."""
        return bool(self.source.entry.get("required", self.source.kind in REQUIRED))

    @property
    def mistake(self) -> str:
        """What is wrong with its entry, with the line it stands on."""
        return f"{self._config.path}, line {self.source.line}: {self._failure}"

    def is_for(self, source: SourceEntry, config: Config) -> bool:
        """Whether another configuration describes this source in the same way; the line it stands on does not count."""
        same = msgspec.structs.replace(source, line=self.source.line) == self.source
        return same and config.folder == self._config.folder

    # --- its life

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._keep())

    def hand_over(self) -> _Keeper | None:
        """Make way for a successor; the answer serves until that is open: this one, or the one before if this never opened."""
        if self._opened is not None:
            return self
        before, self._before = self._before, None
        if self._task is not None:
            self._cancel(self._task)
            self._registry.retire(self)
        return before

    def with_predecessor(self) -> Iterator[_Keeper]:
        yield self
        if self._before is not None:
            yield from self._before.with_predecessor()

    def adopt_rules(self, source: SourceEntry) -> None:
        """Serve under the rules of another entry from now on, over the connection that is open."""
        before, self._rules = self._rules, source.entry
        changed = {key for key in RULES if source.entry.get(key) != before.get(key)}
        if self._opened is None or not changed:
            return
        gone = self.stop_changes()
        kept = list(under_rules(gone, source, changed))
        if not kept:
            self._registry.sources.away[self.name] = frozenset(operation.spec.name for operation in gone)
        self._registry.register_all(kept, instead_of=gone)
        self._opened = msgspec.structs.replace(self._opened, operations=kept)

    async def retire(self) -> None:
        """Unregister its operations, and close when no call runs; a call that takes too long is cut."""
        self._retired.set()
        self._unregister()
        try:
            if self._task is not None:
                await asyncio.wait({self._task}, timeout=DRAIN_TIMEOUT)
        finally:
            await self.close()

    async def close(self) -> None:
        if self._task is not None:
            self._cancel(self._task)
            await asyncio.wait({self._task})

    def _cancel(self, task: asyncio.Task[None]) -> None:
        if not self._is_closing and not task.cancelling():  # which would interrupt the closing
            task.cancel()

    async def _keep(self) -> None:
        backoff = FIRST_BACKOFF
        while True:
            try:
                async with open_source(self.source, self._config, self._registry.definitions) as opened:
                    self._register(opened)
                    backoff = FIRST_BACKOFF
                    self._log_misses(opened.operations)
                    self.tried.set()
                    self._log_return(opened.operations)
                    await self._reconnect_until_retired(opened.source)
                    while opened.is_busy():  # noqa: ASYNC110  # calls need not tell anybody of their end for this
                        await asyncio.sleep(DRAIN_INTERVAL)
                    self._is_closing = True
                    return
            except Exception as error:  # noqa: BLE001  # whatever is wrong with one source, the others go on
                if self._retired.is_set():
                    return
                self.is_misnamed = _names_nothing(error)
                self._log_down(error)
                self._retire_predecessor()
                self._enter("down", why=self._failure)
                if isinstance(error, CallError) and error.details.get("reason") == "login":
                    backoff = LOGIN_BACKOFF
            finally:
                self._unregister()
                self._opened = None
                self.tried.set()
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, MAX_BACKOFF)

    def _register(self, opened: OpenSource) -> None:
        """Register the operations, in one step with the end of those that they replace."""
        gone = [] if self._before is None else self._before.stop_changes()
        self._enter("starting")
        self._registry.register_all(opened.operations, instead_of=gone)
        self._registry.sources.away.pop(self.name, None)
        self._registry.sources.unread.discard(self.name)
        self._opened = opened
        if opened.source is None:
            self._enter("up", operations=len(opened.operations))
        elif opened.source is not opened.operations:  # which would have entered its state itself
            self._stop_following = self._registry.sources.follow(self.name, self.source.kind, opened.source)
        self._retire_predecessor()

    def _retire_predecessor(self) -> None:
        before, self._before = self._before, None
        if before is not None:
            self._registry.retire(before)

    def stop_changes(self) -> list[Operation]:
        """Let its server change nothing any more; the answer is its operations, which the caller unregisters."""
        if self._opened is None:
            return []
        leave = getattr(self._opened.operations, "leave", None)
        if leave is not None:
            leave(self._registry)
        self._stop_following()
        return list(self._opened.operations)

    def _unregister(self) -> None:
        gone = self.stop_changes()
        if gone and not self._retired.is_set():  # it comes back
            self._registry.sources.away[self.name] = frozenset(operation.spec.name for operation in gone)
        self._registry.unregister_all(gone)

    def _enter(self, state: Any, **more: Any) -> None:
        kind, is_required = self.source.kind, self.is_required
        self._registry.sources.enter(self.name, kind, state, required=is_required, **more)

    async def _reconnect_until_retired(self, source: Any) -> None:
        """Reconnect to a server that was lost, before somebody calls it; until the source is no longer wanted."""
        wait = POLL_INTERVAL
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._retired.wait(), wait)
                return
            if source is None or source.is_up:
                wait = POLL_INTERVAL
                continue
            try:
                await source.wake()
            except CallError:  # which the table of sources tells
                wait = min(wait * 2, MAX_BACKOFF)

    def _log_down(self, error: Exception) -> None:
        failure = _sentence(error, self.source.kind)
        if failure != self._failure:
            log.warning("%s is down: %s", self.name, failure)
        self._failure = failure

    def _log_return(self, operations: Any) -> None:
        if self._failure or self.is_late:
            log.warning("%s is up: %s", self.name, counted(len(operations), "operation"))
        self._failure, self.is_late = "", False

    def _log_misses(self, operations: Iterable[Operation]) -> None:
        """Log patterns that take nothing and new names for what is not there: most are mistakes."""

        from enfold.sources.options import Selection  # loaded by the first source

        specs = [operation.spec for operation in operations]
        for pattern in patterns_of(self.source.entry.get("include")):
            if not any(map(Selection(pattern).takes, specs)):
                log.warning('%s: include "%s" takes nothing', self.name, pattern)
        names = {spec.name for spec in specs}
        for old, new in self.source.entry.get("rename", {}).items():
            if new not in names:
                log.warning('%s: rename finds no "%s"', self.name, old)


def _names_nothing(error: Exception) -> bool:
    from enfold.sources.functions import TargetError

    return isinstance(error, TargetError)


def _sentence(error: Exception, kind: str) -> str:
    """Why a source cannot be opened; a package of ours that is missing is told with what installs it."""
    if isinstance(error, ModuleNotFoundError) and kind != "functions":
        return f"it needs {error.name}: {install_command(kind)}"
    return sentence_of(error)
