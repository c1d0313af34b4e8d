"""A prepared operation: its funnel, the stack of middleware around it, and what surfaces need before a call."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError
from enfold.middleware.access import CheckAccess
from enfold.middleware.idempotency import Idempotency
from enfold.middleware.limits import LimitCalls
from enfold.middleware.observe import Observe
from enfold.middleware.payload_log import LogPayloads
from enfold.middleware.recording import RecordRun
from enfold.middleware.selection import Select
from enfold.middleware.tasks import RunAsTask
from enfold.middleware.user import MiddlewareResults, UserMiddleware
from enfold.operations import INHERIT, Context, Identity, Operation, OperationSpec, OperationType, Policy
from enfold.operations.access import check_access
from enfold.operations.call import Call, Middleware, Next, NextStream, compose, compose_stream
from enfold.runtime.application import Services
from enfold.runtime.funnel import Funnel

if TYPE_CHECKING:
    from enfold.operations.outcomes import Outcome


class Ingress(msgspec.Struct, frozen=True):
    """How calls come in: by which surface, checked or trusted, and observed here or by the surface itself."""

    surface: str = "process"
    is_guarded: bool = False  # access is checked first, and calls are counted
    is_observed: bool = True  # False for a surface that reports its calls itself, also those that it refuses
    for_writing: bool = False  # results are only written: their `data` may be a struct or JSON text


class PreparedOperation:
    """One operation made ready to run: what is known before a call is worked out once, and kept by every surface.

    `is_open`: callers need no identity, and are not counted. `is_wrapped`: user middleware stands around it.
    `needs_context`: each call needs a `Context`. `needs_loop`: it needs an event loop, even where a `def` runs in place.
    """

    __slots__ = (
        "_funnel",
        "_ingress",
        "_observers",
        "_policy",
        "_services",
        "_stack",
        "_user",
        "id",
        "is_open",
        "is_stream",
        "is_wrapped",
        "needs_context",
        "needs_loop",
        "operation",
        "spec",
    )

    def __init__(
        self,
        operation: Operation,
        policy: Policy,
        services: Services,
        user: tuple[Middleware, ...] = (),
        ingress: Ingress = Ingress(),  # noqa: B008  # frozen
    ) -> None:
        """`user` is the middleware around its calls, outermost first."""
        self.operation = operation
        self.spec = operation.spec
        self.id = operation.spec.id
        self._policy = policy
        self._services = services
        self._observers = services.observers
        self._user = user
        self._ingress = ingress
        self._funnel = funnel = Funnel(operation, policy, services, for_writing=ingress.for_writing)
        self._stack: _Stack | None = None  # composed with the first call: most operations of a large import have none
        self.is_open = operation.spec.access_control.is_open and policy.limits is None
        self.is_stream = funnel.is_stream
        self.is_wrapped = bool(user)
        # A caller from outside who does not know tasks still gets the result: the call waits for its task.
        is_task = ingress.is_guarded and operation.spec.durable == "required"
        self.needs_loop = funnel.needs_loop or funnel.is_stream or is_task or bool(user)
        self.needs_context = funnel.takes_context or policy.payloads is not None or is_task or bool(user)

    @property
    def whole(self) -> Operation:
        """The operation with all of its middleware and policies, for another registry that takes it."""
        operation = self.operation
        policy = operation.policy.over(self._policy.chosen())
        is_whole = self._user == operation.middleware and policy == operation.policy
        return operation if is_whole else operation.replace(middleware=self._user, policy=policy)

    def variant(self, spec: OperationSpec | None = None, policy: Policy = INHERIT, **ingress: Any) -> PreparedOperation:
        """Return the same operation with another spec, policy, or way in (fields of `Ingress`)."""
        return PreparedOperation(
            self.operation if spec is None else self.operation.replace(spec=spec),
            policy.over(self._policy),
            self._services,
            self._user,
            msgspec.structs.replace(self._ingress, **ingress) if ingress else self._ingress,
        )

    def check(self, input: Any, identity: Identity | None, select: str | None = None) -> Any:
        """Raise what the call would raise before its handler runs: no access, too many calls, an input that does not fit.

        Returns the input as it is read: text such as "5" is converted where a number is wanted.
        """
        if self._ingress.is_guarded:
            check_access(self.spec, identity, input)
            if self._policy.limits is not None:
                self._policy.limits.release(self._policy.limits.acquire(identity))
        read, _ = self._funnel.arguments.read(input)
        if select is not None:
            Select(self.spec).compiled(select)
        return read

    def execute(self, input: Any, context: Context | None) -> Coroutine[Any, Any, Outcome]:
        """Run a query or mutation through its stack; where nothing stands around the funnel, that is all there is."""
        stack = self._stack or self._compose()
        is_observed = self._observers.is_on and self._ingress.is_observed
        is_asked = context is not None and context.asks_for_more
        if stack.run is None and not is_observed and not is_asked:
            return self._funnel.run(input, context)
        call = self._call(input, context or Context(), is_asked=is_asked)
        run = stack.run_asked if is_asked else stack.run or self._funnel
        return Observe(self._observers, self.operation)(call, run) if is_observed else run(call)

    def subscribe(self, input: Any, context: Context | None) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """Run a subscription through its stack, as in `execute`."""
        stack = self._stack or self._compose()
        is_asked = context is not None and context.asks_for_more
        call = self._call(input, context or Context(), is_asked=is_asked)
        follow = stack.follow_asked if is_asked else stack.follow
        if self._ingress.is_observed and self._observers.is_on:
            return Observe(self._observers, self.operation).stream(call, follow)
        return follow(call)

    def _call(self, input: Any, context: Context, *, is_asked: bool) -> Call:
        # A copy, because middleware may change it, and it may be the caller's own.
        given = input.copy() if self.is_wrapped and type(input) is dict else input
        if not is_asked:
            return Call(self.operation, given, context, self._ingress.surface)
        asked = context.unused_key, context.select, context.recording
        return Call(self.operation, given, context, self._ingress.surface, *asked)

    def _compose(self) -> _Stack:
        steps = _steps(
            self.operation, self._funnel, self._policy, self._services, self._user, is_guarded=self._ingress.is_guarded
        )
        self._stack = _build_stack(self._funnel, list(steps))
        return self._stack

    def error_for_caller(self, error: CallError) -> CallError:
        """Return the error as callers may see it: with its declared properties, and redacted if errors are hidden."""
        return self._funnel.failures.for_caller(error)


class _Step(NamedTuple):
    """One middleware, and whether every call passes it, or only one that asks for a key, a record or a selection."""

    middleware: Middleware
    is_for_all: bool


class _Stack(msgspec.Struct, frozen=True):
    """The composed middleware of one operation, for calls that ask for nothing and for those that do."""

    run: Next | None  # None where nothing stands around the funnel
    run_asked: Next
    follow: NextStream
    follow_asked: NextStream


def _build_stack(funnel: Funnel, steps: list[_Step]) -> _Stack:
    """Compose the middleware that an operation needs, once for all its calls."""
    whole = [step.middleware for step in steps]
    for_all = [step.middleware for step in steps if step.is_for_all]
    return _Stack(
        compose(for_all, funnel) if for_all else None,
        compose(whole, funnel),
        compose_stream(for_all, funnel.stream),
        compose_stream(whole, funnel.stream),
    )


def _steps(
    operation: Operation,
    funnel: Funnel,
    policy: Policy,
    services: Services,
    user: tuple[Middleware, ...],
    *,
    is_guarded: bool,
) -> Iterator[_Step]:
    """Return the middleware of one operation, outermost first: this is the order of every call."""
    spec, select = funnel.spec, Select(funnel.spec)
    if is_guarded and not spec.access_control.is_open:
        yield _Step(CheckAccess(), True)
    if is_guarded and policy.limits is not None:
        yield _Step(LimitCalls(policy.limits), True)
    if spec.durable != "never":
        is_required = is_guarded and spec.durable == "required"
        yield _Step(RunAsTask(services, funnel.failures, is_required=is_required), is_required)
    if spec.type is OperationType.MUTATION:
        yield _Step(Idempotency(services, funnel, select), False)
    results = MiddlewareResults(operation, policy, select)
    for index, middleware in enumerate(user):
        yield _Step(UserMiddleware(middleware, funnel, results, is_outermost=index == 0), True)
    yield _Step(RecordRun(), False)
    if policy.payloads is not None:
        yield _Step(LogPayloads(policy.payloads), True)
    yield _Step(select, select.has_default)
