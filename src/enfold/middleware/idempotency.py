"""Idempotency keys: a mutation repeated with its key runs once, and each repeat gets the first outcome."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from enfold.errors import CallError
from enfold.operations.idempotency import EntryKey, KeyedCall, input_digest, owned_by

if TYPE_CHECKING:
    from enfold.middleware.selection import Select
    from enfold.operations.call import Call, Next
    from enfold.operations.outcomes import Outcome
    from enfold.runtime.application import Services
    from enfold.runtime.funnel import Funnel

MAX_REPEAT_WAIT: Final = 3600.0  # seconds that a repeated call waits for the first one, if nothing else limits it
SETTLE: Final = 5.0  # seconds beyond the operation's own time in which a first call tells how it ended


class Idempotency:
    """Runs a call with a key once. The process that runs the handler owns the key: other Enfold processes are passed it."""

    def __init__(self, services: Services, funnel: Funnel, select: Select) -> None:
        self._services = services
        self._funnel = funnel
        self._select = select

    async def __call__(self, call: Call, next: Next) -> Outcome:
        key = call.idempotency_key
        if key is None:
            return await next(call)

        context = call.context
        context.unused_key = None
        entry = EntryKey(owned_by(context.identity), self._funnel.id, key)
        if self._funnel.is_remote:
            passed_on = context.copy()
            passed_on.idempotency_key = entry.digest()
            return await next(replace(call, context=passed_on, idempotency_key=None))
        headers: dict[str, str] = {}  # of the response, from this run or from the one it repeats
        try:
            keyed = self._keyed(entry, call, next, headers)
            lifetime = self._services.lifetime
            if not lifetime.is_ready:
                await lifetime.make_ready()
            return await self._services.open_idempotency_store().run_once(keyed)
        except CallError as error:
            raise self._funnel.failures.with_ids(error, context) from error.__cause__
        finally:
            if headers:
                context.reply_headers = headers

    def _keyed(self, entry: EntryKey, call: Call, next: Next, headers: dict[str, str]) -> KeyedCall:
        """Return the call as the idempotency store sees it; raise VALIDATION_ERROR for a call that would not start."""
        import asyncio  # this and the next: only keys need it here

        context, spec = call.context, self._funnel.spec
        self._select.compiled(call.select)
        digest = input_digest(self._funnel.arguments.read(call.input)[0], call.select)
        left = context.remaining()
        if left is None:  # the caller waits as long as it may run
            left = MAX_REPEAT_WAIT if spec.timeout is None else spec.timeout + SETTLE

        async def run() -> Outcome:
            context.first_call, own = asyncio.current_task(), context.on_its_own()
            own.idempotency_key, own.keeps_result = entry.digest(), True
            try:
                return await next(replace(call, context=own, idempotency_key=None))
            finally:
                headers.update(own.reply_headers or {})

        own_time = 0.0 if self._funnel.is_upstream else spec.timeout  # an upstream may go on after any timeout
        reruns = spec.on_crash == "retry"
        return KeyedCall(entry, digest, run, time.monotonic() + left, own_time, reruns, headers)
