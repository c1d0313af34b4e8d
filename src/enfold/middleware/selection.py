"""Selection: only the fields of a result that the caller asked for, or the default selection of the operation."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from enfold.envelope import ResponseEnvelope

if TYPE_CHECKING:
    from enfold.operations import OperationSpec
    from enfold.operations.call import Call, Next, NextStream
    from enfold.operations.outcomes import Outcome
    from enfold.search.selection import Selection

MAX_SELECTIONS: Final = 64  # compiled selections that one operation caches


class Select:
    """Compiles the selection before the handler runs, so that a wrong one has no effect, and applies it to the result."""

    def __init__(self, spec: OperationSpec) -> None:
        self._spec = spec
        self._compiled: dict[str | None, Selection | None] = {}  # by the text that asked for them

    @property
    def has_default(self) -> bool:
        """Whether calls that select nothing get the default selection of the operation."""
        return "select" in self._spec.meta

    async def __call__(self, call: Call, next: Next) -> Outcome:
        selection = self.compiled(call.select)
        call.context.keeps_result = True  # fields are selected of plain data
        outcome = await next(call)
        if selection is None or not isinstance(outcome, ResponseEnvelope):
            return outcome
        return call.context.note(selection.of(outcome))

    async def stream(self, call: Call, next: NextStream) -> AsyncGenerator[ResponseEnvelope[Any]]:
        selection = self.compiled(call.select)
        async with aclosing(next(call)) as items:
            async for envelope in items:
                yield envelope if selection is None else call.context.note(selection.of(envelope))

    def compiled(self, text: str | None) -> Selection | None:
        """Compile the caller's selection, else the default; raise VALIDATION_ERROR for an invalid one."""
        from enfold.search.selection import default_selection, selection_of  # most calls select nothing

        if text not in self._compiled:
            if len(self._compiled) >= MAX_SELECTIONS:
                self._compiled.clear()
            chosen = default_selection(self._spec) if text is None else selection_of(self._spec, text)
            self._compiled[text] = chosen
        return self._compiled[text]
