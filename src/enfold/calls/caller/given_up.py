"""Calls nobody waits for any more: their workers are told, as soon as they are known, and again where it got lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from enfold.calls.caller.waiting import WaitingCall
from enfold.calls.protocol.events import Aborted, Payload
from enfold.calls.protocol.transport import Message
from enfold.errors import CallError

REMEMBERED_FOR: Final = 5.0  # seconds in which a late worker is still told
_UNREACHED: Final = ("connection_lost", "silence")

TellAt: TypeAlias = Callable[[str, Payload], None]


class _Call(msgspec.Struct):
    until: float
    told_at: float
    control: str | None


class GivenUp:
    """Calls that their callers gave up, whose worker is not known yet, or may not have heard of it."""

    def __init__(self, tell_at: TellAt, heartbeat: float) -> None:
        self._tell_at = tell_at
        self._heartbeat = heartbeat
        self._calls: dict[str, _Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def has_unknown(self) -> bool:
        """Whether the worker of a call is not known yet: it speaks up soon, if it has the call."""
        return any(call.control is None for call in self._calls.values())

    def add(self, waiting: WaitingCall, now: float) -> None:
        """Tell the worker of a call that nobody waits; remember it, unless it has surely heard."""
        if waiting.control is not None:
            self._tell_at(waiting.control, Aborted(waiting.request_id))
        if waiting.control is None or waiting.error is None or waiting.error.details.get("reason") in _UNREACHED:
            self._calls[waiting.request_id] = _Call(now + REMEMBERED_FOR, now, waiting.control)

    def hear(self, request_id: str, message: Message) -> None:
        """Tell a worker that nobody waits, if its message is about a call that was given up before its worker was known."""
        if request_id in self._calls and message.reply is not None and message.reply.startswith("ctl."):
            del self._calls[request_id]
            self._tell_at(message.reply, Aborted(request_id))

    def tell_again(self) -> None:
        """Have `check` tell every worker again, after a reconnection: what was said before may be lost."""
        for call in self._calls.values():
            call.told_at = 0.0

    def check(self, now: float) -> None:
        """Tell the workers again that have not been told for a heartbeat, and forget calls that are too old."""
        self._calls = {key: call for key, call in self._calls.items() if call.until > now}
        for request_id, call in self._calls.items():
            if call.control is not None and now - call.told_at >= self._heartbeat:
                call.told_at = now
                self._tell_at(call.control, Aborted(request_id))


def may_still_run(error: CallError) -> bool:
    """Whether a worker may still run a call that ended here with this error."""
    return error.code in ("ABORTED", "TIMEOUT", "INVALID_OPERATION_TYPE") or error.details.get("reason") in _UNREACHED
