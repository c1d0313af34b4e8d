"""`enfold.calls`: calls as they end, after the last of them that are kept in memory. Never what they were given or gave."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final

import msgspec

from enfold.access import EVERYTHING
from enfold.observing import CallRecord
from enfold.operation import Context, Identity, Operation, OperationType
from enfold.registry import Registry
from enfold.reserved import ADMIN, is_reserved, reserved_operation

__all__ = ["CallLog", "CallSummary", "call_operations"]

KEPT: Final = 200
MOST_WAITING: Final = 1_000  # for one who reads slowly; older ones are dropped


class CallSummary(msgspec.Struct, frozen=True):
    """A call that has ended."""

    time: int  # Unix milliseconds
    request_id: str
    parent_request_id: str | None
    operation: str  # "" where none was found
    source: str
    caller: str | None
    surface: str
    code: str
    duration_ms: float
    warnings: int
    first_warning: str | None
    request_bytes: int | None
    response_bytes: int | None
    items: int | None


class CallLog:
    """The last calls of a registry, and those who are told of the next ones. Calls about the program itself are left out."""

    def __init__(self, registry: Registry) -> None:
        self._kept: deque[CallRecord] = deque(maxlen=KEPT)
        self._listeners: list[Callable[[CallRecord], None]] = []
        self._registry = registry
        self._has_begun = False

    def begin(self) -> None:
        """Keep calls from now on: until somebody wants to know of them, no call pays for it."""
        if not self._has_begun:
            self._has_begun = True
            self._registry.observers.add(self._take)

    def _take(self, record: CallRecord) -> None:
        if is_reserved(record.operation):
            return
        self._kept.append(record)
        for listener in tuple(self._listeners):
            listener(record)

    async def follow(self, sees: Callable[[CallRecord], bool], *, is_endless: bool) -> AsyncIterator[CallSummary]:
        """The calls that are kept, and, where it is endless, those to come."""
        self.begin()
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()
        waiting: deque[CallRecord] = deque(self._kept, MOST_WAITING)

        def listen(record: CallRecord) -> None:  # on whatever thread the call has ended
            waiting.append(record)
            loop.call_soon_threadsafe(arrived.set)

        self._listeners.append(listen)
        elsewhere = self._registry.reserved.elsewhere
        listening = None
        if elsewhere is not None and is_endless:
            listening = asyncio.ensure_future(elsewhere.listen("calls", lambda wire: listen(_read(wire))))
        try:
            if elsewhere is not None:
                others = [_read(wire) for kept in await elsewhere.ask("calls") for wire in kept]
                known = {(record.time, record.request_id): record for record in (*others, *waiting)}
                waiting.clear()
                waiting.extend(sorted(known.values(), key=lambda record: record.time))
            while True:
                while waiting:
                    record = waiting.popleft()
                    if sees(record):
                        yield _summary(record)
                if not is_endless:
                    return
                arrived.clear()
                if not waiting:
                    await arrived.wait()
        finally:
            self._listeners.remove(listen)
            if listening is not None:
                listening.cancel()

    def kept(self) -> list[object]:
        """What another process is told that asks for the last calls of this one."""
        told: list[object] = msgspec.to_builtins(list(self._kept))
        return told

    def watch(self, hear: Callable[[object], None]) -> Callable[[], None]:
        """Call back with each call that ends, as another process reads it; the answer ends the watching."""

        def listen(record: CallRecord) -> None:
            hear(msgspec.to_builtins(record))

        self._listeners.append(listen)
        return lambda: self._listeners.remove(listen)


def _read(wire: object) -> CallRecord:
    return msgspec.convert(wire, CallRecord)


def call_operations(log: CallLog) -> Iterable[Operation]:
    async def calls(context: Context, follow: bool = True) -> AsyncIterator[CallSummary]:
        """Show the last calls, and then each call when it ends. Without `enfold:admin` a caller sees only their own.

        Args:
            follow: Whether to wait for calls to come; without it the stream ends after those that are kept.
        """
        identity = context.identity
        async for summary in log.follow(lambda record: _sees(identity, record), is_endless=follow):
            yield summary

    yield reserved_operation(calls, "enfold.calls", type=OperationType.SUBSCRIPTION)


def _sees(identity: Identity | None, record: CallRecord) -> bool:
    """Whoever asks without an identity asks where nobody has one, or in this process."""
    return identity is None or record.caller == identity.id or not identity.scopes.isdisjoint((ADMIN, EVERYTHING))


def _summary(record: CallRecord) -> CallSummary:
    return CallSummary(
        round(record.time * 1000),
        record.request_id,
        record.parent_request_id,
        record.operation,
        record.origin.name or record.origin.kind,
        record.caller,
        record.surface,
        record.code,
        round(record.duration * 1000, 3),
        record.warnings,
        record.first_warning,
        record.request_bytes,
        record.response_bytes,
        record.items,
    )
