"""Ids to operations: registering, looking up, running, and live views. It knows no source and no surface."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    NoReturn,
    TypeAlias,
    TypeVar,
    Unpack,
    overload,
)

import msgspec
from msgspec.structs import replace

from enfold.access import EVERYTHING, is_hidden, may_list
from enfold.errors import CallError
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
    ReservedAccess,
    operation_from_function,
    operation_id,
)
from enfold.reserved import Reserved, check_namespace, is_reserved

if TYPE_CHECKING:
    from enfold.env import Env
    from enfold.envelope import ResponseEnvelope
    from enfold.lifetime import Lifetime
    from enfold.observing.observers import Observer, Observers
    from enfold.operation.options import OperationOptions
    from enfold.runtime import PreparedOperation
    from enfold.source_states import SourceTable
    from enfold.threads import Threads

F = TypeVar("F", bound=Callable[..., Any])
H = TypeVar("H", bound=Callable[[], Any])
Specs: TypeAlias = list[OperationSpec]

_NOTHING: Final[Mapping[str, Any]] = {}
_EVERYBODY: Final = Identity("", frozenset({EVERYTHING}))


class Registry:
    """What a registry and its views share: finding operations and running them."""

    def _operations(self) -> Mapping[str, PreparedOperation]:
        raise NotImplementedError

    def _reserved(self) -> Mapping[str, PreparedOperation]:
        """The operations of the namespace `enfold`, which are listed only where they are asked for."""
        raise NotImplementedError

    lifetime: Lifetime
    title = ""  # what the application calls itself; "" where it does not say
    app_version = ""
    reserved: Reserved
    observers: Observers  # who is told of every call
    _names_all = True  # whether whoever asks may see every name

    @property
    def sources(self) -> SourceTable:
        """Where the operations come from, and how each source is at this moment."""
        raise NotImplementedError

    @property
    def policy(self) -> Policy:
        """How calls are treated that say nothing else."""
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
        return self._find(operation_id).operation

    def get_spec(self, operation_id: str) -> OperationSpec:
        return self._find(operation_id).spec

    def get_handler(self, operation_id: str) -> Callable[..., Any]:
        handler = self._find(operation_id).operation.handler
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
        """The specs, in order of registration; `namespace` includes what lies below it. Those of `enfold` must be named."""
        is_asked_for = namespace is not None and is_reserved(namespace)
        operations = self._reserved() if is_asked_for else self._operations()
        return [
            spec
            for spec in (prepared.spec for prepared in operations.values())
            if (namespace is None or spec.lies_in(namespace))
            and (tag is None or tag in spec.tags)
            and (type is None or spec.type == type)
        ]

    def visible(self, identity: Identity | None, *, namespace: str | None = None) -> Specs:
        """The specs this caller may see: those they could call with some input."""
        return [spec for spec in self.list(namespace=namespace) if may_list(spec.access_control, identity)]

    def find(self, name: str, identity: Identity | None = None) -> OperationSpec:
        """The spec of an id, or of a name that only one operation has among those that the caller may see.

        To who has no identity a guarded operation is found too, to be told that it needs a token. Where there is none, the
        nearest that the caller may see is named. Operations of the namespace `enfold` are found by their ids alone.
        """
        prepared = self._look_up(name)
        if prepared is not None and not is_hidden(prepared.spec.access_control, identity):
            return prepared.spec
        named = [spec for spec in self.list() if spec.name == name]
        seen = [spec for spec in named if may_list(spec.access_control, identity)]
        found = seen or (named if identity is None else [])
        if len(found) == 1 and not self._is_away(name):
            return found[0]
        if found:
            raise CallError("OPERATION_NOT_FOUND", f"Operation not found: {name} (several have this name: use an id)")
        raise self.unknown(name, identity)

    def _is_away(self, name: str) -> bool:
        """Whether an operation of a source that is down has this short name, which must not come to mean another one."""
        away = self.sources.away
        return bool(away) and any(name in names for names in away.values())

    def unknown(self, name: str, identity: Identity | None) -> CallError:
        """What is told of a name that is nobody's, or is hidden from the caller: the same."""
        if is_reserved(name):
            ids = {spec.id: spec.id for spec in self.visible(identity, namespace=name.partition(".")[0])}
        else:
            ids = {key: spec.id for spec in self.visible(identity) for key in (spec.name, spec.id)}
        from enfold.nearest import nearest_id  # which starting a program does not need

        near = nearest_id(name, ids)
        return not_found(name, "" if near is None else f". Did you mean {ids[near]}?")

    def __iter__(self) -> Iterator[Operation]:
        return iter([prepared.operation for prepared in self._operations().values()])

    def __len__(self) -> int:
        return len(self._operations())

    def __contains__(self, operation_id: object) -> bool:
        return isinstance(operation_id, str) and self._look_up(operation_id) is not None

    def needs_loop(self, operation_id: str) -> bool:
        """Whether running it takes an event loop, even when a `def` is run in place."""
        return self._find(operation_id).needs_loop or self.lifetime.needs_loop

    def _look_up(self, operation_id: str) -> PreparedOperation | None:
        found = self._operations().get(operation_id)
        return self._reserved().get(operation_id) if found is None and is_reserved(operation_id) else found

    def _find(self, operation_id: str) -> PreparedOperation:
        prepared = self._look_up(operation_id)
        if prepared is None:
            raise self.unknown(operation_id, _EVERYBODY) if self._names_all else not_found(operation_id)
        return prepared

    def error_for_caller(self, operation_id: str, error: CallError) -> CallError:
        """The error that a call has ended with, as callers hear it; where its operation is gone, by the policy of all."""
        prepared = self._look_up(operation_id)
        if prepared is not None:
            return prepared.error_for_caller(error)
        if not self.policy.expose_errors:
            error.hide_words()
        return error

    # running

    def prepared(self, operation_id: str, *, for_writing: bool = False) -> PreparedOperation:
        """One operation ready to run, looked up once: as the registry has it until its next change.

        For a caller who only writes results, `data` may be JSON text (`msgspec.Raw`) in place of the plain value.
        """
        prepared = self._find(operation_id)
        if prepared.operation.handler is None:
            raise _no_handler(operation_id)
        return prepared.variant(for_writing=True) if for_writing else prepared

    async def execute(
        self, operation_id: str, input: Mapping[str, Any] = _NOTHING, context: Context | None = None
    ) -> ResponseEnvelope[Any]:
        """Run a query or mutation; the door of the process checks no access, that of `guarded()` does."""
        prepared = self._operations().get(operation_id)
        if prepared is None or prepared.operation.handler is None:
            prepared = self.prepared(operation_id)  # which says what is missing
        return await prepared.execute(input, context)

    def execute_now(
        self, operation_id: str, input: Mapping[str, Any] = _NOTHING, context: Context | None = None
    ) -> ResponseEnvelope[Any]:
        """`execute` for a program without an event loop: a `def` runs in place, an `async def` in a loop of its own."""
        from enfold.runtime import drive  # as below

        context = context or Context()
        context.inline = True
        call = self.execute(operation_id, input, context)
        result: ResponseEnvelope[Any] = drive(call, operation_id in self and self.needs_loop(operation_id))
        return result

    def subscribe(
        self, operation_id: str, input: Mapping[str, Any] = _NOTHING, context: Context | None = None
    ) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """Run a subscription: an envelope for each item, with a fresh timestamp."""
        return self.prepared(operation_id).subscribe(input, context)

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Give an observer the record of every call that has ended, on whatever surface; the answer ends it."""
        return self.observers.observe(observer)

    # live views

    def guarded(
        self, *, has_identities: bool = True, may_be_mounted: bool = False, is_observed: bool = True
    ) -> Registry:
        """The same operations for callers from outside: `execute` and `subscribe` check access first.

        Without `has_identities` no caller can prove who they are: then the operations of `enfold` are open to them, unless
        the surface `may_be_mounted` below one whose callers can. A surface that tells the observers of its calls itself, with those that it refuses, says `is_observed=False`.
        """
        return View(self, lambda spec: spec, guard=Guard(has_identities, may_be_mounted), is_observed=is_observed)

    def mount(self, prefix: str) -> View:
        """The same operations, each id below a prefix."""
        operation_id(prefix, "x")  # a prefix that is not legal is told here
        check_namespace(prefix)
        return View(self, lambda spec: spec.replace(namespace=_join(prefix, spec.namespace)))

    def public(self) -> View:
        """Those of the operations that anybody may call, even where everybody else needs a token."""
        return View(self, lambda spec: spec if spec.access_control.public else None, has_reserved=False)

    def only(self, predicate: Callable[[OperationSpec], bool]) -> View:
        """Those of the operations for which the predicate is true."""
        return View(self, lambda spec: spec if predicate(spec) else None)

    def rename(self, mapping: Mapping[str, str]) -> View:
        """The same operations, some under another id."""
        for new in mapping.values():
            operation_id(*_split(new))
            check_namespace(_split(new)[0])
        return View(self, lambda spec: _renamed(spec, mapping))

    def with_policy(self, policy: Policy) -> View:
        """The same operations under another policy, which wins over their own."""
        return View(self, lambda spec: spec, policy)


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
        detect: Literal["all", "instances"] = "all",
        threads: int = 128,
        title: str = "",
        version: str = "",
    ) -> None:
        """`namespace` is that of functions registered here; `title` and `version` are what clients see of the application.

        The rest are policies, which an operation may override.
        """
        # With the first registry: many only import us.
        from enfold.lifetime import Lifetime
        from enfold.observing.observers import Observers

        if namespace:
            operation_id(namespace, "x")
            check_namespace(namespace)
        self.namespace = namespace
        self.title = title
        self.app_version = version
        self.reserved = Reserved(self._run, self._changed)
        self.lifetime = Lifetime()
        self._sources: SourceTable | None = None
        self.observers = Observers()
        chosen = Policy(normalize, strict_output, coerce, extras, expose_errors, detect=detect)
        self._policy = chosen.over(DEFAULT_POLICY)
        self._thread_limit = threads
        self._pool: Threads | None = None
        self._entries: dict[str, PreparedOperation] = {}
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

    def _operations(self) -> Mapping[str, PreparedOperation]:
        return self._entries

    def _reserved(self) -> Mapping[str, PreparedOperation]:
        return self.reserved.operations()

    def run(self, arguments: Sequence[str] | None = None) -> NoReturn:
        """Give a user's own script the commands of `enfold`: `python shop.py serve`, `python shop.py call …`."""
        # The one import upwards: the command knows every surface, and a registry must not.
        from enfold.commands.main import run

        run(self, arguments)

    # registering

    def register(self, operation: Operation | Callable[..., Any], **options: Unpack[OperationOptions]) -> Operation:
        """Register an operation, or a function with the options of a decorator."""
        made = operation if isinstance(operation, Operation) else self._from_function(operation, options)
        check_namespace(made.spec.namespace)
        if made.spec.id in self._entries:
            raise ValueError(f"{made.spec.id} is registered already: unregister it first, or choose another name")
        self._put(made)
        return made

    def register_spec(self, spec: OperationSpec) -> None:
        """Register the contract alone; until its handler comes, a call is OPERATION_NOT_FOUND."""
        self.register(Operation(spec, None))

    def register_handler(self, operation_id: str, handler: Callable[..., Any]) -> None:
        """Give a registered spec its handler, called as `handler(input, context)`."""
        prepared = self._entries.get(operation_id)
        if prepared is None:
            raise LookupError(f"There is no spec {operation_id}: register it before its handler")
        if prepared.operation.handler is not None:
            raise ValueError(f"{operation_id} has a handler already")
        self._put(Operation(prepared.spec, handler, policy=prepared.operation.policy))

    def register_all(self, operations: Iterable[Operation], *, instead_of: Iterable[Operation] = ()) -> None:
        """Register all of them, or, where one clashes, none; a source that lives goes on to tell of its changes.

        Those that they come `instead_of` are taken away in the same step.
        """
        batch = list(operations)
        gone = self._own_ids(instead_of)
        seen = self._entries.keys() - gone
        for operation in batch:
            check_namespace(operation.spec.namespace)
            if operation.spec.id in seen:
                raise ValueError(f"{operation.spec.id} is registered already: give the source another namespace")
            seen.add(operation.spec.id)
        for own_id in gone:
            del self._entries[own_id]
        for operation in batch:
            self._entries[operation.spec.id] = self._run(operation)
        self._changed()
        keep_current = getattr(operations, "keep_current", None)  # of a source whose operations come and go
        if keep_current is not None:
            keep_current(self)

    def replace(self, operation: Operation) -> None:
        """Put an operation in the place of the one that has its id."""
        if operation.spec.id not in self._entries:
            raise LookupError(f"There is no operation {operation.spec.id} to replace")
        self._put(operation)

    def unregister_all(self, operations: Iterable[Operation]) -> None:
        """Take away those of the operations that are still registered as they are, in one step."""
        gone = self._own_ids(operations)
        for own_id in gone:
            del self._entries[own_id]
        if gone:
            self._changed()

    def _own_ids(self, operations: Iterable[Operation]) -> set[str]:
        entries = self._entries
        return {
            each.spec.id for each in operations if each.spec.id in entries and entries[each.spec.id].operation is each
        }

    def unregister(self, operation_id: str) -> Operation:
        prepared = self._entries.pop(operation_id, None)
        if prepared is None:
            raise LookupError(f"There is no operation {operation_id} to unregister")
        self._changed()
        return prepared.operation

    def _put(self, operation: Operation) -> None:
        self._entries[operation.spec.id] = self._run(operation)
        self._changed()

    def _run(self, operation: Operation) -> PreparedOperation:
        from enfold.runtime import PreparedOperation  # with the first operation: many only import us

        policy = operation.policy.over(self._policy)
        return PreparedOperation(operation, policy, self.threads, self._env, self.lifetime, observers=self.observers)

    @property
    def sources(self) -> SourceTable:
        from enfold.source_states import SourceTable  # a program without sources starts without

        if self._sources is None:
            self._sources = SourceTable()
        return self._sources

    @sources.setter
    def sources(self, table: SourceTable) -> None:
        self._sources = table

    def threads(self) -> Threads:
        """The worker threads for `def` handlers, shared by all operations; made when first needed."""
        from enfold.threads import Threads  # with the first `def` that needs a thread

        if self._pool is None:
            self._pool = Threads(self._thread_limit)
        return self._pool

    def _env(self, context: Context, policy: Policy) -> Env:
        from enfold.env import build_env  # most programs start without

        return build_env(self, context, raise_on_error=bool(policy.raise_on_error))

    def _changed(self) -> None:
        self._version += 1
        for callback in list(self._watchers.values()):
            callback()

    def _from_function(self, function: Callable[..., Any], options: OperationOptions) -> Operation:
        chosen: dict[str, Any] = dict(options)
        policy = Policy(**{name: chosen.pop(name) for name in Policy.__struct_fields__ if name in chosen})
        if "access" in chosen:
            chosen["access_control"] = chosen.pop("access")
        chosen.setdefault("namespace", self.namespace)
        select = chosen.pop("select", None)
        if select is not None:
            chosen["meta"] = {**(chosen.get("meta") or {}), "select": select}
        try:
            made = operation_from_function(function, policy=policy, **chosen)
        except TypeError:
            _refuse_unknown(options, function)
            raise
        return made if select is None else _with_selection(made, select)

    def on_start(self, hook: H) -> H:
        """Run a function before the first call, on whatever surface: it opens what the operations need."""
        self.lifetime.add(start=hook)
        return hook

    def on_stop(self, hook: H) -> H:
        """Run a function after the last call: it closes what `on_start` opened."""
        self.lifetime.add(stop=hook)
        return hook

    # decorators

    @overload
    def query(self, function: F, /) -> F: ...
    @overload
    def query(self, /, **options: Unpack[OperationOptions]) -> Callable[[F], F]: ...
    def query(self, function: F | None = None, /, **options: Unpack[OperationOptions]) -> F | Callable[[F], F]:
        """Register a function that only reads."""
        return self._decorate(OperationType.QUERY, function, options)

    @overload
    def mutation(self, function: F, /) -> F: ...
    @overload
    def mutation(self, /, **options: Unpack[OperationOptions]) -> Callable[[F], F]: ...
    def mutation(self, function: F | None = None, /, **options: Unpack[OperationOptions]) -> F | Callable[[F], F]:
        """Register a function that changes something."""
        return self._decorate(OperationType.MUTATION, function, options)

    @overload
    def subscription(self, function: F, /) -> F: ...
    @overload
    def subscription(self, /, **options: Unpack[OperationOptions]) -> Callable[[F], F]: ...
    def subscription(self, function: F | None = None, /, **options: Unpack[OperationOptions]) -> F | Callable[[F], F]:
        """Register an async generator: a stream of values."""
        return self._decorate(OperationType.SUBSCRIPTION, function, options)

    def _decorate(self, type: OperationType, function: F | None, options: OperationOptions) -> F | Callable[[F], F]:
        options["type"] = type

        def decorate(function: F) -> F:
            self.register(function, **options)
            return function

        return decorate if function is None else decorate(function)


