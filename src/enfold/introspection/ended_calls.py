"""`enfold.calls`: calls as they end, after the last of them that are kept in memory.

What they were given and gave is told only where the operator has it kept (`payloads.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from enfold.introspection.payloads import EndedPayload, Payloads
from enfold.observing.call_record import CallRecord
from enfold.operation import Context, Operation, OperationType
from enfold.registry import Registry
from enfold.reserved import is_reserved, only_caller, reserved_operation
from enfold.source_states import SourceTable

KEPT: Final = 200
MAX_WAITING: Final = 1_000  # for one who reads slowly; older ones are dropped


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
    # Where the operator keeps payloads: each without secrets; `is_cut` where something was left out for its size.
    arguments: Any | UnsetType = UNSET
    result: Any | UnsetType = UNSET  # of a stream a list of its first items
    error: Any | UnsetType = UNSET
    is_cut: bool | UnsetType = UNSET


class KeptCall(msgspec.Struct, frozen=True):
    """A call as it is kept, and as other processes are told of it."""

    record: CallRecord
    payload: EndedPayload | None = None

    @property
    def key(self) -> tuple[float, str]:
        return self.record.time, self.record.request_id


class CallLog:
    """The last calls of a registry, and those who are told of the next ones. Calls about the program itself are left out."""

    def __init__(self, registry: Registry, payloads: Payloads | None = None) -> None:
        self._kept: deque[KeptCall] = deque(maxlen=KEPT)
        self._listeners: list[Callable[[KeptCall], None]] = []
        self._registry = registry
        self._payloads = payloads
        self._has_begun = False

    def begin(self) -> None:
        """Keep calls from now on: until somebody wants to know of them, no call pays for it."""
        if not self._has_begun:
            self._has_begun = True
            self._registry.observers.add(self._keep)

    def _keep(self, record: CallRecord) -> None:
        payload = None if self._payloads is None else self._payloads.of(record)
        if is_reserved(record.operation):
            return
        call = KeptCall(record, payload)
        self._kept.append(call)
        for listener in tuple(self._listeners):
            listener(call)

    async def follow(self, sees: Callable[[CallRecord], bool], *, is_endless: bool) -> AsyncIterator[CallSummary]:
        """The calls that are kept, and, where it is endless, those to come."""
        self.begin()
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()
        waiting: deque[KeptCall] = deque(self._kept, MAX_WAITING)

        def listen(call: KeptCall) -> None:  # on whatever thread the call has ended
            waiting.append(call)
            loop.call_soon_threadsafe(arrived.set)

        self._listeners.append(listen)
        elsewhere = self._registry.reserved.elsewhere
        listening = None
        if elsewhere is not None and is_endless:
            listening = asyncio.ensure_future(elsewhere.listen("calls", lambda wire: listen(_read(wire))))
        try:
            told = [] if elsewhere is None else await elsewhere.ask("calls")
            others = [_read(wire) for kept in told for wire in kept]
            arrivals = sorted([*others, *_drain(waiting)], key=lambda call: call.record.time)
            shown: dict[tuple[float, str], None] = {}  # the last ones: what ends while others are asked comes twice
            while True:
                for call in arrivals:
                    if call.key not in shown and sees(call.record):
                        yield _summary(call, self._registry.sources)
                    shown[call.key] = None
                    if len(shown) > MAX_WAITING:
                        del shown[next(iter(shown))]
                if not is_endless:
                    return
                arrived.clear()
                if not waiting:
                    await arrived.wait()
                arrivals = _drain(waiting)
        finally:
            self._listeners.remove(listen)
            if listening is not None:
                listening.cancel()

    def kept(self) -> Any:
        """The last calls as plain data, for another process that asks for them."""
        return msgspec.to_builtins(list(self._kept))

    def watch(self, hear: Callable[[object], object]) -> Callable[[], None]:
        """Call back with the calls that are kept and each that ends, as plain data; the answer ends the watching."""

        def listen(call: KeptCall) -> None:
            hear(msgspec.to_builtins(call))

        self._listeners.append(listen)
        for call in tuple(self._kept):  # one that ends just now is told twice, and none is missed
            listen(call)
        return lambda: self._listeners.remove(listen)


def _drain(waiting: deque[KeptCall]) -> list[KeptCall]:
    """Remove and give what waits now; other threads may add to it meanwhile."""
    return [waiting.popleft() for _ in range(len(waiting))]


def _read(wire: object) -> KeptCall:
    return msgspec.convert(wire, KeptCall)


def call_operations(log: CallLog) -> Iterable[Operation]:
    async def calls(context: Context, follow: bool = True) -> AsyncIterator[CallSummary]:
        """Show the last calls, and then each call when it ends. Without `enfold:admin` a caller sees only their own.

        Args:
            follow: Whether to wait for calls to come; without it the stream ends after those that are kept.
        """
        own = only_caller(context.identity)
        async for summary in log.follow(lambda record: own in (None, record.caller), is_endless=follow):
            yield summary

    yield reserved_operation(calls, "enfold.calls", type=OperationType.SUBSCRIPTION)


def _summary(call: KeptCall, sources: SourceTable) -> CallSummary:
    record, payload = call.record, call.payload
    fields = msgspec.structs.asdict(record) | {
        "time": round(record.time * 1000),
        "source": sources.name_of(record.origin.kind, record.origin.name),
        "duration_ms": round(record.duration * 1000, 3),
    }
    if payload is not None:
        texts = {"arguments": payload.arguments, "result": payload.result, "error": payload.error}
        fields |= {name: msgspec.json.decode(text) for name, text in texts.items() if text is not None}
        fields["is_cut"] = payload.is_cut
    return msgspec.convert(fields, CallSummary)
