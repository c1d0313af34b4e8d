"""The last part of a call: what its handler gave becomes an envelope, by the pipeline of its operation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from enfold.errors import LargeMisfitError

if TYPE_CHECKING:
    from enfold.envelope import ResponseEnvelope
    from enfold.operations import Operation, Policy
    from enfold.runtime.pipeline import Finish


class Results:
    """Finishes the results of one operation. Pipelines are built when a result needs them: most imports are never called."""

    __slots__ = ("_for_writing", "_operation", "_plain", "_policy", "finish_quickly")

    def __init__(self, operation: Operation, policy: Policy, *, for_writing: bool, are_finished: bool) -> None:
        """`for_writing`: `data` may be a struct or JSON text. `are_finished`: what ran the operation has finished them."""
        self._operation = operation
        self._policy = policy
        self._for_writing = for_writing
        # Raises LargeMisfitError where finishing would keep the loop busy.
        self.finish_quickly: Finish = _unchanged if are_finished else self._finish_first
        self._plain: Finish | None = _unchanged if are_finished else None

    async def finish(self, result: Any) -> ResponseEnvelope[Any]:
        """Finish a result; a large one that does not fit is finished beside the event loop."""
        try:
            return self.finish_quickly(result)
        except LargeMisfitError as misfit:
            return await finish_apart(misfit)

    async def finish_plainly(self, result: Any) -> ResponseEnvelope[Any]:
        """Finish a result as plain data, which a record, a key, a selection or a middleware needs."""
        if not self._for_writing:
            return await self.finish(result)
        if self._plain is None:
            from enfold.runtime.pipeline import build_pipeline  # with the first result that has to be plain

            self._plain = build_pipeline(self._operation.spec, self._policy, self._operation.signature)
        try:
            return self._plain(result)
        except LargeMisfitError as misfit:
            return await finish_apart(misfit)

    def _finish_first(self, result: Any) -> ResponseEnvelope[Any]:
        from enfold.runtime.pipeline import build_pipeline, build_writing_pipeline  # with the first result

        build = build_writing_pipeline if self._for_writing else build_pipeline
        self.finish_quickly = build(self._operation.spec, self._policy, self._operation.signature)
        return self.finish_quickly(result)


async def finish_apart(misfit: LargeMisfitError) -> ResponseEnvelope[Any]:
    """Finish a large result beside the event loop."""
    from enfold.runtime.threads import run_apart  # which needs asyncio

    envelope: ResponseEnvelope[Any] = await run_apart(misfit.finish)
    return envelope


def _unchanged(value: Any) -> Any:
    return value