class Guard(msgspec.Struct, frozen=True):
    """That a view is for callers from outside, and whether they can prove who they are."""

    has_identities: bool
    may_be_mounted: bool = False  # below a surface whose callers have identities


class View(Registry):
    """A live view of a registry: it shows at every moment what the registry has, under other names or in part."""

    def __init__(
        self,
        base: Registry,
        shown: Callable[[OperationSpec], OperationSpec | None],
        policy: Policy = INHERIT,
        *,
        guard: Guard | None = None,
        has_reserved: bool = True,
        is_observed: bool = True,
    ) -> None:
        self._base = base
        self.lifetime = base.lifetime
        self.title = base.title
        self.app_version = base.app_version
        self.reserved = base.reserved
        self.observers = base.observers
        self._shown = shown
        self._policy = policy
        self._guard = guard
        self._is_observed = is_observed
        self._has_reserved = has_reserved
        self._of_enfold: tuple[Mapping[str, PreparedOperation], dict[str, PreparedOperation]] | None = None
        self._names_all = base._names_all and guard is None
        self._seen = base.version
        self._entries = self._derive(self._refuse)

    @property
    def sources(self) -> SourceTable:
        return self._base.sources

    @property
    def policy(self) -> Policy:
        return self._policy.over(self._base.policy)

    @property
    def version(self) -> int:
        return self._base.version

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self._base.watch(callback)

    def _operations(self) -> Mapping[str, PreparedOperation]:
        if self._seen != self._base.version:
            self._seen = self._base.version
            self._entries = self._derive(self._leave_out)
        return self._entries

    def _reserved(self) -> Mapping[str, PreparedOperation]:
        base = self._base._reserved()
        if self._of_enfold is None or self._of_enfold[0] is not base:
            shown = base if self._has_reserved else {}
            self._of_enfold = base, {key: self._reserved_variant(prepared) for key, prepared in shown.items()}
        return self._of_enfold[1]

    def _reserved_variant(self, prepared: PreparedOperation) -> PreparedOperation:
        """A reserved operation is the same in every view, but for who may call it."""
        spec, access = prepared.spec, prepared.spec.access_control
        if self._guard is not None and isinstance(access, ReservedAccess):
            guarded = self._guard.has_identities or (self._guard.may_be_mounted and self.reserved.has_identities)
            spec = spec.replace(access_control=replace(access, has_identities=guarded))
        return self._variant(prepared, spec)

    def _variant(self, prepared: PreparedOperation, spec: OperationSpec) -> PreparedOperation:
        guard = None if self._guard is None else True
        return prepared.variant(spec, self._policy, is_guarded=guard, is_observed=self._is_observed)

    def _refuse(self, problem: str) -> None:
        raise ValueError(problem)

    def _leave_out(self, problem: str) -> None:
        """What is registered later and has no place in the view must not take the others' away."""
        from enfold.log import Log  # most views leave nothing out

        Log("enfold.registry").warning("%s: left out", problem)

    def _derive(self, report: Callable[[str], None]) -> dict[str, PreparedOperation]:
        entries: dict[str, PreparedOperation] = {}
        for prepared in self._base._operations().values():
            try:
                spec = self._shown(prepared.spec)
            except ValueError as error:  # an id too long under a prefix
                report(str(error))
                continue
            if spec is None:
                continue
            if spec.id in entries:
                report(f"Two operations would be called {spec.id} in this view")
                continue
            same = spec is prepared.spec and self._policy is INHERIT and self._guard is None
            entries[spec.id] = prepared if same else self._variant(prepared, spec)
        return entries


def _refuse_unknown(options: Mapping[str, Any], function: Callable[..., Any]) -> None:
    """Tell of an option that there is not, with the nearest that there is."""
    from enfold.nearest import nearest  # this and the next: not needed to start a program
    from enfold.operation.options import OperationOptions

    known = OperationOptions.__optional_keys__
    for name in options:
        if name not in known:
            near = nearest(name, known)
            hint = f": did you mean {near}?" if near else f": use {', '.join(sorted(known))}"
            raise TypeError(f"Unknown option {name} for {getattr(function, '__name__', function)}{hint}")


def _with_selection(operation: Operation, text: str) -> Operation:
    """The operation, if what is to be selected from its results is there."""
    from enfold.selection.selecting import selection_of  # which few operations need

    try:
        selection_of(operation.spec, text)
    except CallError as error:
        raise ValueError(f"{operation.spec.id}: {error.message}") from None
    return operation


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


def not_found(operation_id: str, hint: str = "") -> CallError:
    return CallError("OPERATION_NOT_FOUND", f"Operation not found: {operation_id}{hint}")


def _no_handler(operation_id: str) -> CallError:
    return CallError("OPERATION_NOT_FOUND", f"No handler registered for operation: {operation_id}")
