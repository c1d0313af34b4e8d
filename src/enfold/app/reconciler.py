"""Keeps a registry in step with a configuration: opens its sources, retries those that are down, replaces changed ones.

A source that is down does not stop the others; `registry.services.sources` shows the state of each.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from enfold.app.file import Config, Logins, SourceEntry, read_config
from enfold.app.sources import RIGHTS, OpenSource, load_middleware, open_source, patterns_of, under_rules
from enfold.errors import CallError, counted, install_command, sentence_of
from enfold.observability.log import Log
from enfold.operations import DEFAULT_POLICY, Operation, Policy
from enfold.runtime.registry import OperationRegistry
from enfold.runtime.source_states import REQUIRED
from enfold.sources.options import Selection
from enfold.sources.reports import DefinitionLedger

log: Final = Log("enfold.app")

PATIENCE: Final = 20.0  # seconds that the start waits for slow sources
SHORT_PATIENCE: Final = 0.5  # the same for optional sources, where a server should start at once
QUIET: Final = 3.0  # seconds after which the log names the sources that the start waits for
FIRST_BACKOFF: Final = 1.0  # seconds before a source that is down is retried; doubled each time
MAX_BACKOFF: Final = 60.0
LOGIN_BACKOFF: Final = 600.0  # seconds before a user is asked again to log in
POLL_INTERVAL: Final = 2.0  # seconds between two checks of a source that was up
DRAIN_TIMEOUT: Final = 60.0  # seconds for the in-flight calls of a removed source
DRAIN_INTERVAL: Final = 0.05


class Difference(msgspec.Struct, frozen=True):
    """What a new configuration changed: names of sources, and of tables that are read only at the start."""

    opened: list[str]
    reopened: list[str]
    closed: list[str]
    needs_restart: list[str]

    def __str__(self) -> str:
        verbs = {"opened": self.opened, "reopened": self.reopened, "closed": self.closed}
        parts = [f"{', '.join(names)} {verb}" for verb, names in verbs.items() if names]
        return "; ".join(parts) or "no source changed"


@asynccontextmanager
async def open_config(
    path: str | Path | Config,
    environ: Mapping[str, str],
    *,
    patience: float = PATIENCE,
    logins: Logins | None = None,
    operation: str | None = None,
) -> AsyncIterator[OperationRegistry]:
    """Open every source of a configuration: `async with open_config("mcp.json", os.environ) as registry`.

    Instead of a path you can pass a `Config`. An invalid file raises at once. Sources that are not up within `patience`
    seconds are added later. `logins` says how users log in and where tokens are kept. With `operation` only the sources
    that may have it are opened.
    """
    opening = open_reconciler(path, environ, patience=patience, logins=logins, operation=operation)
    async with opening as reconciler:
        yield reconciler.registry


@asynccontextmanager
async def open_reconciler(
    path: str | Path | Config,
    environ: Mapping[str, str],
    *,
    patience: float = PATIENCE,
    logins: Logins | None = None,
    operation: str | None = None,
    waits_for_optional: bool = True,
) -> AsyncIterator[Reconciler]:
    """Open a configuration that may change later; see `open_config`.

    Without `waits_for_optional` the start waits at most half a second for sources that are not required.
    """
    found = path if isinstance(path, Config) else read_config(path, environ)
    whole = msgspec.structs.replace(found, logins=logins or Logins())
    config = whole if operation is None else whole.with_only(operation)
    if any("auth" in source.entry for source in config.sources):
        patience = max(patience, config.logins.patience)
    reconciler = Reconciler(config)
    try:
        for_optional = patience if waits_for_optional else min(patience, SHORT_PATIENCE)
        await reconciler.wait_for_first_attempts(patience, for_optional)
        yield reconciler
    finally:
        await reconciler.aclose()


class Reconciler:
    """Opens and closes sources until `registry` has the operations that the configuration describes."""

    def __init__(self, config: Config) -> None:
        self.registry = OperationRegistry(**config.policy, **config.app)
        self.registry.module = {"__file__": config.path}
        for middleware in load_middleware(config.middleware, config):
            self.registry.middleware(middleware)
        self.definitions = DefinitionLedger()
        self.config = msgspec.structs.replace(config, sources=())
        self._supervisors: dict[str, SourceSupervisor] = {}
        self._draining: set[asyncio.Task[None]] = set()
        self.apply(config)

    def apply(self, config: Config) -> Difference:
        """Change to another configuration: open new and changed sources, close removed ones, leave the others alone.

        A changed or renamed source keeps serving, under the rules of the new configuration, until its successor is open or
        has failed to open; then its in-flight calls drain.
        """
        old_config, self.config = self.config, config
        has_new_policy = config.policy != old_config.policy
        if has_new_policy:
            self.registry.policy = Policy(**config.policy).over(DEFAULT_POLICY)
        opened, reopened = [], []
        closed = self._supervisors.keys() - {source.name for source in config.sources}
        renamed = {_location(self._supervisors[name].source): name for name in closed}
        for source in config.sources:
            old = self._supervisors.get(source.name)
            if old is None:
                opened.append(source.name)
                old = self._supervisors.pop(renamed.pop(_location(source), ""), None)
            elif has_new_policy or not old.is_for(source, config):
                reopened.append(source.name)
            else:
                continue
            predecessor = None if old is None else old.hand_over()
            if predecessor is not None:
                predecessor.adopt_rules(source)
            self._supervise(source, predecessor)
        for name in closed & self._supervisors.keys():
            self._close(name)
        return Difference(opened, reopened, sorted(closed), _needing_restart(old_config, config))

    def _supervise(self, source: SourceEntry, predecessor: SourceSupervisor | None) -> SourceSupervisor:
        supervisor = SourceSupervisor(source, self.config, self, predecessor)
        self._supervisors[source.name] = supervisor
        if source.kind != "functions":
            self.registry.services.sources.reopen[source.name] = partial(self._reopen, source.name)
        return supervisor

    async def _reopen(self, name: str) -> None:
        """Open a source anew; the connection that it has serves until then. Raises a CallError if it is still down."""
        before = self._supervisors[name]
        supervisor = self._supervise(before.source, before.hand_over())
        with suppress(TimeoutError):
            await asyncio.wait_for(supervisor.attempted.wait(), PATIENCE)
        if supervisor.failure:
            raise CallError("UNAVAILABLE", f"{name} is down: {supervisor.failure}")

    def _close(self, name: str) -> None:
        self.registry.services.sources.reopen.pop(name, None)
        supervisor = self._supervisors.pop(name).hand_over()
        self.registry.services.sources.remove(name)
        if supervisor is not None:
            self.drain(supervisor)

    def drain(self, supervisor: SourceSupervisor) -> None:
        """Close a source in the background, after its in-flight calls."""
        if supervisor.name not in self._supervisors:
            self.registry.services.sources.remove(supervisor.name)
        task = asyncio.get_running_loop().create_task(supervisor.drain())
        self._draining.add(task)
        task.add_done_callback(self._draining.discard)

    async def wait_for_first_attempts(self, patience: float, for_optional: float) -> None:
        """Wait until every source has been tried once; for optional ones at most `for_optional` seconds."""
        required = [each for each in self._supervisors.values() if each.is_required]
        optional = [each for each in self._supervisors.values() if not each.is_required]
        await asyncio.gather(_wait_for_attempts(required, patience), _wait_for_attempts(optional, for_optional))

    def check_programs(self) -> None:
        """Raise a CallError if `functions` names a file, module or attribute that does not exist or is empty."""
        for supervisor in self._supervisors.values():
            if supervisor.is_misnamed:
                place = f"{self.config.path}, line {supervisor.source.line}"
                raise CallError("VALIDATION_ERROR", f"{place}: {supervisor.failure}")

    async def aclose(self) -> None:
        """Close all sources at once, even while calls run."""
        for supervisor in self._supervisors.values():
            await supervisor.close()
        for task in list(self._draining):
            task.cancel()
        await asyncio.gather(*self._draining, return_exceptions=True)


def _location(source: SourceEntry) -> str:
    """Return the namespace or program of a source: two sources with the same one cannot both be open."""
    is_named = source.kind != "functions" or "namespace" in source.entry
    return source.namespace if is_named else str(source.entry["functions"])


def _needing_restart(before: Config, after: Config) -> list[str]:
    """Return the changed tables that are only read at start."""
    fields = [name for name in Config.__struct_fields__ if name not in _APPLIED]
    changed = [name for name in fields if getattr(before, name) != getattr(after, name)]
    return ["auth" if name == "issuers" else name for name in changed]


# The fields of a configuration that `apply` changes, or that are not in the file.
_APPLIED: Final = frozenset({"path", "folder", "sources", "policy", "logins", "text", "version"})


async def _wait_for_attempts(supervisors: list[SourceSupervisor], patience: float) -> None:
    attempts = {asyncio.create_task(each.attempted.wait()): each for each in supervisors}
    if not attempts:
        return
    _, slow = await asyncio.wait(attempts, timeout=min(QUIET, patience))
    if slow and patience > QUIET:
        log.info("Waiting for %s", ", ".join(each.name for attempt, each in attempts.items() if attempt in slow))
        _, slow = await asyncio.wait(slow, timeout=patience - QUIET)
    for attempt in slow:
        attempt.cancel()
        attempts[attempt].is_late = True
        log.info("%s has not answered yet", attempts[attempt].name)


class SourceSupervisor:
    """Keeps one source open from its first attempt until it is drained: starting, up, down and retried, draining."""

    def __init__(
        self, source: SourceEntry, config: Config, reconciler: Reconciler, predecessor: SourceSupervisor | None
    ) -> None:
        """`predecessor` serves until this source is open."""
        self.source = source
        self.name = source.name
        self.failure = ""  # why the source is down
        self.is_misnamed = False  # because its program does not exist, or has no operations
        self.is_late = False  # the start did not wait for it
        self.attempted = asyncio.Event()
        self._config = config
        self._reconciler = reconciler
        self._registry = reconciler.registry
        self._predecessor = predecessor
        self._opened: OpenSource | None = None
        self._rules = source.entry  # under which it serves; replaced by those of its successor
        self._stop_following: Callable[[], None] = lambda: None
        self._is_drained = asyncio.Event()  # no longer wanted
        self._is_closing = False
        if predecessor is None:
            self._registry.services.sources.unread.add(self.name)
            self._enter("starting")
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def is_required(self) -> bool:
        """Whether the server is not ready without it."""
        return bool(self.source.entry.get("required", self.source.kind in REQUIRED))

    def is_for(self, source: SourceEntry, config: Config) -> bool:
        """Whether another configuration describes the same source; its line number does not matter."""
        same = msgspec.structs.replace(source, line=self.source.line) == self.source
        return same and config.folder == self._config.folder

    # replacement

    def hand_over(self) -> SourceSupervisor | None:
        """Make way for a successor. Returns the supervisor that serves until then: this one, or else its predecessor."""
        if self._opened is not None:
            return self
        predecessor, self._predecessor = self._predecessor, None
        self._cancel()
        self._reconciler.drain(self)
        return predecessor

    def adopt_rules(self, source: SourceEntry) -> None:
        """Apply the rules of another entry to the open connection."""
        before, self._rules = self._rules, source.entry
        changed = {key for key in RIGHTS if source.entry.get(key) != before.get(key)}
        if self._opened is None or not changed:
            return
        gone = self.stop_updates()
        kept = list(under_rules(gone, source, self._reconciler.config, changed))
        if not kept:
            self._remember_unavailable(gone)
        self._registry.register_all(kept, instead_of=gone)
        self._opened = msgspec.structs.replace(self._opened, operations=kept)

    def stop_updates(self) -> list[Operation]:
        """Detach the registry from changes of the server; returns the operations that are registered."""
        if self._opened is None:
            return []
        leave = getattr(self._opened.operations, "leave", None)
        if leave is not None:
            leave(self._registry)
        self._stop_following()
        return list(self._opened.operations)

    async def drain(self) -> None:
        """Unregister the operations, and close when no call runs, or after `DRAIN_TIMEOUT`."""
        self._is_drained.set()
        self._unregister()
        try:
            await asyncio.wait({self._task}, timeout=DRAIN_TIMEOUT)
        finally:
            await self.close()

    async def close(self) -> None:
        self._cancel()
        await asyncio.wait({self._task})
        if self._predecessor is not None:
            await self._predecessor.close()

    def _cancel(self) -> None:
        if not self._is_closing and not self._task.cancelling():  # a second time would interrupt the closing
            self._task.cancel()

    # the life of one source

    async def _run(self) -> None:
        """Open the source, and again with backoff whenever it fails, until it is drained."""
        backoff = FIRST_BACKOFF
        while True:
            try:
                async with open_source(self.source, self._config, self._reconciler.definitions) as opened:
                    backoff = FIRST_BACKOFF
                    self._come_up(opened)
                    await self._reconnect_until_drained(opened.source)
                    while opened.is_busy():  # noqa: ASYNC110  # calls do not announce their end
                        await asyncio.sleep(DRAIN_INTERVAL)
                    self._is_closing = True
                    return
            except Exception as error:  # noqa: BLE001  # one source must not stop the others
                if self._is_drained.is_set():
                    return
                self._go_down(error)
                if isinstance(error, CallError) and error.details.get("reason") == "login":
                    backoff = LOGIN_BACKOFF
            finally:
                self._unregister()
                self._opened = None
                self.attempted.set()
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, MAX_BACKOFF)

    def _come_up(self, opened: OpenSource) -> None:
        """Register the operations in one step with the removal of those they replace."""
        replaced = [] if self._predecessor is None else self._predecessor.stop_updates()
        self._enter("starting")
        self._registry.register_all(opened.operations, instead_of=replaced)
        self._registry.services.sources.away.pop(self.name, None)
        self._registry.services.sources.unread.discard(self.name)
        self._opened = opened
        if opened.source is None:
            self._enter("up", operations=len(opened.operations))
        elif opened.source is not opened.operations:  # otherwise it reports its state itself
            self._stop_following = self._registry.services.sources.follow(self.name, self.source.kind, opened.source)
        self._drain_predecessor()
        self._log_unused_options(opened.operations)
        self.attempted.set()
        if self.failure or self.is_late:
            log.warning("%s is up: %s", self.name, counted(len(opened.operations), "operation"))
        self.failure, self.is_late = "", False

    def _go_down(self, error: Exception) -> None:
        from enfold.sources.functions import TargetError

        self.is_misnamed = isinstance(error, TargetError)
        failure = _sentence(error, self.source.kind)
        if failure != self.failure:
            log.warning("%s is down: %s", self.name, failure)
        self.failure = failure
        self._drain_predecessor()
        self._enter("down", why=failure)

    async def _reconnect_until_drained(self, source: Any) -> None:
        """Reconnect to a server that was lost without waiting for a call."""
        wait = POLL_INTERVAL
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_drained.wait(), wait)
                return
            if source is None or source.is_up:
                wait = POLL_INTERVAL
                continue
            try:
                await source.wake()
            except CallError:  # shown in the table of sources
                wait = min(wait * 2, MAX_BACKOFF)

    def _drain_predecessor(self) -> None:
        predecessor, self._predecessor = self._predecessor, None
        if predecessor is not None:
            self._reconciler.drain(predecessor)

    def _unregister(self) -> None:
        gone = self.stop_updates()
        if gone and not self._is_drained.is_set():
            self._remember_unavailable(gone)
        self._registry.unregister_all(gone)

    def _remember_unavailable(self, operations: Iterable[Operation]) -> None:
        """Let calls of these operations fail as UNAVAILABLE instead of OPERATION_NOT_FOUND."""
        self._registry.services.sources.away[self.name] = frozenset(operation.spec.name for operation in operations)

    def _enter(self, state: Any, **more: Any) -> None:
        self._registry.services.sources.enter(self.name, self.source.kind, state, required=self.is_required, **more)

    def _log_unused_options(self, operations: Iterable[Operation]) -> None:
        """Warn about patterns and new names that match no operation: most are mistakes."""
        specs = [operation.spec for operation in operations]
        for pattern in patterns_of(self.source.entry.get("include")):
            if not any(map(Selection(pattern).takes, specs)):
                log.warning('%s: include "%s" matches no operation', self.name, pattern)
        names = {spec.name for spec in specs}
        for old, new in self.source.entry.get("rename", {}).items():
            if new not in names:
                log.warning('%s: rename matches no operation "%s"', self.name, old)


def _sentence(error: Exception, kind: str) -> str:
    """Why a source cannot be opened; names the command that installs a missing extra."""
    if isinstance(error, ModuleNotFoundError) and kind != "functions":
        return f"it needs {error.name}: {install_command(kind)}"
    return sentence_of(error)
