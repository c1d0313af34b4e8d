"""Ids to operations: registering, looking up, running, and live views. It knows no source and no surface."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, TypeAlias, TypeVar, overload, runtime_checkable

import msgspec

from enfold.access import check_access, may_list
from enfold.env import Env, build_env
from enfold.envelope import ResponseEnvelope, ResultWarning, local_envelope, to_wire
from enfold.errors import CallError
from enfold.log import Log
from enfold.operation import (
    DEFAULT_POLICY,
    INHERIT,
    Context,
    Identity,
    Normalize,
    Operation,
    OperationSpec,
    OperationType,
    Policy,
    legal_names,
    operation_from_function,
    operation_id,
)
from enfold.runtime import Runner, drive

if TYPE_CHECKING:
    from enfold.threads import Threads

__all__ = ["Execute", "OperationRegistry", "Registry"]

F = TypeVar("F", bound=Callable[..., Any])
Specs: TypeAlias = list[OperationSpec]
Execute: TypeAlias = Callable[[Mapping[str, Any], Context | None], Coroutine[Any, Any, ResponseEnvelope[Any]]]


class Registry:
    """What a registry and its views share: finding operations and running them."""

    def _runners(self) -> Mapping[str, Runner]:
        raise NotImplementedError

    @property
    def version(self) -> int:
        """A number that grows with every change."""
        raise NotImplementedError

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back after every change; the answer ends the watching."""
        raise NotImplementedError

    # finding

    def get(self, operation_id: str) -> Operation:
        return self._runner(operation_id).operation

    def get_spec(self, operation_id: str) -> OperationSpec:
        return self._runner(operation_id).spec

    def get_handler(self, operation_id: str) -> Callable[..., Any]:
        handler = self._runner(operation_id).operation.handler
        if handler is None:
            raise _no_handler(operation_id)
        return handler

    def list(
        self,
        *,
        namespace: str | None = None,
        tag: str | None = None,
        type: OperationType | str | None = None,
    ) -> Specs:
        """The specs, in order of registration; `namespace` includes what lies below it."""
        return [
            spec
            for spec in (runner.spec for runner in self._runners().values())
            if (namespace is None or _lies_in(spec, namespace))
            and (tag is None or tag in spec.tags)
            and (type is None or spec.type == type)
        ]

    def visible(self, identity: Identity | None) -> Specs:
        """The specs this caller may see: those he could call with some input."""
        return [spec for spec in self.list() if may_list(spec.access_control, identity)]

    def find(self, name: str) -> OperationSpec:
        """The spec of an id, or of a name that only one operation has."""
        runner = self._runners().get(name)
        if runner is not None:
            return runner.spec
        named = [spec for spec in self.list() if spec.name == name]
        if len(named) == 1:
            return named[0]
        if named:
            # Which they are is not said: the caller may not be allowed to see them.
            raise CallError("OPERATION_NOT_FOUND", f"Operation not found: {name} (several have this name: use an id)")
        raise _not_found(name)

    def tool_names(self) -> dict[str, str]:
        """The name of each operation where dots are not allowed, as MCP clients want it, by its id."""
        return legal_names(self._runners())

    def find_tool(self, name: str) -> OperationSpec:
        """The spec of an id, of a tool name, or of a name that only one operation has."""
        if name not in self._runners():
            for operation_id, tool in self.tool_names().items():
                if tool == name:
                    return self.get_spec(operation_id)
        return self.find(name)

    def __iter__(self) -> Iterator[Operation]:
        return iter([runner.operation for runner in self._runners().values()])

    def __len__(self) -> int:
        return len(self._runners())

    def __contains__(self, operation_id: object) -> bool:
        return operation_id in self._runners()

    def needs_loop(self, operation_id: str) -> bool:
        """Whether running it takes an event loop, even when a `def` is run in place."""
        return self._runner(operation_id).needs_loop

    def _runner(self, operation_id: str) -> Runner:
        runner = self._runners().get(operation_id)
        if runner is None:
            raise _not_found(operation_id)
        return runner

    def _ready(self, operation_id: str) -> Runner:
        runner = self._runner(operation_id)
        if runner.operation.handler is None:
            raise _no_handler(operation_id)
        return runner

    # running

    async def execute(
        self, operation_id: str, input: Mapping[str, Any], context: Context | None = None
    ) -> ResponseEnvelope[Any]:
        """Run a query or mutation: the trusted door of the process, which checks no access."""
        return await self._ready(operation_id).execute(input, context)

    def prepared(self, operation_id: str, *, for_writing: bool = False) -> Execute:
        """`execute` for one operation, looked up once; it is that of the registry as it is until its next change.

        For a caller who only writes results, `data` may be a struct, whose text is that of the plain value.
        """
        runner = self._ready(operation_id)
        return (runner.for_writing() if for_writing else runner).execute

    def execute_now(
        self, operation_id: str, input: Mapping[str, Any], context: Context | None = None
    ) -> ResponseEnvelope[Any]:
        """`execute` for a program without an event loop: a `def` runs in place, an `async def` in a loop of its own."""
        context = context or Context()
        context.inline = True
        call = self.execute(operation_id, input, context)
        result: ResponseEnvelope[Any] = drive(call, operation_id in self and self.needs_loop(operation_id))
        return result

    def subscribe(
        self, operation_id: str, input: Mapping[str, Any], context: Context | None = None
    ) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """Run a subscription: an envelope for each item, with a fresh timestamp."""
        return self._ready(operation_id).subscribe(input, context)

    async def call(self, operation_id: str, input: Mapping[str, Any], context: Context) -> ResponseEnvelope[Any]:
        """The guarded door, for callers from outside: `execute` after the access check."""
        runner = self._ready(operation_id)
        if not runner.spec.access_control.is_open:
            check_access(runner.spec, context.identity, input)
        return await runner.execute(input, context)

    def call_now(self, operation_id: str, input: Mapping[str, Any], context: Context) -> ResponseEnvelope[Any]:
        """The guarded door for a program without an event loop: `execute_now` after the access check."""
        check_access(self.get_spec(operation_id), context.identity, input)
        return self.execute_now(operation_id, input, context)

    def follow(
        self, operation_id: str, input: Mapping[str, Any], context: Context
    ) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """The guarded door for streams: `subscribe` after the access check."""
        check_access(self.get_spec(operation_id), context.identity, input)
        return self.subscribe(operation_id, input, context)

    async def collect(
        self, operation_id: str, input: Mapping[str, Any], context: Context, limits: CollectLimits | None = None
    ) -> Collected:
        """A subscription as one value, the list of its items, for callers who cannot take a stream.

        It ends with the stream, at the limits, or at the caller's deadline: then what there is is given, as truncated.
        Each item is told as progress.
        """
        stream = self.follow(operation_id, input, context)
        try:
            return await _collect(stream, operation_id, limits or CollectLimits(), context)
        finally:
            await stream.aclose()

    # live views

    def mount(self, prefix: str) -> View:
        """The same operations, each id below a prefix."""
        operation_id(prefix, "x")  # a prefix that is not legal is told here
        return View(self, lambda spec: spec.replace(namespace=_join(prefix, spec.namespace)))

    def only(self, predicate: Callable[[OperationSpec], bool]) -> View:
        """Those of the operations for which the predicate is true."""
        return View(self, lambda spec: spec if predicate(spec) else None)

    def rename(self, mapping: Mapping[str, str]) -> View:
        """The same operations, some under another id."""
        for new in mapping.values():
            operation_id(*_split(new))
        return View(self, lambda spec: _renamed(spec, mapping))

    def with_policy(self, policy: Policy) -> View:
        """The same operations under another policy, which wins over their own."""
        return View(self, lambda spec: spec, policy)


