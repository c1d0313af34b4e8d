"""`OperationRegistry` and its live views: register, look up and run operations. Independent of sources and surfaces."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from collections.abc import (
    Set as AbstractSet,
)
from functools import cached_property, wraps
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

from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError
from enfold.operations import (
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
from enfold.operations.access import EVERYTHING, is_hidden, may_list
from enfold.operations.operation import check_middleware
from enfold.operations.outcomes import envelope_of
from enfold.runtime.application import DEFAULT_NAME, NO_VERSION, Application, Services, module_name, module_version
from enfold.runtime.reserved import Reserved, check_namespace, is_reserved

if TYPE_CHECKING:
    from enfold.observability.observers import Observer
    from enfold.operations.call import Middleware
    from enfold.operations.http_route import HTTPRoute
    from enfold.operations.spec import OperationOptions
    from enfold.runtime.env import Env
    from enfold.runtime.prepared import PreparedOperation

F = TypeVar("F", bound=Callable[..., Any])
H = TypeVar("H", bound=Callable[[], Any])
Icons: TypeAlias = list[dict[str, Any]]
M = TypeVar("M", bound="Middleware")
Specs: TypeAlias = list[OperationSpec]

_NOTHING: Final[Mapping[str, Any]] = {}
_HTTP_DECORATORS: Final = ("post", "put", "patch", "delete", "route", "api_route")  # of web frameworks
_SEES_ALL: Final = Identity("", frozenset({EVERYTHING}))


class Registry(ABC):
    """The interface that a registry and its views share: find operations and run them."""

    services: Services  # what calls and surfaces share; an `App` fills them in
    title = ""  # that the application was given; `application` has a name in any case
    app_version = ""
    reserved: Reserved
    _may_suggest_any = True  # False for callers from outside: an error must not suggest a name they may not see

    @abstractmethod
    def _operations(self) -> Mapping[str, PreparedOperation]:
        """Return the users' operations by id."""

    @abstractmethod
    def _reserved(self) -> Mapping[str, PreparedOperation]:
        """Return the operations of the namespace `enfold` by id; `list` shows them only for that namespace."""

    @abstractmethod
    def application(self, title: str | None = None, version: str | None = None) -> Application:
        """Return the name and version that clients see; a `title` or `version` of a surface takes precedence."""

    @property
    @abstractmethod
    def policy(self) -> Policy:
        """The policy of operations that set none of their own."""

    @property
    @abstractmethod
    def version(self) -> int:
        """A number that increases with every change."""

    @abstractmethod
    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call a function after every change. Returns a function that stops this."""

    # finding

    def get(self, operation_id: str) -> Operation:
        """Return the operation with this id; raise OPERATION_NOT_FOUND if there is none."""
        if operation_id.startswith("/"):
            raise TypeError(f'get() looks up an operation by its id: write @ops.query(http="GET {operation_id}")')
        return self._find(operation_id).operation

    def get_spec(self, operation_id: str) -> OperationSpec:
        """Return the spec of the operation with this id."""
        return self._find(operation_id).spec

    def get_handler(self, operation_id: str) -> Callable[..., Any]:
        """Return the handler of the operation with this id; raise OPERATION_NOT_FOUND if it has none."""
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
        """List specs in order of registration.

        Args:
            namespace: Only operations in this namespace and below it. `enfold` is listed only if you name it.
            tag: Only operations with this tag.
            type: Only queries, mutations or subscriptions.
        """
        wants_reserved = namespace is not None and is_reserved(namespace)
        operations = self._reserved() if wants_reserved else self._operations()
        return [
            spec
            for spec in (prepared.spec for prepared in operations.values())
            if (namespace is None or spec.lies_in(namespace))
            and (tag is None or tag in spec.tags)
            and (type is None or spec.type == type)
        ]

    def visible(self, identity: Identity | None, *, namespace: str | None = None) -> Specs:
        """List the specs that this caller may see: those they may call with at least some inputs."""
        return [spec for spec in self.list(namespace=namespace) if may_list(spec.access_control, identity)]

    def find(self, name: str, identity: Identity | None = None) -> OperationSpec:
        """Find a spec by its id, or by a short name that is unique among the operations the caller may see.

        A caller without an identity finds guarded operations too: the call then says that a token is needed. If nothing is
        found, the error suggests the nearest name that the caller may see. Operations of `enfold` have no short names.
        """
        prepared = self._look_up(name)
        if prepared is not None and not is_hidden(prepared.spec.access_control, identity):
            return prepared.spec
        if "." not in name and self.services.sources.unread:
            raise CallError(
                "UNAVAILABLE",
                f"Some sources have not been read yet, and {name:.100} may be ambiguous: use the full id",
                {"reason": "sources"},
                retryable=True,
            )
        named = [spec for spec in self.list() if spec.name == name]
        seen = [spec for spec in named if may_list(spec.access_control, identity)]
        found = seen or (named if identity is None else [])
        if len(found) == 1 and not self._is_name_of_lost_source(name):
            return found[0]
        if found:
            raise CallError(
                "OPERATION_NOT_FOUND",
                f"Operation not found: {name} (several operations have this name: use the full id)",
            )
        raise self.unknown(name, identity)

    def _is_name_of_lost_source(self, name: str) -> bool:
        """Whether a source that is down has an operation of this short name: it must not run another one meanwhile."""
        away = self.services.sources.away
        return bool(away) and any(name in names for names in away.values())

    def unknown(self, name: str, identity: Identity | None) -> CallError:
        """Return the error for an unknown name. A name that is hidden from the caller gets the same error."""
        if is_reserved(name):
            ids = {spec.id: spec.id for spec in self.visible(identity, namespace=name.partition(".")[0])}
        else:
            ids = {key: spec.id for spec in self.visible(identity) for key in (spec.name, spec.id)}
        from enfold.errors import nearest_id  # which starting a program does not need

        near = nearest_id(name, ids)
        return not_found(name, "" if near is None else f". Did you mean {ids[near]}?")

    def __iter__(self) -> Iterator[Operation]:
        return iter([prepared.whole for prepared in self._operations().values()])

    def __len__(self) -> int:
        return len(self._operations())

    def __contains__(self, operation_id: object) -> bool:
        return isinstance(operation_id, str) and self._look_up(operation_id) is not None

    def needs_loop(self, operation_id: str) -> bool:
        """Whether running the operation needs an event loop, even if a `def` runs inline."""
        return self._find(operation_id).needs_loop or self.services.lifetime.needs_loop

    def _look_up(self, operation_id: str) -> PreparedOperation | None:
        found = self._operations().get(operation_id)
        return self._reserved().get(operation_id) if found is None and is_reserved(operation_id) else found

    def _find(self, operation_id: str) -> PreparedOperation:
        prepared = self._look_up(operation_id)
        if prepared is None:
            raise self.unknown(operation_id, _SEES_ALL) if self._may_suggest_any else not_found(operation_id)
        return prepared

    def error_for_caller(self, operation_id: str, error: CallError) -> CallError:
        """Return the error as its caller may see it; if the operation is gone, the registry's policy decides."""
        prepared = self._look_up(operation_id)
        if prepared is not None:
            return prepared.error_for_caller(error)
        if not self.policy.expose_errors:
            error.redact()
        return error

    # running

    def prepared(self, operation_id: str, *, for_writing: bool = False) -> PreparedOperation:
        """Return an operation ready to run, for a surface that keeps it until the registry changes.

        With `for_writing`, for a caller who only writes results, `data` may be JSON text (`msgspec.Raw`) instead of a value.
        """
        prepared = self._find(operation_id)
        if prepared.operation.handler is None:
            raise _no_handler(operation_id)
        return prepared.variant(for_writing=True) if for_writing else prepared

    async def execute(
        self, operation_id: str, input: Mapping[str, Any] = _NOTHING, context: Context | None = None
    ) -> ResponseEnvelope[Any]:
        """Run a query or mutation and return its envelope; raise CallError if it fails.

        Access is not checked: code in this process may call everything. Use `guarded()` for callers from outside.

        Args:
            operation_id: The full id, such as `shop.add`.
            input: The arguments by name.
            context: The caller's identity, deadline and idempotency key; a new one by default.
        """
        prepared = self._operations().get(operation_id)
        if prepared is None or prepared.operation.handler is None:
            prepared = self.prepared(operation_id)  # which raises the right error
        is_nested = context is not None and context.has_begun
        outcome = await prepared.execute(input, context)
        return outcome if isinstance(outcome, ResponseEnvelope) else envelope_of(outcome, is_nested=is_nested)

    def execute_now(
        self, operation_id: str, input: Mapping[str, Any] = _NOTHING, context: Context | None = None
    ) -> ResponseEnvelope[Any]:
        """Run `execute` in a program without an event loop: a `def` runs inline, an `async def` in a new loop."""
        from enfold.runtime.handlers import drive  # loaded with the first operation

        context = context or Context()
        context.inline = True
        # The stores of idempotency keys wait, whatever the handler does.
        needs_loop = context.unused_key is not None or (operation_id in self and self.needs_loop(operation_id))
        advice = "execute_now() cannot wait while an event loop runs: write await registry.execute(...)"
        result: ResponseEnvelope[Any] = drive(self.execute(operation_id, input, context), needs_loop, advice)
        return result

    def subscribe(
        self, operation_id: str, input: Mapping[str, Any] = _NOTHING, context: Context | None = None
    ) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """Run a subscription. Yields an envelope with its own timestamp for each item."""
        return self.prepared(operation_id).subscribe(input, context)

    def require_authentication(self, *, allow_anonymous: bool = False) -> None:
        """Record that a surface authenticates its callers, so that one mounted below it is not open to everyone.

        With `allow_anonymous`, it also serves operations without access rules to callers without a token.
        """
        services = self.services
        services.admits_anonymous = allow_anonymous or (services.has_identities and services.admits_anonymous)
        services.has_identities = True
        self.reserved.refresh()

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Call an observer with a `CallRecord` after every call, on any surface. Returns a function that stops this."""
        return self.services.observers.observe(observer)

    # serving

    async def __call__(
        self, scope: MutableMapping[str, Any], receive: Callable[..., Any], send: Callable[..., Any]
    ) -> None:
        """Serve as an ASGI app, that of `App(registry).http()`: `uvicorn module:ops`."""
        await self._asgi_app(scope, receive, send)

    @cached_property
    def _asgi_app(self) -> Callable[..., Awaitable[None]]:
        from enfold.app.app import App  # upwards, like `run`: only a server needs the surfaces

        return App(self).http()

    # live views

    def guarded(
        self, *, has_identities: bool = True, may_be_mounted: bool = False, surface: str | None = None
    ) -> Registry:
        """Return a view for callers from outside: `execute` and `subscribe` check access first.

        Without `has_identities` no caller has an identity: then the operations of `enfold` are open to all, unless the
        surface `may_be_mounted` below one whose callers have them. A `surface` that gives its name reports its calls to the
        observers itself, also those that it refuses.
        """
        return View(self, lambda spec: spec, guard=Guard(has_identities, may_be_mounted, surface))

    def mount(self, prefix: str) -> View:
        """Return a view in which every id, and every REST path, starts with a prefix."""
        operation_id(prefix, "x")  # raises if the prefix is not legal
        check_namespace(prefix)
        return View(self, lambda spec: _mounted(spec, prefix))

    def public(self) -> View:
        """Return a view with the operations declared `public`, which need no token even where all others do."""
        return View(self, lambda spec: spec if spec.access_control.public else None, has_reserved=False)

    def only(self, predicate: Callable[[OperationSpec], bool]) -> View:
        """Return a view with the operations for which the predicate is true."""
        return View(self, lambda spec: spec if predicate(spec) else None)

    def rename(self, mapping: Mapping[str, str]) -> View:
        """Return a view in which some operations have another id."""
        for new in mapping.values():
            operation_id(*_split(new))
            check_namespace(_split(new)[0])
        return View(self, lambda spec: _renamed(spec, mapping))

    def with_policy(self, policy: Policy) -> View:
        """Return a view with another policy, which overrides those of the operations."""
        return View(self, lambda spec: spec, policy)


def _on_registry(method: F) -> F:
    """Make a method fail with advice when it is called on the class: `@OperationRegistry.query`."""

    @wraps(method)
    def checked(*given: Any, **options: Any) -> Any:
        if not given or not isinstance(given[0], OperationRegistry):
            name = method.__name__
            raise TypeError(
                f"OperationRegistry.{name} needs a registry: write ops = OperationRegistry(), then @ops.{name}"
            )
        return method(*given, **options)

    return checked  # type: ignore[return-value]


class OperationRegistry(Registry):
    """Holds operations by id, and runs them.

    Register functions with the decorators `query`, `mutation` and `subscription`, or import operations from a source with
    `register_all`. Surfaces such as `to_http` and `to_mcp` serve a registry.
    """

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
        """Create an empty registry. Everything but the names and `threads` is a policy, which operations may override.

        Args:
            namespace: The namespace of the functions that you register here.
            normalize: What to do with a result that does not match its schema: `"repair"`, `"typebox"` or `"off"`.
            strict_output: Treat a result that does not match its schema as a failure.
            coerce: Convert text arguments to the declared type where nothing is lost (`"10"` to 10).
            extras: Keep or strip properties of results that the schema does not know.
            expose_errors: Show callers the text of unexpected exceptions.
            detect: `"instances"` trusts only `ResponseEnvelope` objects, not mappings that look like one.
            threads: The maximum number of worker threads for `def` handlers.
            title: The application's name for clients; by default the namespace, else the name of the calling file.
            version: The application's version for clients; by default that of the distribution of the calling file.
        """
        if namespace:
            operation_id(namespace, "x")
            check_namespace(namespace)
        self.namespace = namespace
        self.title = title
        self.app_version = version
        self.module = sys._getframe(1).f_globals  # whose file and distribution name the application
        self.reserved = Reserved(self._prepare_reserved, self._changed)
        self.services = Services(self._env, threads)
        chosen = Policy(normalize, strict_output, coerce, extras, expose_errors, detect=detect)
        self._policy = chosen.over(DEFAULT_POLICY)
        self._middleware: tuple[Middleware, ...] = ()
        self._entries: dict[str, PreparedOperation] = {}
        self._routes: dict[tuple[str, ...], str] = {}  # the ids of operations with REST routes, by what requests match
        self._version = 0
        self._watchers: dict[int, Callable[[], None]] = {}

    @property
    def policy(self) -> Policy:
        return self._policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        self._policy = policy

    @property
    def version(self) -> int:
        return self._version

    def application(self, title: str | None = None, version: str | None = None) -> Application:
        return Application(
            title or self.title or self.namespace or module_name(self.module) or DEFAULT_NAME,
            version or self.app_version or self._module_version,
        )

    @cached_property
    def _module_version(self) -> str:
        return module_version(self.module) or NO_VERSION

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        key = id(callback)
        self._watchers[key] = callback
        return lambda: self._watchers.pop(key, None) and None

    def _operations(self) -> Mapping[str, PreparedOperation]:
        return self._entries

    def _reserved(self) -> Mapping[str, PreparedOperation]:
        return self.reserved.operations()

    def run(self, arguments: Sequence[str] | None = None, **options: Any) -> NoReturn:
        """Run the `enfold` command for this registry: `python shop.py serve`, `python shop.py call …`.

        `arguments` are those of the command; by default, those of the script.
        """
        if options or isinstance(arguments, str):
            raise TypeError(
                "run() takes a list of command-line arguments, such as run(['serve', '--port', '8000']) or run(['mcp'])"
            )
        # The one import upwards: commands know every surface, and a registry must not.
        from enfold.commands.main import run

        run(self, arguments)

    if not TYPE_CHECKING:  # a type checker finds them by itself

        def __getattr__(self, name: str) -> NoReturn:
            advice = ': write @ops.mutation(http="POST /path")' if name in _HTTP_DECORATORS else ""
            raise AttributeError(f"OperationRegistry has no attribute {name!r}{advice}", name=name, obj=self)

    # registering

    @_on_registry
    def register(self, operation: Operation | Callable[..., Any], **options: Unpack[OperationOptions]) -> Operation:
        """Register an operation, or a function with the options of a decorator."""
        if isinstance(operation, Registry):
            raise TypeError(
                "A registry is not an operation: register all of its operations with register_all(registry)"
            )
        if isinstance(operation, Operation) and options:
            raise TypeError(
                f"{operation.spec.id} is an operation: options such as {next(iter(options))} are for functions. "
                "Change a copy, as in operation.replace(spec=operation.spec.replace(timeout=5))"
            )
        made = operation if isinstance(operation, Operation) else self._from_function(operation, options)
        check_namespace(made.spec.namespace)
        if made.spec.id in self._entries:
            raise ValueError(f"{made.spec.id} is already registered: unregister it first, or choose another name")
        self._put(made)
        return made

    def register_spec(self, spec: OperationSpec) -> None:
        """Register a spec without a handler; until it has one, a call raises OPERATION_NOT_FOUND."""
        self.register(Operation(spec, None))

    def register_handler(self, operation_id: str, handler: Callable[..., Any]) -> None:
        """Register the handler of a spec; it is called as `handler(input, context)`."""
        prepared = self._entries.get(operation_id)
        if prepared is None:
            raise LookupError(f"There is no spec {operation_id}: register it before its handler")
        if prepared.operation.handler is not None:
            raise ValueError(f"{operation_id} already has a handler")
        self._put(prepared.operation.replace(handler=handler))

    def register_all(self, operations: Iterable[Operation], *, instead_of: Iterable[Operation] = ()) -> None:
        """Register all operations, or none if an id is taken; a source that changes keeps its operations current.

        The operations in `instead_of` are removed in the same step. Another registry starts and stops with this one.
        """
        batch = list(operations)
        gone = self._own_ids(instead_of)
        taken = self._entries.keys() - gone
        for operation in batch:
            check_namespace(operation.spec.namespace)
            if operation.spec.id in taken:
                raise ValueError(f"{operation.spec.id} is already registered: give the source another namespace")
            taken.add(operation.spec.id)
        self._claim_routes(batch, gone)
        for own_id in gone:
            del self._entries[own_id]
        for operation in batch:
            self._entries[operation.spec.id] = self._prepare(operation)
        self._changed()
        taken_from = [operations] if isinstance(operations, Registry) else getattr(operations, "registries", ())
        for registry in taken_from:
            self.services.lifetime.include(registry.services.lifetime)
        keep_current = getattr(operations, "keep_current", None)  # of a source whose operations come and go
        if keep_current is not None:
            keep_current(self)

    def replace(self, operation: Operation) -> None:
        """Replace the operation with the same id."""
        if operation.spec.id not in self._entries:
            raise LookupError(f"There is no operation {operation.spec.id} to replace")
        self._put(operation)

    def unregister_all(self, operations: Iterable[Operation]) -> None:
        """Remove operations in one step; one that has been replaced stays."""
        gone = self._own_ids(operations)
        for own_id in gone:
            del self._entries[own_id]
        if gone:
            self._changed()

    def _claim_routes(self, operations: Sequence[Operation], gone: AbstractSet[str] = frozenset()) -> None:
        """Note the REST routes of functions; raise ValueError if another one has one of them.

        Those of other processes are not noted: where they clash, the first one has the route, and functions come before all.
        """
        claimed: dict[tuple[str, ...], OperationSpec] = {}
        for spec in (each.spec for each in operations if each.origin.kind == "functions"):
            if spec.http is None:
                continue
            shape = _route(spec.http).shape
            other = claimed.setdefault(shape, spec)
            if other is spec and (own_id := self._routes.get(shape)) is not None and own_id not in gone:
                # What was unregistered or replaced meanwhile has no claim any more.
                prepared = self._entries.get(own_id)
                is_held = prepared is not None and prepared.spec.http and _route(prepared.spec.http).shape == shape
                other = prepared.spec if prepared is not None and is_held else spec
            if other.id != spec.id:
                raise ValueError(f"{spec.id}: {spec.http} matches the same requests as {other.http} of {other.id}")
        self._routes.update({shape: spec.id for shape, spec in claimed.items()})

    def _own_ids(self, operations: Iterable[Operation]) -> set[str]:
        entries = self._entries
        return {
            each.spec.id for each in operations if each.spec.id in entries and entries[each.spec.id].operation is each
        }

    def unregister(self, operation_id: str) -> Operation:
        """Remove an operation and return it."""
        prepared = self._entries.pop(operation_id, None)
        if prepared is None:
            raise LookupError(f"There is no operation {operation_id} to unregister")
        self._changed()
        return prepared.operation

    def _put(self, operation: Operation) -> None:
        self._claim_routes([operation])
        self._entries[operation.spec.id] = self._prepare(operation)
        self._changed()

    def _prepare(self, operation: Operation) -> PreparedOperation:
        """Prepare a user's operation, with the middleware of the registry around its own."""
        return self._with_middleware(operation, (*self._middleware, *operation.middleware))

    def _prepare_reserved(self, operation: Operation) -> PreparedOperation:
        return self._with_middleware(operation, ())

    def _with_middleware(self, operation: Operation, middleware: tuple[Middleware, ...]) -> PreparedOperation:
        from enfold.runtime.prepared import PreparedOperation  # with the first operation: many only import us

        policy = operation.policy.over(self._policy)
        return PreparedOperation(operation, policy, self.services, middleware)

    def _env(self, context: Context, policy: Policy) -> Env:
        from enfold.runtime.env import build_env  # most programs start without

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

    def middleware(self, middleware: M) -> M:
        """Wrap every call of this registry's operations: `@ops.middleware` above an `async def wrap(call, next)`.

        The first one is the outermost; middleware of an operation is inside all of them. Operations registered before
        are wrapped, too.
        """
        check_middleware(middleware)
        self._middleware = (*self._middleware, middleware)
        self._entries = {own_id: self._prepare(each.operation) for own_id, each in self._entries.items()}
        self._changed()
        return middleware

    def on_start(self, hook: H) -> H:
        """Run a function before the first call, on every surface, to open resources such as connection pools."""
        self.services.lifetime.add(start=hook)
        return hook

    def on_stop(self, hook: H) -> H:
        """Run a function after the last call, to close what `on_start` opened."""
        self.services.lifetime.add(stop=hook)
        return hook

    # decorators

    @overload
    def query(self, function: F, /) -> F: ...
    @overload
    def query(self, /, **options: Unpack[OperationOptions]) -> Callable[[F], F]: ...
    @_on_registry
    def query(self, function: F | None = None, /, **options: Unpack[OperationOptions]) -> F | Callable[[F], F]:
        """Register a function that only reads."""
        return self._decorate(OperationType.QUERY, function, options)

    @overload
    def mutation(self, function: F, /) -> F: ...
    @overload
    def mutation(self, /, **options: Unpack[OperationOptions]) -> Callable[[F], F]: ...
    @_on_registry
    def mutation(self, function: F | None = None, /, **options: Unpack[OperationOptions]) -> F | Callable[[F], F]:
        """Register a function that changes something."""
        return self._decorate(OperationType.MUTATION, function, options)

    tool = mutation
    """`mutation` under the name that MCP frameworks give it."""

    @_on_registry
    def resource(
        self,
        uri: str,
        *,
        mime_type: str | None = None,
        size: int | None = None,
        annotations: dict[str, Any] | None = None,
        icons: Icons | None = None,
        **options: Unpack[OperationOptions],
    ) -> Callable[[F], F]:
        """Register what a function returns as the MCP resource at a URI; names in braces are its arguments.

        Text and JSON go out as text, `bytes` as a blob; `options` are those of `query`.
        """
        from enfold.operations.mcp_kind import check_template, with_facts  # which few programs need

        if not isinstance(uri, str):
            raise TypeError('A resource needs a URI, as in @ops.resource("shop://fruit")')
        facts = {"uri": uri, "mimeType": mime_type, "size": size, "annotations": annotations, "icons": icons}

        def decorate(function: F) -> F:
            made = self.register(function, **with_facts("resource", facts, {**options, "type": OperationType.QUERY}))
            try:
                check_template(uri, made.spec)
            except ValueError:
                self.unregister(made.spec.id)
                raise
            return function

        return decorate

    @overload
    def prompt(self, function: F, /) -> F: ...
    @overload
    def prompt(self, /, *, icons: Icons | None = None, **options: Unpack[OperationOptions]) -> Callable[[F], F]: ...
    @_on_registry
    def prompt(
        self, function: F | None = None, /, *, icons: Icons | None = None, **options: Unpack[OperationOptions]
    ) -> F | Callable[[F], F]:
        """Register a function as an MCP prompt: a text, one content block or message, or a list of these."""
        from enfold.operations.mcp_kind import with_facts  # as above

        decorate: Callable[[F], F] = self.query(**with_facts("prompt", {"icons": icons}, options))
        return decorate if function is None else decorate(function)

    @overload
    def subscription(self, function: F, /) -> F: ...
    @overload
    def subscription(self, /, **options: Unpack[OperationOptions]) -> Callable[[F], F]: ...
    @_on_registry
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
    """Makes a view check access, and says whether its callers have identities."""

    has_identities: bool
    may_be_mounted: bool = False  # below a surface whose callers have identities
    surface: str | None = None  # the name of the surface that serves the view

    def ingress(self) -> dict[str, Any]:
        """Return how calls of the view come in: fields of `enfold.runtime.Ingress`."""
        named = {} if self.surface is None else {"surface": self.surface, "is_observed": False}
        return {"is_guarded": True, **named}


