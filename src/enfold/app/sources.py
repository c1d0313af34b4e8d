"""Opens one source of a configuration: a program, an MCP server or an OpenAPI service, with its policies and rules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from enfold.app.file import Config, Logins, SourceEntry
from enfold.app.keys import keys_of
from enfold.errors import CallError
from enfold.operations import Operation, Origin, Policy, is_coroutine_function, read_access
from enfold.operations.call import Middleware
from enfold.operations.operation import check_middleware
from enfold.sources.mcp.oauth.settings import AssertionLogin, Auth, ClientCredentials, FileStore, UserLogin
from enfold.sources.mcp.settings import Command, Connection, Content, server_from_entry
from enfold.sources.options import MCPLimits, OpenAPILimits, Rules, Selection, Service, Shape
from enfold.sources.reports import DefinitionLedger

T = TypeVar("T", bound=msgspec.Struct)


class OpenSource(msgspec.Struct, frozen=True):
    """An open source: its operations, whether calls are running, and the object with a connection, if any."""

    operations: Any
    is_busy: Callable[[], bool]
    source: Any = None


def open_source(
    source: SourceEntry, config: Config, definitions: DefinitionLedger
) -> AbstractAsyncContextManager[OpenSource]:
    """Open a source; `definitions` remembers the definitions that upstreams have published so far."""
    opening = {"mcp": _open_mcp, "openapi": _open_openapi, "functions": _open_functions}[source.kind]
    return opening(source, config, definitions)


# The keys that decide what callers may do; those in _CHOICE can be applied to open operations.
_CHOICE: Final = frozenset({"access", "include", "exclude", "middleware"})
RIGHTS: Final = _CHOICE | {"fix", "rename", "kinds", "reads", "private_headers"}


def under_rules(
    operations: Iterable[Operation], source: SourceEntry, config: Config, changed: set[str]
) -> Iterator[Operation]:
    """Return the operations that stay valid under the changed rules of an entry."""
    entry, is_program = source.entry, source.kind == "functions"
    # The rules and the middleware that functions have of their own are unknown here.
    falls_back = is_program and (("access" in changed and "access" not in entry) or "middleware" in changed)
    if changed - _CHOICE or falls_back:
        return
    middleware: dict[str, Any] = {}
    if "middleware" in changed:
        try:
            middleware["middleware"] = tuple(load_middleware(patterns_of(entry.get("middleware")), config))
        except CallError:  # which its successor reports
            return
    selection = Selection(entry.get("include"), entry.get("exclude"))
    access = {"access_control": read_access(entry.get("access"))} if "access" in changed else {}
    for operation in operations:
        if selection.takes(operation.spec):
            yield operation.replace(spec=operation.spec.replace(**access), **middleware)


def _read(options: type[T], entry: Mapping[str, Any], **more: Any) -> T:
    """Return an option value with what an entry says about its fields."""
    return options(**{**_given(options, entry), **more})


def _given(options: type[msgspec.Struct], entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: entry[name] for name in keys_of(options) if name in entry}


@asynccontextmanager
async def _open_mcp(source: SourceEntry, config: Config, definitions: DefinitionLedger) -> AsyncIterator[OpenSource]:
    from enfold.sources.mcp import from_mcp

    entry = source.entry
    server = server_from_entry(entry)
    if isinstance(server, Command) and server.cwd is None:
        server = msgspec.structs.replace(server, cwd=config.folder)
    sizes = {
        "message_bytes": entry.get("max_bytes"),
        "connect": entry.get("connect_timeout"),
        **entry.get("limits", {}),
    }
    limits = MCPLimits(**{name: value for name, value in sizes.items() if value is not None})
    credentials, login = entry.get("credentials"), auth_of(entry.get("auth"), config.logins, config.folder)
    async with from_mcp(
        server,
        namespace=source.namespace,
        name=source.name,
        auth=login or (tuple(credentials) if isinstance(credentials, list) else credentials),
        connection=_read(Connection, entry, limits=limits),
        content=_read(Content, entry),
        selection=_read(Selection, entry),
        shape=_read(Shape, entry, secrets=source.secrets),
        rules=_rules(entry, definitions),
        middleware=load_middleware(patterns_of(entry.get("middleware")), config),
    ) as operations:
        yield OpenSource(operations, lambda: operations.is_busy, operations)


@asynccontextmanager
async def _open_openapi(
    source: SourceEntry, config: Config, definitions: DefinitionLedger
) -> AsyncIterator[OpenSource]:
    from enfold.sources.openapi import from_openapi

    entry = source.entry
    limits = {"limits": OpenAPILimits(response_bytes=int(entry["max_bytes"]))} if "max_bytes" in entry else {}
    folders = [_located(each, config) for each in patterns_of(entry.get("allow_files"))]
    # Reading a document may mean fetching it: not on the loop.
    imported = await asyncio.to_thread(
        from_openapi,
        _located(entry["openapi"], config),
        namespace=source.namespace,
        service=_read(Service, entry, allow_files=folders, **limits),
        selection=_read(Selection, entry),
        shape=_read(Shape, entry, secrets=source.secrets),
        rules=_rules(entry, definitions),
        middleware=load_middleware(patterns_of(entry.get("middleware")), config),
        **{name: entry[name] for name in ("base_url", "credentials", "headers") if name in entry},
    )
    async with imported:
        running = RunningCalls()
        origin = Origin(source.kind, source.name)
        operations = [_with_counted_calls(operation.replace(origin=origin), running) for operation in imported]
        yield OpenSource(operations, lambda: bool(running), imported)


@asynccontextmanager
async def _open_functions(source: SourceEntry, config: Config, _: DefinitionLedger) -> AsyncIterator[OpenSource]:
    from enfold.sources.functions import TargetError, load_target

    entry = source.entry
    found = load_target(_located(entry["functions"], config))
    if not len(found):
        raise TargetError(f"{entry['functions']} has no operations")
    selection = _read(Selection, entry)
    around = tuple(load_middleware(patterns_of(entry.get("middleware")), config))
    chosen = [operation for operation in found if selection.takes(operation.spec)]
    operations = [_configured(operation, source, selection, around) for operation in chosen]
    running = RunningCalls()
    if found.services.lifetime.needs_stop:  # otherwise nothing is closed while calls run
        operations = [_with_counted_calls(operation, running) for operation in operations]
    await found.services.lifetime.start()
    try:
        yield OpenSource(operations, lambda: bool(running))
    finally:
        await found.services.lifetime.stop()


def load_middleware(targets: Iterable[str], config: Config) -> list[Middleware]:
    loaded: list[Middleware] = []
    for target in targets:
        from enfold.sources.functions import load_object  # loaded with the first program

        try:
            loaded.append(load_object(_located(target, config)))
            check_middleware(loaded[-1])
        except Exception as error:  # importing a program may raise anything
            raise CallError("VALIDATION_ERROR", f"{config.path}: the middleware {target}: {error}") from error
    return loaded


def _with_counted_calls(operation: Operation, running: RunningCalls) -> Operation:
    handler = None if operation.handler is None else running.counted(operation.handler)
    return operation.replace(handler=handler)


def _configured(
    operation: Operation, source: SourceEntry, selection: Selection, middleware: tuple[Middleware, ...]
) -> Operation:
    """Apply the name, rules, policy and shape of the file to an operation of a program."""
    spec, entry = operation.spec, source.entry
    namespaces = (entry.get("namespace"), spec.namespace)
    changes: dict[str, Any] = {"namespace": ".".join(filter(None, namespaces))}
    name = selection.name(spec.name, spec.id)
    if name != spec.name:
        changes |= {"name": name, "meta": {**spec.meta, "original_name": spec.name}}
    if "access" in entry:
        changes["access_control"] = read_access(entry["access"])
    if "timeout" in entry:
        changes["timeout"] = entry["timeout"]
    rules = Rules(durable=entry.get("durable"), on_crash=entry.get("on_crash"))
    configured = operation.replace(
        spec=rules.with_durability(spec.replace(**changes)),
        policy=_read(Policy, entry).over(operation.policy),
        origin=Origin(source.kind, source.name),
    )
    return _read(Shape, entry).apply(configured, middleware)


def _located(target: str, config: Config) -> str:
    """Resolve a path against the file's folder; addresses and modules stay as they are."""
    place = Path(config.folder) / target.rpartition(":")[0] if ".py:" in target else Path(config.folder) / target
    return str(Path(config.folder) / target) if place.exists() else target