class CollectLimits(msgspec.Struct, frozen=True):
    """How much of a stream is collected."""

    items: int = 1_000
    size: int = 1_000_000  # of the items' JSON text


class Collected(msgspec.Struct, frozen=True):
    """A stream as one envelope, and whether there was more."""

    envelope: ResponseEnvelope[Any]
    truncated: bool


async def _collect(
    stream: AsyncGenerator[ResponseEnvelope[Any]], operation_id: str, limits: CollectLimits, context: Context
) -> Collected:
    items: list[Any] = []
    warnings: list[ResultWarning] = []
    size, truncated = 0, False
    try:
        async for envelope in stream:
            data = to_wire(envelope)["data"]
            size += _size(data)
            truncated = len(items) >= limits.items or size > limits.size
            if truncated:
                break
            warnings += (_below(warning, len(items)) for warning in envelope.warnings)
            items.append(data)
            context.progress(len(items))
    except CallError as error:
        if error.code != "TIMEOUT":
            error.partial = local_envelope(items, operation_id)
            raise
        truncated = True
    envelope = msgspec.structs.replace(local_envelope(items, operation_id), warnings=tuple(warnings))
    return Collected(envelope, truncated)


def _size(data: Any) -> int:
    try:
        return len(msgspec.json.encode(data))
    except (ValueError, TypeError, RecursionError) as error:  # half a character, which UTF-8 cannot hold
        raise CallError("EXECUTION_ERROR", f"failed to marshal response: {error}") from error


