"""Sends a worker's answers: at once, or after a reconnection, as long as the caller waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from enfold.calls.protocol import call_failures
from enfold.calls.protocol.call_settings import CallSettings
from enfold.calls.protocol.eager_task import Background
from enfold.calls.protocol.events import (
    Completed,
    Failed,
    Payload,
    Responded,
    ResultTaker,
    copied,
    event_ids,
    failed,
    write_event,
)
from enfold.calls.protocol.transport import (
    DisconnectedError,
    OverloadedError,
    PayloadTooLargeError,
    Signal,
    Transport,
    TransportError,
)
from enfold.calls.worker.served import ServedCall
from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError, FormatError
from enfold.log import Log
from enfold.schema.plain import unwritable

_log: Final = Log("enfold.calls")


class AnswerSender:
    """Publishes a worker's events to its callers."""

    def __init__(self, transport: Transport, settings: CallSettings) -> None:
        self._transport = transport
        self._pause = settings.tick
        self._ids = event_ids()
        self._max_payload = transport.capabilities.max_payload
        self._connected = asyncio.Event()
        self._connected.set()
        self._background = Background()

    def hand_over(self, back: ResultTaker, envelope: ResponseEnvelope[Any]) -> bool:
        """Give a result to a caller in this process as a value; False where it must be sent as a message."""
        result = copied(envelope, self._max_payload)
        if result is None:
            return False
        back.take_result(result, monotonic())
        return True

    async def reply(self, call: ServedCall, payload: Payload) -> None:
        """Send the answer of a call; one that is too large, or no JSON data, becomes a failure that says so."""
        while True:
            try:
                await self._transport.publish(call.reply, write_event(next(self._ids), payload))
            except FormatError as error:
                payload = _failure_instead_of(payload, _no_json(payload, error))
            except PayloadTooLargeError as error:
                too_large = call_failures.payload_too_large(call.operation_id, error, "result")
                payload = _failure_instead_of(payload, too_large)
            except (DisconnectedError, OverloadedError):
                if call.context is None or call.context.cancelled:
                    return
                await self._wait_for_connection(call.context.remaining())
            except TransportError as error:
                _log.warning("The answer of %s could not be sent: %s", call.operation_id, error)
                return
            else:
                return

    async def try_send(self, subject: str, payload: Payload, control: str | None = None) -> None:
        """Publish an event that may get lost without harm."""
        try:
            await self._transport.publish(subject, self.written(payload), reply=control)
        except (TransportError, CallError) as error:
            _log.debug("An event was not sent: %s", error)

    def written(self, payload: Payload) -> bytes:
        try:
            return write_event(next(self._ids), payload)
        except FormatError as error:
            if isinstance(payload, Failed):  # its details are no JSON data
                return write_event(next(self._ids), _without_details(payload))
            raise _no_json(payload, error) from error

    def written_end(self, payload: Completed | Failed) -> bytes:
        """The last event of a stream as bytes; a failure that is too large goes without its details."""
        frame = self.written(payload)
        if isinstance(payload, Failed) and len(frame) > self._transport.capabilities.max_payload:
            return self.written(_without_details(payload))
        return frame

    def begin(self, publishing: Coroutine[Any, Any, None]) -> None:
        """Publish in the background."""
        self._background.begin(publishing)

    def take_signal(self, signal: Signal) -> None:
        if signal is Signal.LOST:
            self._connected.clear()
        elif signal is Signal.RESTORED:
            self._connected.set()

    async def close(self) -> None:
        """Wait a moment for what is being published."""
        await self._background.settle()

    async def _wait_for_connection(self, left: float | None) -> None:
        """Wait for the connection, as long as the caller does.

        It may be gone before the transport has said so: the pause keeps us from trying without end.
        """
        with suppress(TimeoutError):
            await asyncio.wait_for(self._connected.wait(), left)
        await asyncio.sleep(self._pause)


def _failure_instead_of(payload: Payload, error: CallError) -> Failed:
    """The failure to send in place of an answer that cannot be sent."""
    return _without_details(payload) if isinstance(payload, Failed) else failed(payload.request_id, error)


def _without_details(payload: Failed) -> Failed:
    """A failure without its details."""
    return Failed(payload.request_id, payload.code, payload.message, {}, payload.retryable)


def _no_json(payload: Payload, error: FormatError) -> CallError:
    output = payload.output if isinstance(payload, Responded) else None
    return unwritable(output.data if isinstance(output, ResponseEnvelope) else output, error)