class View(Registry):
    """A live view: always what the registry has now, under other names, in part, guarded, or with another policy."""

    def __init__(
        self,
        base: Registry,
        map_spec: Callable[[OperationSpec], OperationSpec | None],
        policy: Policy = INHERIT,
        *,
        guard: Guard | None = None,
        has_reserved: bool = True,
    ) -> None:
        """`map_spec` returns the spec of an operation in this view, or None to leave it out."""
        self._base = base
        self.services = base.services
        self.title = base.title
        self.app_version = base.app_version
        self.reserved = base.reserved
        self._map_spec = map_spec
        self._policy = policy
        self._guard = guard
        self._has_reserved = has_reserved
        # Those of the base, and what this view made of them.
        self._reserved_cache: tuple[Mapping[str, PreparedOperation], dict[str, PreparedOperation]] | None = None
        self._may_suggest_any = base._may_suggest_any and guard is None
        self._base_version = base.version
        self._entries = self._derive(_raise)

    def application(self, title: str | None = None, version: str | None = None) -> Application:
        return self._base.application(title, version)

    @property
    def policy(self) -> Policy:
        return self._policy.over(self._base.policy)

    @property
    def version(self) -> int:
        return self._base.version

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self._base.watch(callback)

    def _operations(self) -> Mapping[str, PreparedOperation]:
        if self._base_version != self._base.version:
            self._base_version = self._base.version
            self._entries = self._derive(_log_omission)
        return self._entries

    def _reserved(self) -> Mapping[str, PreparedOperation]:
        base = self._base._reserved()
        if self._reserved_cache is None or self._reserved_cache[0] is not base:
            included = base if self._has_reserved else {}
            self._reserved_cache = base, {key: self._reserved_variant(each) for key, each in included.items()}
        return self._reserved_cache[1]

    def _reserved_variant(self, prepared: PreparedOperation) -> PreparedOperation:
        """Return a reserved operation for this view: a guard may change who may call it, nothing else changes."""
        spec, access = prepared.spec, prepared.spec.access_control
        if self._guard is not None and isinstance(access, ReservedAccess):
            guarded = self._guard.has_identities or (self._guard.may_be_mounted and self.services.has_identities)
            spec = spec.replace(access_control=replace(access, has_identities=guarded))
        return self._variant(prepared, spec)

    def _variant(self, prepared: PreparedOperation, spec: OperationSpec) -> PreparedOperation:
        return prepared.variant(spec, self._policy, **({} if self._guard is None else self._guard.ingress()))

    def _derive(self, report: Callable[[str], None]) -> dict[str, PreparedOperation]:
        entries: dict[str, PreparedOperation] = {}
        for prepared in self._base._operations().values():
            try:
                spec = self._map_spec(prepared.spec)
            except ValueError as error:  # an id too long under a prefix
                report(str(error))
                continue
            if spec is None:
                continue
            if spec.id in entries:
                report(f"Two operations would be called {spec.id} in this view: rename one of them")
                continue
            same = spec is prepared.spec and self._policy is INHERIT and self._guard is None
            entries[spec.id] = prepared if same else self._variant(prepared, spec)
        return entries


