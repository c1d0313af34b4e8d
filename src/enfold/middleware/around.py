"""A middleware that does the same for calls and subscriptions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, aclosing
from typing import TYPE_CHECKING, Any, TypeAlias

from enfold.envelope import ResponseEnvelope

if TYPE_CHECKING:
    from enfold.operations.call import Call, Next, NextStream
    from enfold.operations.outcomes import Outcome

Take: TypeAlias = "Callable[[ResponseEnvelope[Any]], object]"


class Around(ABC):
    """Enters a context manager around each call; what that gives is called with the result, or with each item."""

    @abstractmethod
    def around(self, call: Call) -> AbstractContextManager[Take]: ...

    async def __call__(self, call: Call, next: Next) -> Outcome:
        with self.around(call) as take:
            outcome = await next(call)
            if isinstance(outcome, ResponseEnvelope):
                take(outcome)
        return outcome

    async def stream(self, call: Call, next: NextStream) -> AsyncGenerator[ResponseEnvelope[Any]]:
        with self.around(call) as take:
            async with aclosing(next(call)) as items:
                async for envelope in items:
                    take(envelope)
                    yield envelope
