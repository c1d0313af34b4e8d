"""Aborted calls whose workers may still run: `call.aborted` is sent to a worker once it is known, and again if it may be lost."""

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

SendControl: TypeAlias = Callable[[str, Payload], None]


class _Call(msgspec.Struct):
    until: float
    sent_at: float
    control: str | None


class AbortedCalls:
    """Aborted calls whose worker is not known yet, or may not have received the abort."""

    def __init__(self, send: SendControl, heartbeat: float) -> None:
        self._send = send
        self._heartbeat = heartbeat
        self._calls: dict[str, _Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def has_unknown_worker(self) -> bool:
        """Whether the worker of a call is still unknown; a worker that has the call announces itself within `accept_after`."""
        return any(call.control is None for call in self._calls.values())

    def add(self, waiting: WaitingCall, now: float) -> None:
        """Send an abort to the worker of a call; remember the call unless the worker has surely received it."""
        if waiting.control is not None:
            self._send(waiting.control, Aborted(waiting.request_id))
        if waiting.control is None or waiting.error is None or waiting.error.details.get("reason") in _UNREACHED:
            self._calls[waiting.request_id] = _Call(now + REMEMBERED_FOR, now, waiting.control)

    def hear(self, request_id: str, message: Message) -> None:
        """Abort a call at its worker when that worker's first message arrives after the caller gave up."""
        if request_id in self._calls and message.reply is not None and message.reply.startswith("ctl."):
            del self._calls[request_id]
            self._send(message.reply, Aborted(request_id))

    def resend_all(self) -> None:
        """After a reconnection: let the next `check` send every abort again, since earlier ones may be lost."""
        for call in self._calls.values():
            call.sent_at = 0.0

    def check(self, now: float) -> None:
        """Repeat aborts that are older than a heartbeat, and forget calls after `REMEMBERED_FOR` seconds."""
        self._calls = {key: call for key, call in self._calls.items() if call.until > now}
        for request_id, call in self._calls.items():
            if call.control is not None and now - call.sent_at >= self._heartbeat:
                call.sent_at = now
                self._send(call.control, Aborted(request_id))


def may_still_run(error: CallError) -> bool:
    """Whether a worker may still run a call that ended here with this error."""
    return error.code in ("ABORTED", "TIMEOUT", "INVALID_OPERATION_TYPE") or error.details.get("reason") in _UNREACHED
