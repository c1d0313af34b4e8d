"""The options of sources: which operations they import, what callers see of them, the rules they follow, and limits.

Fields with a description are keys of a configuration: `enfold.app.keys`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from enfold.operations import (
    OPEN,
    AccessControl,
    Context,
    Durable,
    OnCrash,
    Operation,
    OperationSpec,
    OperationType,
    Policy,
)
from enfold.operations.call import Middleware
from enfold.schema.arguments import coerce
from enfold.schema.keywords import properties_of
from enfold.sources.reports import DefinitionLedger
from enfold.sources.secrets import KnownSecrets

Filter: TypeAlias = str | Iterable[str] | Callable[[OperationSpec], bool]
Describe: TypeAlias = Literal["short", "full"]
DurableChoice: TypeAlias = bool | str | Iterable[str] | Mapping[str, Durable]
TextTable: TypeAlias = dict[str, str | float | bool]  # of a file

_PATTERNS: Final = {"file": str | list[str], "expected": "a pattern or a list of patterns"}
_NEW_NAMES: Final = {
    "file": dict[str, Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$(?!\n)")]],
    "expected": "a table of names: 1 to 64 of A-Z a-z 0-9 _ -",
}


class Selection(msgspec.Struct, frozen=True):
    """Which operations are imported, and their new names.

    A filter is a pattern (`get_*`), several patterns, or a predicate of the spec. A pattern matches a name, an id, the
    name in the source, `METHOD /path` or `#tag`. Without `include` everything is imported; with an empty list, nothing.
    """

    include: Annotated[
        Filter | None,
        Meta(description="import only operations that match one of these patterns, such as `read_*`", extra=_PATTERNS),
    ] = None
    exclude: Annotated[Filter | None, Meta(description="operations that are not imported", extra=_PATTERNS)] = None
    rename: Annotated[
        Mapping[str, str], Meta(description="from the name in the source to the new name", extra=_NEW_NAMES)
    ] = {}

    def __post_init__(self) -> None:
        for option in ("include", "exclude"):
            msgspec.structs.force_setattr(self, option, _read_filter(getattr(self, option), option))

    def takes(self, spec: OperationSpec, *aliases: str) -> bool:
        """Whether an operation is imported; `aliases` are further names it is known by."""
        return self.may_take((*_names(spec), *aliases)) and self.approves(spec)

    def may_take(self, names: Iterable[str]) -> bool:
        """Whether the patterns admit something with these names; predicates are not evaluated."""
        known = list(names)
        if isinstance(self.include, tuple) and not _matches(self.include, known):
            return False
        return not (isinstance(self.exclude, tuple) and _matches(self.exclude, known))

    def approves(self, spec: OperationSpec) -> bool:
        """Whether the predicates admit an operation; patterns are not evaluated."""
        if callable(self.include) and not self.include(spec):
            return False
        return not (callable(self.exclude) and self.exclude(spec))

    def name(self, *names: str) -> str:
        """Return the new name for these names; the first of them if it is not renamed."""
        return next((self.rename[name] for name in names if name in self.rename), names[0])


def _read_filter(given: Filter | None, option: str) -> tuple[str, ...] | Callable[[OperationSpec], bool] | None:
    if given is None or callable(given):
        return given
    patterns = (given,) if isinstance(given, str) else tuple(given)
    if not all(isinstance(each, str) for each in patterns):
        raise TypeError(f"{option} takes patterns such as 'get_*', or a function of the spec")
    return patterns


def _matches(patterns: Iterable[str], names: list[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in names)


def _names(spec: OperationSpec) -> Iterator[str]:
    yield spec.name
    yield spec.id
    yield str(spec.meta.get("original_name", spec.name))
    if "method" in spec.meta:
        yield f"{spec.meta['method']} {spec.meta.get('path', '')}"
    yield from (f"#{tag}" for tag in spec.tags)


class Rules(msgspec.Struct, frozen=True):
    """The rules that all operations of a source follow.

    `durable` chooses the operations that may run as tasks: True for all, one pattern (`export_*`) or several, or a table
    of patterns and modes, of which the first match counts. `definitions` remembers definitions across reopenings.
    """

    timeout: Annotated[
        float | Literal["default"] | None,
        Meta(
            description="time limit of a call; 60 by default",
            extra={"file": Annotated[float, Meta(gt=0)], "unit": "seconds"},
        ),
    ] = "default"
    access: Annotated[
        AccessControl,
        Meta(
            description="who may call the operations of the source",
            extra={"expected": "a table such as {required_scopes = [...]}"},
        ),
    ] = OPEN
    policy: Policy = Policy()
    durable: Annotated[
        DurableChoice | None,
        Meta(
            description="which operations may run as tasks",
            extra={
                "file": bool | str | list[str] | dict[str, Durable],
                "expected": "true, a pattern, a list of patterns, or a table of patterns and never, optional or required",
            },
        ),
    ] = None
    on_crash: Annotated[
        OnCrash | None,
        Meta(description="what happens to a task, or a call with an idempotency key, after its process crashed"),
    ] = None
    definitions: DefinitionLedger | None = None

    def with_durability(self, spec: OperationSpec) -> OperationSpec:
        """Return the spec with its chosen durable mode; subscriptions are unchanged."""
        if spec.type is OperationType.SUBSCRIPTION:
            return spec
        mode = next((mode for pattern, mode in self._modes() if Selection(pattern).takes(spec)), None)
        changes = {"durable": mode, "on_crash": self.on_crash}
        chosen = {name: value for name, value in changes.items() if value is not None}
        return spec.replace(**chosen) if chosen else spec

    def _modes(self) -> Iterable[tuple[str, Durable]]:
        if self.durable is None or isinstance(self.durable, bool):
            return (("*", "optional"),) if self.durable else ()
        if isinstance(self.durable, Mapping):
            return self.durable.items()
        return [
            (pattern, "optional") for pattern in ([self.durable] if isinstance(self.durable, str) else self.durable)
        ]


class Shape(msgspec.Struct, frozen=True):
    """What callers see of a source's operations and results.

    `fix` maps arguments to values: a fixed argument disappears from the schema, and callers can neither see nor send it.
    `describe="short"` shows one sentence of each description. `select` names the fields of results that are returned by
    default, for all operations or by the operation's name. Values of `secrets`, by name, are redacted from results.
    """

    fix: Annotated[
        Mapping[str, Any],
        Meta(
            description="arguments with fixed values, hidden from callers",
            extra={"expected": "a table of arguments, such as {token = ...}"},
        ),
    ] = {}
    describe: Annotated[Describe | None, Meta(description="how much of each description is shown to models")] = None
    select: Annotated[
        str | Mapping[str, str],
        Meta(
            description="the fields of results that are returned by default",
            extra={"expected": "fields such as id,name, or a table of such strings by operation"},
        ),
    ] = {}
    secrets: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        if self.describe not in (None, "short", "full"):
            raise ValueError(f"describe must be short or full, not {self.describe!r}")

    def apply(self, operation: Operation, middleware: tuple[Middleware, ...] = ()) -> Operation:
        """Return the operation with these options; `middleware` wraps its calls, outermost first."""
        operation = self._described(operation)
        if middleware:
            operation = operation.replace(middleware=(*middleware, *operation.middleware))
        if self.fix and operation.signature is None and operation.handler is not None:
            return _with_fixed_arguments(operation, operation.handler, self.fix)
        return operation

    def _described(self, operation: Operation) -> Operation:
        spec = operation.spec
        added = {"describe": "short"} if self.describe == "short" else {}
        select = self._selection(spec)
        added |= {} if select is None else {"select": select}
        return operation.replace(spec=spec.replace(meta={**spec.meta, **added})) if added else operation

    def _selection(self, spec: OperationSpec) -> str | None:
        if isinstance(self.select, str):
            return self.select or None
        names = (spec.name, spec.id, str(spec.meta.get("original_name", spec.name)))
        return next((self.select[name] for name in names if name in self.select), None)


def _with_fixed_arguments(operation: Operation, handler: Callable[..., Any], fix: Mapping[str, Any]) -> Operation:
    """Fix some arguments of an operation; its schema is read only when needed."""
    fixed = _FixedArguments(operation.spec, fix)
    spec = operation.spec.replace(input_schema=lambda: fixed.schema)

    async def call(input: dict[str, Any], context: Context) -> Any:
        with fixed.secrets.hidden_in_errors():
            return fixed.secrets.redact_result(await handler(fixed.input(input), context))

    async def stream(input: dict[str, Any], context: Context) -> AsyncIterator[Any]:
        items = handler(fixed.input(input), context)
        try:
            with fixed.secrets.hidden_in_errors():
                async for item in items:
                    yield fixed.secrets.redact_result(item)
        finally:
            if hasattr(items, "aclose"):
                await items.aclose()

    is_stream = operation.spec.type is OperationType.SUBSCRIPTION
    return operation.replace(spec=spec, handler=stream if is_stream else call)


class _FixedArguments:
    """The fixed arguments of one operation, and its schema without them."""

    def __init__(self, spec: OperationSpec, fix: Mapping[str, Any]) -> None:
        self._spec = spec
        self._fix = fix

    def input(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the input with the fixed values, which a caller cannot override."""
        return {**given, **self._values}

    @cached_property
    def _values(self) -> dict[str, Any]:
        """The fixed values of the arguments that exist; text from the environment is converted to numbers where needed."""
        properties = properties_of(self._spec.input_schema)
        values = {name: value for name, value in self._fix.items() if name in properties}
        made: dict[str, Any] = coerce({"type": "object", "properties": properties}, values)
        return made

    @cached_property
    def secrets(self) -> KnownSecrets:
        secrets = KnownSecrets()
        secrets.remember_named(self._values)
        return secrets

    @cached_property
    def schema(self) -> dict[str, Any]:
        schema = self._spec.input_schema
        properties = properties_of(schema)
        hidden = [name for name in self._fix if name in properties]
        if not hidden:
            return schema
        kept = {name: each for name, each in properties.items() if name not in hidden}
        required = [name for name in schema.get("required", ()) if name not in hidden]
        rest = {key: value for key, value in schema.items() if key not in ("properties", "required", "examples")}
        return {**rest, "properties": kept, **({"required": required} if required else {})}


