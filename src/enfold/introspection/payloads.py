"""What calls were given and gave, where the operator has it kept: without secrets, and never more than a page of each."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError
from enfold.observing import CallRecord
from enfold.operation import Context, OperationSpec
from enfold.provenance.redaction import Redacted, redact, scrub

MAX_CHARACTERS: Final = 10_000  # of the arguments, and of the result
MAX_VALUES: Final = 1_000
MAX_DEPTH: Final = 30
MAX_TEXT: Final = 2_000
MAX_WAITING: Final = 200  # calls that have ended, and of which nobody has told yet
CUT: Final = "…"
NOT_JSON: Final = "not JSON"

Key: TypeAlias = tuple[str, str, str | None]  # request id, operation, caller: nobody can give theirs to another's call


class EndedPayload(msgspec.Struct, frozen=True):
    """What a call was given and gave, as JSON text; `is_cut` where something was left out for its size."""

    arguments: str
    result: str | None  # None where it failed; of a stream a list of its first items
    error: str | None
    is_cut: bool


class Payloads:
    """Takes what each call was given and gave, and gives it to whoever has the record of that call."""

    def __init__(self) -> None:
        self._ended: OrderedDict[Key, EndedPayload] = OrderedDict()

    def begin(self, spec: OperationSpec, input: Any, context: Context) -> _OpenPayload:
        caller = None if context.identity is None else context.identity.id
        return _OpenPayload(spec, input, lambda payload: self._end((context.request_id, spec.id, caller), payload))

    def _end(self, key: Key, payload: EndedPayload) -> None:
        self._ended[key] = payload
        while len(self._ended) > MAX_WAITING:
            self._ended.popitem(last=False)

    def of(self, record: CallRecord) -> EndedPayload | None:
        """What the call of a record was given and gave, once; None where it did not come to be called."""
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
    """A value in which no secret of the arguments stands."""
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