def _rules(entry: dict[str, Any], definitions: DefinitionLedger) -> Rules:
    access, policy = read_access(entry.get("access")), _read(Policy, entry)
    return _read(Rules, entry, access=access, policy=policy, definitions=definitions)


def patterns_of(value: Any) -> list[str]:
    """Return the patterns of a file as a list, given one or several."""
    return [value] if isinstance(value, str) else value or []


# --- logins -------


def auth_of(table: Mapping[str, Any] | None, logins: Logins, place: str) -> Auth | None:
    """Read the login of a table; its files are relative to the folder `place`."""
    if table is None:
        return None
    scopes = table.get("scopes", ())
    more: dict[str, Any] = {
        "scopes": tuple(scopes.split() if isinstance(scopes, str) else scopes),
        "store": None if logins.folder is None else FileStore(logins.folder),
    }
    if "private_key_file" in table:
        more["private_key"] = _read_text(place, table["private_key_file"])
    grant = table.get("grant", "authorization_code")
    if grant == "client_credentials":
        return _read(ClientCredentials, table, **more)
    if grant == "jwt_bearer":
        # Assertions expire within minutes; the platform writes the next one to the same file.
        return _read(
            AssertionLogin, table, **more, assertion=partial(_read_text, place, table.get("assertion_file", ""))
        )
    return _read(UserLogin, table, **more, open_url=logins.open_url)


