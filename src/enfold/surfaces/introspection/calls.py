"""`enfold.calls`: the last calls kept in memory, then each call as it ends.

Arguments and results are only included if the operator keeps them (`payloads.py`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError
from enfold.observability.records import CallRecord
from enfold.operations import Context, Operation, OperationSpec, OperationType
from enfold.provenance.redaction import Redacted, redact, scrub
from enfold.runtime.registry import Registry
from enfold.runtime.reserved import is_reserved, only_caller, reserved_operation
from enfold.runtime.source_states import SourceTable

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
    """A call as it is stored and sent to other processes."""

    record: CallRecord
    payload: EndedPayload | None = None

    @property
    def key(self) -> tuple[float, str]:
        return self.record.time, self.record.request_id


class CallLog:
    """The last calls of a registry, and the subscribers to new ones. Calls of the namespace `enfold` are left out."""

    def __init__(self, registry: Registry, payloads: Payloads | None = None) -> None:
        self._kept: deque[KeptCall] = deque(maxlen=KEPT)
        self._listeners: list[Callable[[KeptCall], None]] = []
        self._registry = registry
        self._payloads = payloads
        self._has_begun = False

    def begin(self) -> None:
        """Keep calls from now on: before the first request, this costs nothing."""
        if not self._has_begun:
            self._has_begun = True
            self._registry.services.observers.add(self._keep)

    def _keep(self, record: CallRecord) -> None:
        payload = None if self._payloads is None else self._payloads.of(record)
        if is_reserved(record.operation):
            return
        call = KeptCall(record, payload)
        self._kept.append(call)
        for listener in tuple(self._listeners):
            listener(call)

    async def follow(self, sees: Callable[[CallRecord], bool], *, is_endless: bool) -> AsyncIterator[CallSummary]:
        """Yield the stored calls and, if endless, those to come."""
        self.begin()
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()
        waiting: deque[KeptCall] = deque(self._kept, MAX_WAITING)

        def listen(call: KeptCall) -> None:  # on whatever thread the call has ended
            waiting.append(call)
            loop.call_soon_threadsafe(arrived.set)

        self._listeners.append(listen)
        siblings = self._registry.services.siblings
        listening = None
        if siblings is not None and is_endless:
            listening = asyncio.ensure_future(siblings.listen("calls", lambda wire: listen(_read(wire))))
        try:
            told = [] if siblings is None else await siblings.ask("calls")
            others = [_read(wire) for kept in told for wire in kept]
            arrivals = sorted([*others, *_drain(waiting)], key=lambda call: call.record.time)
            shown: dict[tuple[float, str], None] = {}  # the last ones: what ends while others are asked comes twice
            while True:
                for call in arrivals:
                    if call.key not in shown and sees(call.record):
                        yield _summary(call, self._registry.services.sources)
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
        """Return the last calls as plain data, for another process."""
        return msgspec.to_builtins(list(self._kept))

    def watch(self, hear: Callable[[object], object]) -> Callable[[], None]:
        """Call back with the calls that are kept and each that ends, as plain data; the answer ends the watching."""

        def listen(call: KeptCall) -> None:
            hear(msgspec.to_builtins(call))

        self._listeners.append(listen)
        for call in tuple(self._kept):  # one that ends just now may appear twice, but none is missed
            listen(call)
        return lambda: self._listeners.remove(listen)


def _drain(waiting: deque[KeptCall]) -> list[KeptCall]:
    """Remove and give what waits now; other threads may add to it meanwhile."""
    return [waiting.popleft() for _ in range(len(waiting))]


def _read(wire: object) -> KeptCall:
    return msgspec.convert(wire, KeptCall)


def operations(registry: Registry) -> Iterable[Operation]:
    return operations_of(CallLog(registry))


def operations_of(log: CallLog) -> Iterable[Operation]:
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


MAX_CHARACTERS: Final = 10_000  # of the arguments, and of the result
MAX_VALUES: Final = 1_000
MAX_DEPTH: Final = 30
MAX_TEXT: Final = 2_000
MAX_UNCLAIMED: Final = 200  # finished calls that have not been reported yet
CUT: Final = "…"
NOT_JSON: Final = "not JSON"

Key: TypeAlias = tuple[str, str, str | None]  # request id, operation, caller: unique per caller


class EndedPayload(msgspec.Struct, frozen=True):
    """What a call was given and gave, as JSON text; `is_cut` where something was left out for its size."""

    arguments: str
    result: str | None  # None where it failed; of a stream a list of its first items
    error: str | None
    is_cut: bool


class Payloads:
    """Collects arguments and results of calls, and attaches them to their records."""

    def __init__(self) -> None:
        self._ended: OrderedDict[Key, EndedPayload] = OrderedDict()

    def begin(self, spec: OperationSpec, input: Any, context: Context) -> _OpenPayload:
        caller = None if context.identity is None else context.identity.id
        return _OpenPayload(spec, input, lambda payload: self._end((context.request_id, spec.id, caller), payload))

    def _end(self, key: Key, payload: EndedPayload) -> None:
        self._ended[key] = payload
        while len(self._ended) > MAX_UNCLAIMED:
            self._ended.popitem(last=False)

    def of(self, record: CallRecord) -> EndedPayload | None:
        """Return input and output of a recorded call, once; None if the handler was not called."""
        return self._ended.pop((record.request_id, record.operation, record.caller), None)


class _OpenPayload:
    """One call while it runs."""

    def __init__(self, spec: OperationSpec, input: Any, done: Callable[[EndedPayload], None]) -> None:
        self._output_schema = spec.output_schema
        self._is_stream = spec.type.value == "subscription"
        self._done = done
        self._page = _Page()
        clean = _without_secrets(input, spec)
        self._secrets = clean.secrets
        self._arguments = self._page.cut(clean.value)
        self._results: list[Any] = []
        self._error: Any = None
        self._page.clear()

    def take(self, envelope: ResponseEnvelope[Any]) -> None:
        if self._page.is_full:
            self._page.is_cut = True
        else:
            clean = redact(self._page.cut(envelope.data), self._output_schema).value
            self._results.append(_scrubbed(clean, self._secrets))

    def fail(self, error: CallError) -> None:
        clean = redact(self._page.cut(error.to_wire())).value
        self._error = _scrubbed(clean, self._secrets)

    def end(self) -> None:
        result = self._results if self._is_stream else self._results[0] if self._results else None
        has_result = self._is_stream or bool(self._results)
        texts = (_text(self._arguments), _text(result) if has_result else None)
        self._done(EndedPayload(*texts, None if self._error is None else _text(self._error), self._page.is_cut))


class _Page:
    """Cuts values to what a page holds: the work is bounded like the page, whatever the value."""

    def __init__(self) -> None:
        self.is_cut = False
        self.clear()

    def clear(self) -> None:
        """Begin an empty page."""
        self._characters, self._values = MAX_CHARACTERS, MAX_VALUES

    @property
    def is_full(self) -> bool:
        return self._characters <= 0 or self._values <= 0

    def cut(self, value: Any, depth: int = 0) -> Any:
        self._values -= 1
        if isinstance(value, str):
            return self._cut_text(value)
        if isinstance(value, Mapping | list | tuple):
            if depth >= MAX_DEPTH:
                return self._mark_cut()
            return self._cut_object(value, depth) if isinstance(value, Mapping) else self._cut_list(value, depth)
        self._characters -= 8
        return value

    def _cut_text(self, text: str) -> str:
        room = max(0, min(self._characters, MAX_TEXT))
        self._characters -= min(len(text), room)
        return text if len(text) <= room else text[:room] + self._mark_cut()

    def _cut_object(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, each in value.items():
            if self.is_full:
                found[CUT] = self._more(len(value) - len(found))
                break
            found[self._cut_text(str(name))] = self.cut(each, depth + 1)
        return found

    def _cut_list(self, value: list[Any] | tuple[Any, ...], depth: int) -> list[Any]:
        found: list[Any] = []
        for each in value:
            if self.is_full:
                found.append(self._more(len(value) - len(found)))
                break
            found.append(self.cut(each, depth + 1))
        return found

    def _more(self, number: int) -> str:
        return f"{self._mark_cut()} {number} more"

    def _mark_cut(self) -> str:
        self.is_cut = True
        return CUT


def _without_secrets(input: Any, spec: OperationSpec) -> Redacted:
    try:
        return redact(input, spec.input_schema)
    except Exception:  # noqa: BLE001  # a call inside this process may be given anything, and keeping it must not disturb it
        return Redacted(NOT_JSON)


def _scrubbed(value: Any, secrets: frozenset[str]) -> Any:
    """Replace secrets from the arguments in a value."""
    if not secrets:
        return value
    if isinstance(value, str):
        return scrub(value, secrets)
    if isinstance(value, dict):
        return {scrub(name, secrets): _scrubbed(each, secrets) for name, each in value.items()}
    return [_scrubbed(each, secrets) for each in value] if isinstance(value, list) else value


def _text(value: Any) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=str).decode()
    except (TypeError, ValueError, RecursionError):  # it goes to its caller all the same, or its failure does
        return msgspec.json.encode(NOT_JSON).decode()