def _raise(problem: str) -> None:
    """Refuse an operation that a new view cannot contain."""
    raise ValueError(problem)


def _log_omission(problem: str) -> None:
    """Log that a view leaves out an operation that was registered later; the others stay."""
    from enfold.observability.log import Log  # most views leave nothing out

    Log("enfold.runtime.registry").warning("%s: left out", problem)


def _refuse_unknown(options: Mapping[str, Any], function: Callable[..., Any]) -> None:
    """Raise if there is an unknown option, and suggest the nearest known one."""
    from enfold.errors import nearest  # this and the next: not needed to start a program
    from enfold.operations.spec import OperationOptions

    known = OperationOptions.__optional_keys__
    for name in options:
        if name not in known:
            near = nearest(name, known)
            hint = f": did you mean {near}?" if near else f": use {', '.join(sorted(known))}"
            raise TypeError(f"Unknown option {name} for {getattr(function, '__name__', function)}{hint}")


def _with_selection(operation: Operation, text: str) -> Operation:
    """Return the operation after checking its default selection against its output schema."""
    from enfold.search.selection import selection_of  # which few operations need

    try:
        selection_of(operation.spec, text)
    except CallError as error:
        raise ValueError(f"{operation.spec.id}: {error.message}") from None
    return operation


def _join(prefix: str, namespace: str) -> str:
    return f"{prefix}.{namespace}" if namespace else prefix


def _mounted(spec: OperationSpec, prefix: str) -> OperationSpec:
    http = None if spec.http is None else str(_route(spec.http).below(prefix))
    return spec.replace(namespace=_join(prefix, spec.namespace), http=http)


def _route(http: str) -> HTTPRoute:
    from enfold.operations.http_route import read_route  # which few programs need

    return read_route(http)


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
