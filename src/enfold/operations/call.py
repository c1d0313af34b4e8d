"""One call on its way to the handler, and the middleware that wraps it: `Call`, `Middleware` and `Next`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import msgspec

if TYPE_CHECKING:
    from enfold.envelope import ResponseEnvelope
    from enfold.operations.access import Identity
    from enfold.operations.context import Context
    from enfold.operations.operation import Operation, RecordedRun, RunningTask
    from enfold.operations.outcomes import Outcome
    from enfold.operations.questions import Peer


class Call(msgspec.Struct, frozen=True, eq=False):
    """One call: its operation, input and context, and the surface that received it."""

    operation: Operation
    input: Any  # a mapping of arguments, not validated yet
    context: Context
    surface: str = "process"  # http, mcp, cgi, shell or calls; process for code of this process, tasks included
    idempotency_key: str | None = None  # as the caller gave it, until the call runs under it
    select: str | None = None  # the fields of the result that the caller asks for
    record: RecordedRun | None = None  # the provenance record that the caller or the operator asks for

    @property
    def identity(self) -> Identity | None:
        return self.context.identity

    @property
    def client(self) -> Peer | None:
        """The client to which questions can be sent; None if the caller cannot be asked."""
        return self.context.invocation.client

    @property
    def task(self) -> RunningTask | None:
        """The task that this call runs for; None if the call is not a task."""
        return self.context.task

    @property
    def deadline(self) -> float | None:
        """The deadline of the caller, by `time.monotonic()`; None if there is none."""
        return self.context.deadline

    def replace(self, **changes: Any) -> Call:
        """Return a copy with another `input` or `context`; the other fields cannot be replaced."""
        if changes.keys() - {"input", "context"}:
            raise TypeError(f"A middleware can replace the input and the context of a call, not {', '.join(changes)}")
        return msgspec.structs.replace(self, **changes)


Next: TypeAlias = "Callable[[Call], Coroutine[Any, Any, Outcome]]"
NextStream: TypeAlias = "Callable[[Call], AsyncGenerator[ResponseEnvelope[Any]]]"


class Middleware(Protocol):
    """Wraps calls: `async def middleware(call, next)`. One that also has `stream(call, next)` wraps subscriptions."""

    def __call__(self, call: Call, next: Next, /) -> Coroutine[Any, Any, Outcome]:
        """Run the call. Returns its outcome, usually that of `next(call)`, or raises CallError."""


@runtime_checkable
class StreamMiddleware(Protocol):
    """The part of a middleware that wraps subscriptions."""

    def stream(self, call: Call, next: NextStream, /) -> AsyncIterator[ResponseEnvelope[Any]]:
        """Run the subscription. Yields its items, usually those of `next(call)`."""


def compose(middleware: list[Middleware], innermost: Next) -> Next:
    """Combine middleware into one function; the first is the outermost."""
    for each in reversed(middleware):
        innermost = _wrap(each, innermost)
    return innermost


def compose_stream(middleware: list[Middleware], innermost: NextStream) -> NextStream:
    """Combine middleware for subscriptions; those without `stream` are skipped."""
    for each in reversed(middleware):
        if isinstance(each, StreamMiddleware):
            innermost = _wrap(each.stream, innermost)
    return innermost


def _wrap(step: Callable[[Call, Any], Any], next: Callable[[Call], Any]) -> Callable[[Call], Any]:
    return lambda call: step(call, next)
