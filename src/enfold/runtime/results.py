"""The last part of a call: the handler's return value becomes an envelope, by the pipeline of its operation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from enfold.errors import LargeMisfitError

if TYPE_CHECKING:
    from enfold.envelope import ResponseEnvelope
    from enfold.operations import Operation, Policy
    from enfold.runtime.pipeline import Finish


class Results:
    """Finishes the results of one operation. Pipelines are built when a result needs them: most imports are never called.

    `write` gives what is only written: `data` may be a struct or JSON text. `wrap` gives plain data, which a record, a key,
    a selection or a middleware needs. Both raise LargeMisfitError where finishing would keep the loop busy.
    """

    __slots__ = ("_operation", "_policy", "wrap", "write")

    def __init__(self, operation: Operation, policy: Policy, *, for_writing: bool, are_finished: bool) -> None:
        """Without `for_writing`, `write` gives plain data, too. `are_finished`: what ran the operation has finished them."""
        self._operation = operation
        self._policy = policy
        self.wrap: Finish = _unchanged if are_finished else self._wrap_first
        # Sources without a signature return envelopes, whose data is plain already.
        writes_apart = for_writing and not are_finished and operation.signature is not None
        self.write: Finish = self._write_first if writes_apart else self.wrap

    async def finish(self, result: Any, *, is_plain: bool = True) -> ResponseEnvelope[Any]:
        """Finish a result; a large one that does not fit is finished beside the event loop."""
        try:
            return self.wrap(result) if is_plain else self.write(result)
        except LargeMisfitError as misfit:
            return await finish_apart(misfit)

    def _wrap_first(self, result: Any) -> ResponseEnvelope[Any]:
        from enfold.runtime.pipeline import build_pipeline  # with the first result

        first, self.wrap = self.wrap, build_pipeline(self._operation.spec, self._policy, self._operation.signature)
        if self.write == first:
            self.write = self.wrap
        return self.wrap(result)

    def _write_first(self, result: Any) -> ResponseEnvelope[Any]:
        from enfold.runtime.pipeline import build_writing_pipeline  # with the first result

        self.write = build_writing_pipeline(self._operation.spec, self._policy, self._operation.signature)
        return self.write(result)


async def finish_apart(misfit: LargeMisfitError) -> ResponseEnvelope[Any]:
    """Finish a large result beside the event loop."""
    from enfold.runtime.threads import run_apart  # which needs asyncio

    envelope: ResponseEnvelope[Any] = await run_apart(misfit.finish)
    return envelope


def _unchanged(value: Any) -> Any:
    return value
