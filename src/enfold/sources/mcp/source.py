"""`from_mcp`: the tools, resources and prompts of MCP servers as operations, for as long as the source is open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from enfold.errors import CallError
from enfold.http_client.urls import basic_authorization
from enfold.observability.log import Log
from enfold.operations import Operation, legal_names
from enfold.operations.call import Middleware
from enfold.operations.mcp_kind import facts_of, kind_of
from enfold.operations.operation import checked_middleware
from enfold.runtime.registry import OperationRegistry
from enfold.runtime.source_states import DefinitionChange
from enfold.sources.mcp.listings import Imported, Options, import_operations
from enfold.sources.mcp.settings import (
    Address,
    Connection,
    Content,
    Credentials,
    GivenHeaders,
    Server,
    ServerSettings,
    Target,
    read_servers,
)
from enfold.sources.mcp.upstream import Upstream
from enfold.sources.options import Rules, Selection, Shape
from enfold.sources.reports import DefinitionLedger, ImportReport, Problem, SyncedRegistries
from enfold.sources.secrets import KnownSecrets, Supplied, current

if TYPE_CHECKING:
    from enfold.sources.mcp.oauth import Auth
    from enfold.sources.mcp.oauth.login import OAuthLogin

log: Final = Log("enfold.mcp")

FIRST_BACKOFF: Final = 0.1  # seconds before a list that has changed while it was read is read again
MAX_BACKOFF: Final = 30.0


def from_mcp(
    target: Target,
    *,
    namespace: str = "",
    name: str | None = None,
    auth: Auth | Credentials | None = None,
    connection: Connection = Connection(),
    content: Content = Content(),
    selection: Selection = Selection(),
    shape: Shape = Shape(),
    rules: Rules = Rules(),
    middleware: Iterable[Middleware] = (),
) -> MCPOperations:
    """Import the operations of an MCP server: `async with from_mcp(target) as operations`.

    The target is a command (a list, or a string as in a shell), the URL of a server, or an `mcpServers` configuration,
    in which each server's name is its namespace. `name` is shown in messages and in `registry.services.sources`. `auth` is a
    bearer token, a (user, password), a function that returns the value of `Authorization`, or an OAuth login
    (`enfold.sources.mcp.oauth`).

    `selection`, `shape` and `rules` are the options of every source (`enfold.sources.options`); `connection` and
    `content` are specific to MCP. `middleware` wraps the calls of all operations, the first one outermost.

    Callers see `[hidden]` if a server repeats one of `shape.secrets` or another secret that it received: credentials,
    headers, environment variables, words of its command and fixed arguments.
    """
    servers = read_servers(target)
    options = Options(
        namespace,
        content,
        selection,
        shape,
        rules,
        rules.definitions or DefinitionLedger(),
        checked_middleware(middleware),
    )
    settings_of_login = auth if isinstance(auth, msgspec.Struct) else None
    if auth is not None and not isinstance(auth, msgspec.Struct):
        connection = msgspec.structs.replace(connection, headers=_with_credentials(connection.headers, auth))

    def server_of(name: str, server: Server, options: Options) -> _Server:
        login = _login(server, settings_of_login, name)
        secrets = _known_secrets(server, name, login, connection.headers, shape.fix)
        for variable, secret in shape.secrets.items():
            secrets.remember(secret, variable, lasts=True)
        return _Server(ServerSettings(server, name, connection, login, secrets=secrets), options)

    if not isinstance(servers, dict):
        return MCPOperations([server_of(name or namespace or str(servers), servers, options)])
    names = legal_names(servers)
    spaces = {name: ".".join(part for part in (namespace, names[name]) if part) for name in servers}
    return MCPOperations(
        [
            server_of(name, server, msgspec.structs.replace(options, namespace=spaces[name]))
            for name, server in servers.items()
        ]
    )


class MCPOperations:
    """The operations of one or several servers: an iterable of them, and the connections they share."""

    def __init__(self, sources: list[_Server]) -> None:
        self._sources = sources
        self._failed: list[Problem] = []

    @property
    def name(self) -> str:
        """The names of the servers."""
        return ", ".join(source.name for source in self._sources)

    def __iter__(self) -> Iterator[Operation]:
        return (operation for source in self._sources for operation in source.imported.operations)

    def __len__(self) -> int:
        return sum(len(source.imported.operations) for source in self._sources)

    def __repr__(self) -> str:
        return f"<MCPOperations {len(self)}>"

    @property
    def report(self) -> ImportReport:
        """The ids of the current operations, and what was skipped and why."""
        skipped = [problem for source in self._sources for problem in source.imported.skipped]
        degraded = [problem for source in self._sources for problem in source.imported.degraded]
        imported = [operation.spec.id for operation in self]
        return ImportReport(imported, [*self._failed, *skipped], [*degraded, *_clashes(self)])

    @property
    def is_up(self) -> bool:
        """Whether every server is connected now; a call to a disconnected server reconnects it."""
        return all(source.is_up for source in self._sources)

    @property
    def is_busy(self) -> bool:
        """Whether calls are running."""
        return any(source.is_busy for source in self._sources)

    async def wake(self) -> None:
        """Reconnect to lost servers without waiting for a call; raise CallError if one stays unreachable."""
        for source in self._sources:
            await source.wake()

    def keep_current(self, registry: OperationRegistry) -> None:
        """Update a registry that has these operations when the servers' lists change, until this source is closed."""
        for source in self._sources:
            source.registries.add(registry, source.name)

    def leave(self, registry: OperationRegistry) -> None:
        """Stop updating a registry, and remove this source from its list of sources."""
        for source in self._sources:
            source.registries.remove(registry)

    async def __aenter__(self) -> Self:
        try:
            opened = await asyncio.gather(*(source.open() for source in self._sources), return_exceptions=True)
        except BaseException:
            await self.aclose()
            raise
        errors = {source: error for source, error in zip(self._sources, opened, strict=True) if error is not None}
        if errors and (len(errors) == len(self._sources) or any(not isinstance(e, CallError) for e in errors.values())):
            await self.aclose()
            raise next(iter(errors.values()))
        self._failed = [Problem(source.name, str(error)) for source, error in errors.items()]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections and end the processes."""
        await asyncio.gather(*(source.close() for source in self._sources), return_exceptions=True)


class _Server:
    """One server and the operations made of its lists, which follow their changes."""

    def __init__(self, settings: ServerSettings, options: Options) -> None:
        self.registries = SyncedRegistries(self, "mcp")
        self._upstream = Upstream(settings, self._changed, self.registries.tell, self._pass_on_log)
        self._login = settings.login
        self._options = options
        self.imported = Imported()
        self._refreshing: asyncio.Task[None] | None = None
        self._is_stale = False
        self._is_open = False

    @property
    def name(self) -> str:
        return self._upstream.name

    @property
    def is_up(self) -> bool:
        return self._upstream.pool.is_up

    @property
    def why(self) -> str:
        return self._upstream.pool.why

    @property
    def is_closed(self) -> bool:
        return not self._is_open

    @property
    def is_busy(self) -> bool:
        return self._upstream.is_busy

    @property
    def skipped(self) -> list[Problem]:
        return self.imported.skipped

    @property
    def instructions(self) -> str:
        """How the server wants to be used, for MCP clients."""
        chosen = self._options.content.instructions
        return chosen if isinstance(chosen, str) else self.imported.instructions if chosen else ""

    @property
    def changed(self) -> tuple[DefinitionChange, ...]:
        """The operations whose definitions the server has changed, and what it has changed of each."""
        return self._options.definitions.latest_changes(self.name)

    @property
    def changes(self) -> int:
        return self._options.definitions.count_changes(self.name)

    def __len__(self) -> int:
        return len(self.imported.operations)

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back when the server was lost or is back, or its operations are others."""
        self.registries.watch(callback)

    async def open(self) -> None:
        self.imported = await (self._list() if self._login is None else self._login.let_in(self._list))
        self._record()
        self._is_open = True

    def _record(self) -> None:
        self._options.definitions.record(self.name, self.imported.definitions)

    def _list(self) -> Awaitable[Imported]:
        return import_operations(self._upstream, self._options)

    async def wake(self) -> None:
        await self._upstream.pool.session()

    async def close(self) -> None:
        self._is_open = False
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
        if self._login is not None:
            await self._login.close()
        await self._upstream.close()
        self.registries.close()

    # --- changes

    def _pass_on_log(self, params: dict[str, Any]) -> None:
        self.registries.log(self.name, params)

    def _changed(self) -> None:
        self._is_stale = True
        if self._is_open and (self._refreshing is None or self._refreshing.done()):
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh())

    async def _refresh(self) -> None:
        """List again, and once more if there are changes meanwhile, with backoff."""
        backoff = 0.0
        while self._is_stale:
            self._is_stale = False
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff or FIRST_BACKOFF, MAX_BACKOFF)
            try:
                imported = await self._list()
            except CallError as error:
                log.warning("%s cannot be listed again: %s", self.name, error.message)
                return
            before, self.imported = self.imported, _merged(self.imported, imported)
            self._record()
            self.registries.update(before.by_id, self.imported.by_id)


