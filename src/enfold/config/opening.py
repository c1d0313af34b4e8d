"""The sources of a configuration, opened together: one that is down does not stop the others, is tried again, and shown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import msgspec

from enfold.config.config_file import Config, SourceEntry, access_of, patterns, policy_of, read_config
from enfold.config.logins import Logins, auth_of
from enfold.errors import CallError
from enfold.log import Log
from enfold.operation import Operation
from enfold.registry import OperationRegistry

__all__ = ["ConfiguredRegistry", "open_config", "open_sources"]

log: Final = Log("enfold.config")

PATIENCE: Final = 20.0  # seconds that the start waits for slow sources
QUIET: Final = 3.0  # of these, the seconds after which it says for whom it waits
FIRST_WAIT: Final = 1.0
LONGEST_WAIT: Final = 60.0
LOGIN_WAIT: Final = 600.0  # seconds before a user is asked again to log in
LOOK: Final = 2.0  # seconds between two looks at a source that was up


class ConfiguredRegistry(OperationRegistry):
    """The operations of all sources of a file, as they come and go; `sources` shows how each source is."""

    def __init__(self, config: Config) -> None:
        super().__init__(**config.policy, **config.app)
        self.config = config
        self._keepers = [_Keeper(source, config, self) for source in config.sources]


def open_config(
    path: str | Path,
    environ: Mapping[str, str],
    *,
    patience: float = PATIENCE,
    logins: Logins | None = None,
    operation: str | None = None,
) -> AbstractAsyncContextManager[ConfiguredRegistry]:
    """Open every source of a file: `async with open_config("mcp.json", os.environ) as registry`.

    A file that is wrong raises at once. Sources that are not up within `patience` seconds come later, by themselves.
    `logins` says how a user logs in where a server asks for it, and where that is kept. With `operation` only the
    sources are opened that may have it.
    """
    whole = msgspec.structs.replace(read_config(path, environ), logins=logins or Logins())
    config = whole if operation is None else whole.with_only(operation)
    has_login = any("auth" in source.entry for source in config.sources)
    return open_sources(config, patience=max(patience, config.logins.patience) if has_login else patience)


@asynccontextmanager
async def open_sources(config: Config, *, patience: float = PATIENCE) -> AsyncIterator[ConfiguredRegistry]:
    """The same for a configuration that has been read already."""
    registry = ConfiguredRegistry(config)
    keepers = registry._keepers
    tasks = [asyncio.create_task(keeper.keep()) for keeper in keepers]
    try:
        await _first_tries(keepers, patience)
        yield registry
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _first_tries(keepers: list[_Keeper], patience: float) -> None:
    """Wait until every source has been tried once, and say which ones take long."""
    tries = {asyncio.create_task(keeper.tried.wait()): keeper for keeper in keepers}
    if not tries:
        return
    _, slow = await asyncio.wait(tries, timeout=min(QUIET, patience))
    if slow and patience > QUIET:
        log.warning("Waiting for %s", ", ".join(keeper.name for trying, keeper in tries.items() if trying in slow))
        _, slow = await asyncio.wait(slow, timeout=patience - QUIET)
    for trying in slow:
        trying.cancel()
        tries[trying].is_late = True
        log.warning("%s has not answered yet", tries[trying].name)


class _Keeper:
    """Keeps one source open: tries until it is, registers what it gives, and connects again when it was lost."""

    def __init__(self, source: SourceEntry, config: Config, registry: OperationRegistry) -> None:
        self._source = source
        self._config = config
        self._registry = registry
        self._why = ""
        self.is_late = False  # so late that the start did not wait for it
        self.tried = asyncio.Event()
        registry.sources.enter(source.name, source.kind, required=source.entry.get("required"))

    @property
    def name(self) -> str:
        return self._source.name

    async def keep(self) -> None:
        wait = FIRST_WAIT
        while True:
            try:
                async with _opened(self._source, self._config, self._registry) as operations:
                    wait = FIRST_WAIT
                    self._tell_misses(operations)
                    self.tried.set()
                    await self._watch(operations)
            except Exception as error:  # noqa: BLE001  # whatever is wrong with one source, the others go on
                self._tell(error)
                self._registry.sources.enter(self.name, self._source.kind, "down", why=self._why)
                wait = max(wait, LOGIN_WAIT if _is_login(error) else 0.0)
            finally:
                self.tried.set()
            await asyncio.sleep(wait)
            wait = min(wait * 2, LONGEST_WAIT)

    async def _watch(self, operations: Any) -> None:
        """Connect again to a server that was lost, before somebody calls it."""
        wait = LOOK
        while True:
            if getattr(operations, "is_up", True):
                self._tell_return(operations)
                wait = LOOK
            await asyncio.sleep(wait)
            if getattr(operations, "is_up", True):
                continue
            try:
                await operations.wake()
            except CallError as error:
                self._tell(error)
                wait = min(wait * 2, LONGEST_WAIT)

    def _tell(self, error: Exception) -> None:
        text = _sentence(error, self._source.kind)
        if text != self._why:
            log.warning("%s is down: %s", self.name, text)
        self._why = text

    def _tell_return(self, operations: Any) -> None:
        """Who has read that a source is down or late wants to know when it is there."""
        if self._why or self.is_late:
            log.warning("%s is up: %d operations", self.name, len(operations))
        self._why, self.is_late = "", False

    def _tell_misses(self, operations: Iterable[Operation]) -> None:
        """A pattern that takes nothing, and a new name for what is not there, are mistakes more often than not."""
        specs = [operation.spec for operation in operations]
        texts = {
            text for spec in specs for text in (spec.name, spec.id, str(spec.meta.get("original_name", spec.name)))
        }
        for pattern in patterns(self._source.entry.get("include")):
            if not any(fnmatchcase(text, pattern) for text in texts):
                log.warning('%s: include "%s" takes nothing', self.name, pattern)
        for old, new in self._source.entry.get("rename", {}).items():
            if new not in texts:
                log.warning('%s: rename finds no "%s"', self.name, old)


def _sentence(error: Exception, kind: str) -> str:
    """Why a source cannot be opened; a package of ours that is missing is told with what installs it."""
    if isinstance(error, ModuleNotFoundError) and kind != "functions":
        return f"it needs {error.name}: pip install 'enfold[{kind}]'"
    return str(error) or type(error).__name__


def _is_login(error: Exception) -> bool:
    return isinstance(error, CallError) and error.details.get("reason") == "login"


# --- sources ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _opened(source: SourceEntry, config: Config, registry: OperationRegistry) -> AsyncIterator[Any]:
    opener = {"mcp": _open_mcp, "openapi": _open_openapi, "functions": _open_functions}[source.kind]
    async with opener(source, config, registry) as operations:
        try:
            yield operations
        finally:
            _unregister(registry, operations)


@asynccontextmanager
async def _open_mcp(source: SourceEntry, config: Config, registry: OperationRegistry) -> AsyncIterator[Any]:
    from enfold.sources.mcp import MCPLimits, from_mcp
    from enfold.sources.mcp.mcp_targets import Command, server_from_entry

    entry = source.entry
    server = server_from_entry(entry)
    if isinstance(server, Command) and server.cwd is None:
        server = msgspec.structs.replace(server, cwd=config.folder)
    sizes = {
        "message_bytes": entry.get("max_bytes"),
        "connect": entry.get("connect_timeout"),
        **entry.get("limits", {}),
    }
    credentials = entry.get("credentials")
    async with from_mcp(
        server,
        namespace=source.namespace,
        name=source.name,
        kinds=entry.get("kinds", ("tool", "resource", "prompt")),
        include=entry.get("include"),
        exclude=entry.get("exclude"),
        rename=entry.get("rename"),
        policy=policy_of(entry),
        access=access_of(entry),
        timeout=entry.get("timeout", "default"),
        limits=MCPLimits(**{name: value for name, value in sizes.items() if value is not None}),
        credentials=tuple(credentials) if isinstance(credentials, list) else credentials,
        auth=auth_of(entry.get("auth"), config.logins, config.folder),
        reads=entry.get("reads"),
        advertise_output=entry.get("advertise_output", True),
        log_level=entry.get("log_level", "info"),
        protocol=entry.get("protocol", "auto"),
    ) as operations:
        registry.register_all(operations)
        yield operations


@asynccontextmanager
async def _open_openapi(source: SourceEntry, config: Config, registry: OperationRegistry) -> AsyncIterator[Any]:
    from enfold.sources.openapi import from_openapi
    from enfold.sources.openapi.service_client import OpenAPILimits

    entry = source.entry
    taken = ("base_url", "credentials", "headers", "include", "exclude", "rename", "normalize", "server_variables")
    options = {name: entry[name] for name in taken if name in entry}
    limits = OpenAPILimits(response_bytes=int(entry["max_bytes"])) if "max_bytes" in entry else None
    # Reading a document may mean fetching it: not on the loop.
    imported = await asyncio.to_thread(
        from_openapi,
        _located(entry["openapi"], config),
        namespace=source.namespace,
        timeout=entry.get("timeout", "default"),
        allow_hosts=tuple(patterns(entry.get("allow_hosts"))),
        allow_files=[_located(each, config) for each in patterns(entry.get("allow_files"))],
        private_headers=tuple(patterns(entry.get("private_headers"))),
        limits=limits,
        **options,
    )
    async with imported:
        operations = [_governed(operation, entry) for operation in imported]
        registry.register_all(operations)
        skipped = imported.report.skipped
        registry.sources.enter(source.name, "openapi", "up", operations=len(operations), skipped=skipped)
        yield operations


@asynccontextmanager
async def _open_functions(source: SourceEntry, config: Config, registry: OperationRegistry) -> AsyncIterator[Any]:
    from enfold.sources.choosing import choosing
    from enfold.sources.functions import load_target

    entry = source.entry
    found = load_target(_located(entry["functions"], config))
    choice = choosing(entry.get("include"), entry.get("exclude"), entry.get("rename"))
    chosen = [operation for operation in found if choice.takes(operation.spec)]
    renamed = [_renamed(each, choice.name(each.spec.name, each.spec.id)) for each in chosen]
    placed = [each.with_spec(each.spec.replace(namespace=_below(source, each))) for each in renamed]
    operations = [_governed(operation, entry) for operation in placed]
    await found.lifetime.start()
    try:
        registry.register_all(operations)
        registry.sources.enter(source.name, "functions", "up", operations=len(operations))
        yield operations
    finally:
        await found.lifetime.stop()


def _renamed(operation: Operation, name: str) -> Operation:
    spec = operation.spec
    if name == spec.name:
        return operation
    return operation.with_spec(spec.replace(name=name, meta={**spec.meta, "original_name": spec.name}))


def _below(source: SourceEntry, operation: Operation) -> str:
    """The namespace a program's operations have of their own stays, below the one the file gives, if it gives one."""
    given = source.entry.get("namespace", "")
    return ".".join(part for part in (given, operation.spec.namespace) if part)


def _governed(operation: Operation, entry: dict[str, Any]) -> Operation:
    """The operation under the policies and the access rules of the file."""
    spec = operation.spec
    if "access" in entry:
        spec = spec.replace(access_control=access_of(entry))
    if "timeout" in entry:
        spec = spec.replace(timeout=entry["timeout"])
    return Operation(
        spec,
        operation.handler,
        signature=operation.signature,
        policy=policy_of(entry).over(operation.policy),
        inline=operation.inline,
    )


def _located(target: str, config: Config) -> str:
    """A path below the file's folder; addresses and modules stay as they are."""
    place = Path(config.folder) / target.rpartition(":")[0] if ".py:" in target else Path(config.folder) / target
    return str(Path(config.folder) / target) if place.exists() else target


def _unregister(registry: OperationRegistry, operations: Iterable[Operation]) -> None:
    for operation in operations:
        own_id = operation.spec.id
        if own_id in registry and registry.get(own_id) is operation:
            registry.unregister(own_id)
