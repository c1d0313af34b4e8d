"""How a call fails: any exception of a handler becomes a CallError for its caller, unless the call was cancelled from outside."""

from __future__ import annotations

import sys
from typing import Final

from enfold.errors import CallError, error_from
from enfold.operations import Context, OperationSpec, Policy
from enfold.runtime.handlers import Interrupt, loop_is_running


def is_cancellation(error: BaseException) -> bool:
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and isinstance(error, asyncio.CancelledError)


def comes_from_outside(error: BaseException) -> bool:
    """Whether an exception ends the call from outside: a cancellation, a close or Ctrl-C that the handler did not raise."""
    if is_cancellation(error):
        # Unless this task was cancelled, the handler awaited something that was cancelled.
        asyncio = sys.modules["asyncio"]
        task = asyncio.current_task() if loop_is_running() else None
        return task is not None and task.cancelling() > 0
    if isinstance(error, GeneratorExit):
        # Closing a coroutine raises it at our own `await`, not in a frame of the handler.
        return error.__traceback__ is None or error.__traceback__.tb_next is None
    return isinstance(error, Interrupt)


_STRAY_CANCELLATION: Final = "something that the handler awaited was cancelled"


class Failures:
    """Makes the errors of one operation."""

    __slots__ = ("_is_remote", "_policy", "_spec")

    def __init__(self, spec: OperationSpec, policy: Policy, *, is_remote: bool) -> None:
        self._spec = spec
        self._is_remote = is_remote  # another Enfold process runs it
        self._policy = policy

    def timed_out(self, context: Context | None) -> CallError:
        """End a call whose time is over: cancel its context, and return TIMEOUT."""
        if context is not None:
            context.cancel()
        if self._is_remote and context is not None and context.idempotency_key is not None:
            from enfold.operations.idempotency import in_progress  # only keys need it

            return in_progress()  # where it runs it has its own time
        return CallError("TIMEOUT", f"{self._spec.id} exceeded its timeout", retryable=self._spec.idempotent)

    def for_caller(self, error: CallError) -> CallError:
        """Return the error as callers may see it: with its declared properties, and redacted if errors are hidden."""
        error.row = self._spec.declared_row(error.code) or error.row
        if error.details:
            from enfold.schema.plain import plain_details  # which the first result loads, too

            error.details = plain_details(error.details)
        if not self._policy.expose_errors:
            error.redact()
        return error

    def with_ids(self, error: CallError, context: Context | None) -> CallError:
        """Add the ids of operation and request to an error; one of a nested call keeps and names its operation id."""
        self.for_caller(error)
        if error.operation_id is None:
            error.operation_id = self._spec.id
        elif error.operation_id not in (self._spec.id, *error.message.split(": ", 1)[:1]):
            error.message = f"{error.operation_id}: {error.message}"
        if context is not None:
            error.request_id = context.request_id
        return error

    def failure_of(self, error: BaseException, context: Context | None) -> CallError:
        """Return the CallError for an exception of a handler or middleware; re-raise a cancellation from outside."""
        if not isinstance(error, Exception) and comes_from_outside(error):
            if context is not None:
                context.cancel()
            raise error
        return self._unexpected(RuntimeError(_STRAY_CANCELLATION) if is_cancellation(error) else error, context)

    def _unexpected(self, error: BaseException, context: Context | None) -> CallError:
        """Return the error for an unexpected exception, and log its traceback under the same request id."""
        context = context or Context()
        of = f" of {context.parent_request_id}" if context.parent_request_id else ""
        facts = (self._spec.id, context.request_id, of)
        from enfold.observability.log import Log  # only a fault is logged

        Log("enfold").error("%s failed (request %s%s)", *facts, error=error, request_id=context.request_id)
        found = error_from(error, f"Operation {self._spec.id} failed")
        if found.code == "TIMEOUT":
            found.retryable = self._spec.idempotent
        return self.with_ids(found, context)