# --- OpenAPI services ---------------------------------------------------------------------------------------------


class OpenAPILimits(msgspec.Struct, frozen=True):
    """Limits of a source: sizes in bytes after decompression, and numbers of retries."""

    response_bytes: int = 32 * 1024 * 1024
    request_bytes: int = 32 * 1024 * 1024
    event_bytes: int = 4 * 1024 * 1024
    document_bytes: int = 64 * 1024 * 1024
    retries: int = 2
    retry_wait: float = 2.0  # a server that asks for a longer pause is not waited for
    redirects: int = 5
    reconnects: int = 5


Folder: TypeAlias = str | os.PathLike[str]


class Service(msgspec.Struct, frozen=True):
    """How to reach the service of an OpenAPI document. `client` is your own `httpx2.AsyncClient` or `httpx.AsyncClient`."""

    client: Any = None
    server_variables: Annotated[
        Mapping[str, str],
        Meta(description="values for `{variables}` in the document's servers", extra={"file": TextTable}),
    ] = {}
    allow_hosts: Annotated[
        str | Iterable[str], Meta(description="other hosts that may be contacted", extra=_PATTERNS)
    ] = ()
    allow_files: Annotated[
        Folder | Iterable[Folder],
        Meta(description="folders, besides the document's own, whose files references may name", extra=_PATTERNS),
    ] = ()
    private_headers: Annotated[
        str | Iterable[str], Meta(description="response headers that callers never see", extra=_PATTERNS)
    ] = ()
    limits: OpenAPILimits = OpenAPILimits()

    def __post_init__(self) -> None:
        for option in ("allow_hosts", "allow_files", "private_headers"):
            given = getattr(self, option)
            listed = (given,) if isinstance(given, str | os.PathLike) else tuple(given)
            msgspec.structs.force_setattr(self, option, listed)