def _below(warning: ResultWarning, index: int) -> ResultWarning:
    return msgspec.structs.replace(warning, path=f"/{index}{warning.path}")


@runtime_checkable
class Living(Protocol):
    """A source whose operations come and go: it keeps the registry that has taken them up to date."""

    def keep_current(self, registry: OperationRegistry) -> None: ...


class OperationRegistry(Registry):
    """One registry of typed operations."""

    def __init__(
        self,
        namespace: str = "",
        *,
        normalize: Normalize = "repair",
        strict_output: bool = False,
        coerce: bool = True,
        extras: Literal["strip", "keep"] = "strip",
        expose_errors: bool = True,
        threads: int = 128,
    ) -> None:
        """`namespace` is that of functions registered here; the rest are policies, which an operation may override."""
        if namespace:
            operation_id(namespace, "x")
        self.namespace = namespace
        self._policy = Policy(normalize, strict_output, coerce, extras, expose_errors).over(DEFAULT_POLICY)
        self._thread_limit = threads
        self._pool: Threads | None = None
        self._entries: dict[str, Runner] = {}
        self._version = 0
        self._watchers: dict[int, Callable[[], None]] = {}

    @property
    def policy(self) -> Policy:
        return self._policy

    @property
    def version(self) -> int:
        return self._version

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        key = id(callback)
        self._watchers[key] = callback
        return lambda: self._watchers.pop(key, None) and None

    def _runners(self) -> Mapping[str, Runner]:
        return self._entries

    async def execute(
        self, operation_id: str, input: Mapping[str, Any], context: Context | None = None
    ) -> ResponseEnvelope[Any]:
        """Run a query or mutation: the trusted door of the process, which checks no access."""
        runner = self._entries.get(operation_id)
        if runner is None or runner.operation.handler is None:
            runner = self._ready(operation_id)
        return await runner.execute(input, context)

    def run(self, arguments: Sequence[str] | None = None) -> NoReturn:
        """Give a user's own script the commands of `enfold`: `python shop.py serve`, `python shop.py call …`."""
        # The one import upwards: the command knows every surface, and a registry must not.
        from enfold.commands.main import run

        run(self, arguments)

    # registering

    def register(self, operation: Operation | Callable[..., Any], **options: Any) -> Operation:
        """Register an operation, or a function with the options of a decorator."""
        made = operation if isinstance(operation, Operation) else self._from_function(operation, options)
        if made.spec.id in self._entries:
            raise ValueError(f"{made.spec.id} is registered already: unregister it first, or choose another name")
        self._put(made)
        return made

    def register_spec(self, spec: OperationSpec) -> None:
        """Register the contract alone; until its handler comes, a call is OPERATION_NOT_FOUND."""
        self.register(Operation(spec, None))

    def register_handler(self, operation_id: str, handler: Callable[..., Any]) -> None:
        """Give a registered spec its handler, called as `handler(input, context)`."""
        runner = self._entries.get(operation_id)
        if runner is None:
            raise LookupError(f"There is no spec {operation_id}: register it before its handler")
        if runner.operation.handler is not None:
            raise ValueError(f"{operation_id} has a handler already")
        self._put(Operation(runner.spec, handler, policy=runner.operation.policy))

    def register_all(self, operations: Iterable[Operation]) -> None:
        """Register all of them, or, where one clashes, none; a source that lives goes on to tell of its changes."""
        batch = list(operations)
        seen: set[str] = set(self._entries)
        for operation in batch:
            if operation.spec.id in seen:
                raise ValueError(f"{operation.spec.id} is registered already: give the source another namespace")
            seen.add(operation.spec.id)
        for operation in batch:
            self._entries[operation.spec.id] = self._run(operation)
        self._changed()
        if isinstance(operations, Living):
            operations.keep_current(self)

    def replace(self, operation: Operation) -> None:
        """Put an operation in the place of the one that has its id."""
        if operation.spec.id not in self._entries:
            raise LookupError(f"There is no operation {operation.spec.id} to replace")
        self._put(operation)

    def unregister(self, operation_id: str) -> Operation:
        runner = self._entries.pop(operation_id, None)
        if runner is None:
            raise LookupError(f"There is no operation {operation_id} to unregister")
        self._changed()
        return runner.operation

    def _put(self, operation: Operation) -> None:
        self._entries[operation.spec.id] = self._run(operation)
        self._changed()

    def _run(self, operation: Operation) -> Runner:
        return Runner(operation, operation.policy.over(self._policy), self.threads, self._env)

    def threads(self) -> Threads:
        """The worker threads for `def` handlers, shared by all operations; made when first needed."""
        from enfold.threads import Threads

        if self._pool is None:
            self._pool = Threads(self._thread_limit)
        return self._pool

    def _env(self, context: Context) -> Env:
        return build_env(self, context)

    def _changed(self) -> None:
        self._version += 1
        for callback in list(self._watchers.values()):
            callback()

    def _from_function(self, function: Callable[..., Any], options: dict[str, Any]) -> Operation:
        policy = Policy(**{name: options.pop(name) for name in Policy.__struct_fields__ if name in options})
        if "access" in options:
            options["access_control"] = options.pop("access")
        options.setdefault("namespace", self.namespace)
        try:
            return operation_from_function(function, policy=policy, **options)
        except TypeError as error:
            if "unexpected keyword argument" in str(error):
                raise TypeError(f"Unknown option for {function.__name__}: {error}") from error
            raise

    # decorators

    @overload
    def query(self, function: F, /) -> F: ...
    @overload
    def query(self, /, **options: Any) -> Callable[[F], F]: ...
    def query(self, function: F | None = None, /, **options: Any) -> F | Callable[[F], F]:
        """Register a function that only reads."""
        return self._decorate(OperationType.QUERY, function, options)

    @overload
    def mutation(self, function: F, /) -> F: ...
    @overload
    def mutation(self, /, **options: Any) -> Callable[[F], F]: ...
    def mutation(self, function: F | None = None, /, **options: Any) -> F | Callable[[F], F]:
        """Register a function that changes something."""
        return self._decorate(OperationType.MUTATION, function, options)

    @overload
    def subscription(self, function: F, /) -> F: ...
    @overload
    def subscription(self, /, **options: Any) -> Callable[[F], F]: ...
    def subscription(self, function: F | None = None, /, **options: Any) -> F | Callable[[F], F]:
        """Register an async generator: a stream of values."""
        return self._decorate(OperationType.SUBSCRIPTION, function, options)

    def _decorate(self, type: OperationType, function: F | None, options: dict[str, Any]) -> F | Callable[[F], F]:
        def decorate(function: F) -> F:
            self.register(function, type=type, **options)
            return function

        return decorate if function is None else decorate(function)