def _clashes(operations: Iterable[Operation]) -> list[Problem]:
    """The URIs that several servers list: an MCP surface shows each with its server before it."""
    owners: dict[str, list[str]] = {}
    for operation in operations:
        if kind_of(operation.spec) == "resource":
            owners.setdefault(facts_of(operation.spec)["uri"], []).append(operation.spec.id)
    return [Problem(uri, f"listed as {' and '.join(ids)}") for uri, ids in owners.items() if len(ids) > 1]


def _merged(before: Imported, after: Imported) -> Imported:
    """The later offers, with the operations that stayed as they were being the same objects.

    Lists that the server announced as changed are rebuilt even if they look the same, so that clients are notified.
    """
    if before.is_stateless != after.is_stateless:
        return after
    old = before.by_id
    operations = [
        known
        if (known := old.get(made.spec.id)) is not None and known.spec == made.spec and not after.is_renewed(made)
        else made
        for made in after.operations
    ]
    return msgspec.structs.replace(after, operations=operations)


# --- what the user gives ------------------------------------------------------------------------------------------


def _known_secrets(
    server: Server, name: str, login: OAuthLogin | None, headers: GivenHeaders, fix: Mapping[str, Any]
) -> KnownSecrets:
    """What a server is given that it must not repeat to callers."""
    secrets = KnownSecrets() if login is None else login.secrets
    secrets.owner = name
    secrets.remember_named(fix, "fix")
    if isinstance(server, Address):
        secrets.remember_url(server.url, "url")
        secrets.remember_named(server.headers, "headers")
    else:
        secrets.remember_words(server.words, "command")
        secrets.remember_named(server.env, "env")
    if isinstance(headers, Mapping):
        secrets.remember_named(headers, "headers")
    return secrets


def _login(server: Server, auth: Auth | None, name: str) -> OAuthLogin | None:
    """The login at a server, which only one at an address can ask for."""
    if auth is None or not isinstance(server, Address):
        return None
    from enfold.sources.mcp.oauth.login import OAuthLogin  # few servers need a login

    return OAuthLogin(auth, server.url, name)


def _with_credentials(headers: GivenHeaders, credentials: Credentials) -> GivenHeaders:
    if isinstance(headers, Mapping) and not callable(credentials):
        return {**headers, "authorization": _authorization(credentials)}

    value: Supplied[str] = credentials if callable(credentials) else _authorization(credentials)

    async def with_authorization() -> Mapping[str, str]:
        return {**await current(headers), "authorization": await current(value)}

    return with_authorization


def _authorization(credentials: str | tuple[str, str]) -> str:
    return f"Bearer {credentials}" if isinstance(credentials, str) else basic_authorization(":".join(credentials))