# --- MCP servers --------------------------------------------------------------------------------------------------


def _limit(unit: str, description: str) -> Any:
    return Meta(description=description, extra={"unit": unit})


class MCPLimits(msgspec.Struct, frozen=True):
    """Limits of a source for its MCP servers: sizes in bytes, times in seconds."""

    message_bytes: Annotated[int, _limit("bytes", "of one message")] = 64 * 1024 * 1024
    connect: Annotated[float, _limit("seconds", "from the start of a server to the end of the handshake")] = 30.0
    probe: Annotated[
        float,
        _limit("seconds", "for the first request of the newest revision, before the older handshake is tried as well"),
    ] = 3.0
    held: Annotated[float, _limit("seconds", "for a user to answer while a call of an older server waits")] = 600.0
    rounds: Annotated[int, _limit("rounds", "of questions in one call")] = 10
    pages: Annotated[int, _limit("pages", "of one list")] = 1000
    list_items: Annotated[int, _limit("items", "of one list, over all its pages")] = 10_000
    list_bytes: Annotated[int, _limit("bytes", "of one list, over all its pages")] = 16 * 1024 * 1024
    reconnects: Annotated[int, _limit("times", "that a broken event stream is resumed without a new event")] = 5
    open_requests: Annotated[int, _limit("requests", "of a server, open on one connection")] = 100
    unread_bytes: Annotated[int, _limit("bytes", "written to a server that does not read them")] = 16 * 1024 * 1024
    notice_bytes: Annotated[int, _limit("bytes", "of log messages and progress in one call")] = 4 * 1024 * 1024