class View(Registry):
    """A live view of a registry: it shows at every moment what the registry has, under other names or in part."""

    def __init__(
        self, base: Registry, shown: Callable[[OperationSpec], OperationSpec | None], policy: Policy = INHERIT
    ) -> None:
        self._base = base
        self._shown = shown
        self._policy = policy
        self._seen = base.version
        self._entries = self._derive(self._refuse)

    @property
    def version(self) -> int:
        return self._base.version

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self._base.watch(callback)

    def _runners(self) -> Mapping[str, Runner]:
        if self._seen != self._base.version:
            self._seen = self._base.version
            self._entries = self._derive(self._leave_out)
        return self._entries

    def _refuse(self, problem: str) -> None:
        raise ValueError(problem)

    def _leave_out(self, problem: str) -> None:
        """What is registered later and has no place in the view must not take the others' away."""
        Log("enfold.registry").warning("%s: left out", problem)

    def _derive(self, told: Callable[[str], None]) -> dict[str, Runner]:
        entries: dict[str, Runner] = {}
        for runner in self._base._runners().values():
            try:
                spec = self._shown(runner.spec)
            except ValueError as error:  # an id too long under a prefix
                told(str(error))
                continue
            if spec is None:
                continue
            if spec.id in entries:
                told(f"Two operations would be called {spec.id} in this view")
                continue
            same = spec is runner.spec and self._policy is INHERIT
            entries[spec.id] = runner if same else runner.under(spec, self._policy)
        return entries


def _lies_in(spec: OperationSpec, namespace: str) -> bool:
    return spec.namespace == namespace or spec.namespace.startswith(f"{namespace}.")


def _join(prefix: str, namespace: str) -> str:
    return f"{prefix}.{namespace}" if namespace else prefix


def _split(operation_id: str) -> tuple[str, str]:
    namespace, _, name = operation_id.rpartition(".")
    return namespace, name


def _renamed(spec: OperationSpec, mapping: Mapping[str, str]) -> OperationSpec:
    new = mapping.get(spec.id)
    if new is None:
        return spec
    namespace, name = _split(new)
    return spec.replace(namespace=namespace, name=name)


def _not_found(operation_id: str) -> CallError:
    return CallError("OPERATION_NOT_FOUND", f"Operation not found: {operation_id}")


def _no_handler(operation_id: str) -> CallError:
    return CallError("OPERATION_NOT_FOUND", f"No handler registered for operation: {operation_id}")
