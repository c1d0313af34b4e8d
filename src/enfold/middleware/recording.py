"""Provenance: a record of the run, if the caller or the operator asked for one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError

if TYPE_CHECKING:
    from enfold.operations.call import Call, Next
    from enfold.operations.outcomes import Outcome


class RecordRun:
    """Keeps how a run ended; a call that never reached its handler is no run."""

    async def __call__(self, call: Call, next: Next) -> Outcome:
        context, spec = call.context, call.operation.spec
        recording = call.record
        if recording is None:
            return await next(call)
        context.keeps_result = True  # digests are of plain data
        try:
            outcome = await next(call)
        except CallError as error:
            if context.has_started:
                error.provenance = await recording.keep_failure(spec, call.input, error, inline=context.inline)
            raise
        if not isinstance(outcome, ResponseEnvelope):  # it has not ended yet
            return outcome
        return context.note(await recording.keep_success(spec, call.input, outcome, inline=context.inline))