def _read_text(folder: str, name: str) -> str:
    try:
        return (Path(folder) / name).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise CallError(
            "VALIDATION_ERROR", f"Cannot read {name or 'assertion_file'}, which the login requires"
        ) from None


# --- calls in progress ------


class RunningCalls:
    """The running calls of handlers wrapped by `counted`, including `def` handlers in threads."""

    def __init__(self) -> None:
        self._running: set[object] = set()

    def __bool__(self) -> bool:
        return bool(self._running)

    def counted(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a handler; a call counts until it, and the stream or future it returns, has ended."""

        @wraps(handler)
        async def call(*args: Any, **arguments: Any) -> Any:
            with self._marked():
                return self._with_stream_counted(await handler(*args, **arguments))

        @wraps(handler)
        def start(*args: Any, **arguments: Any) -> Any:
            with self._marked():
                return self._with_stream_counted(handler(*args, **arguments))

        return call if is_coroutine_function(handler) else start

    @contextmanager
    def _marked(self) -> Iterator[None]:
        """Count one running call; set operations are thread-safe."""
        mark = object()
        self._running.add(mark)
        try:
            yield
        finally:
            self._running.discard(mark)

    def _with_stream_counted(self, given: Any) -> Any:
        """Return the result of a handler; a stream or future counts until it has ended."""
        if hasattr(given, "__aiter__"):
            return self._items(given)
        if hasattr(given, "__next__"):
            return self._blocking_items(given)
        return self._await_counted(given) if hasattr(given, "__await__") else given

    async def _await_counted(self, given: Awaitable[Any]) -> Any:
        with self._marked():
            return await given

    async def _items(self, stream: AsyncIterator[Any]) -> AsyncGenerator[Any]:
        with self._marked():
            try:
                async for item in stream:
                    yield item
            finally:
                if isinstance(stream, AsyncGenerator):
                    await stream.aclose()

    def _blocking_items(self, stream: Iterator[Any]) -> Generator[Any]:
        with self._marked():
            yield from stream
