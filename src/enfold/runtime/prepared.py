"""A prepared operation: its funnel, the stack around it, and what surfaces need before a call."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine
from typing import TYPE_CHECKING, Any

import msgspec

from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError
from enfold.middleware.observe import Observe
from enfold.middleware.selection import Select
from enfold.operations import INHERIT, Context, Identity, Operation, OperationSpec, Policy
from enfold.operations.access import check_access
from enfold.operations.call import Call, Middleware
from enfold.runtime.funnel import Funnel
from enfold.runtime.services import Services
from enfold.runtime.stack import Stack, build_stack

if TYPE_CHECKING:
    from enfold.observability.observers import Observers
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
        "whole",
    )

    def __init__(
        self,
        operation: Operation,
        policy: Policy,
        services: Services,
        observers: Observers,
        user: tuple[Middleware, ...] = (),
        ingress: Ingress = Ingress(),  # noqa: B008  # frozen
    ) -> None:
        """`user` is the middleware around its calls, outermost first."""
        self.operation = operation
        # The same with all of its middleware, for another registry that takes it.
        self.whole = operation if user == operation.middleware else operation.replace(middleware=user)
        self.spec = operation.spec
        self.id = operation.spec.id
        self._policy = policy
        self._services = services
        self._observers = observers
        self._user = user
        self._ingress = ingress
        self._funnel = funnel = Funnel(operation, policy, services, for_writing=ingress.for_writing)
        self._stack: Stack | None = None  # composed with the first call: most operations of a large import have none
        self.is_open = operation.spec.access_control.is_open and policy.limits is None
        self.is_stream = funnel.is_stream
        self.is_wrapped = bool(user)
        # A caller from outside who does not know tasks still gets the result: the call waits for its task.
        is_task = ingress.is_guarded and operation.spec.durable == "required"
        self.needs_loop = funnel.needs_loop or funnel.is_stream or is_task or bool(user)
        self.needs_context = funnel.takes_context or policy.payloads is not None or is_task or bool(user)

    def variant(self, spec: OperationSpec | None = None, policy: Policy = INHERIT, **ingress: Any) -> PreparedOperation:
        """Return the same operation with another spec, policy, or way in (fields of `Ingress`)."""
        return PreparedOperation(
            self.operation if spec is None else self.operation.replace(spec=spec),
            policy.over(self._policy),
            self._services,
            self._observers,
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
        if not is_asked:
            return Call(self.operation, input, context, self._ingress.surface)
        asked = context.unused_key, context.select, context.recording
        return Call(self.operation, input, context, self._ingress.surface, *asked)

    def _compose(self) -> Stack:
        is_guarded = self._ingress.is_guarded
        self._stack = build_stack(self._funnel, self._policy, self._services, self._user, is_guarded=is_guarded)
        return self._stack

    def error_for_caller(self, error: CallError) -> CallError:
        """Return the error as callers may see it: with its declared properties, and redacted if errors are hidden."""
        return self._funnel.failures.for_caller(error)
