"""A transport that loses, delays, duplicates and reorders messages and cuts connections, reproducibly by seed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeAlias

import msgspec

from enfold.calls.protocol.transport import (
    Capabilities,
    DisconnectedError,
    Message,
    Receive,
    Signal,
    Subscription,
    Transport,
    TransportError,
)

_Send: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class Faults(msgspec.Struct, frozen=True):
    """How likely each fault is for one message, from 0 to 1, and how long things take, in seconds."""

    drop: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    reorder: float = 0.0  # the message waits for the next one and goes after it
    cut: float = 0.0  # the connection breaks
    longest_delay: float = 0.05
    cut_for: float = 0.05


class FaultyTransport:
    """Wraps any transport; what is sent through it meets the faults, what is received does not."""

    def __init__(self, inner: Transport, faults: Faults, seed: int) -> None:
        self.name = inner.name
        self.capabilities = _carrying_text(inner.capabilities)
        self.faults = faults
        self.sent = 0
        self.lost = 0
        self._inner = inner
        self._random = random.Random(seed)  # noqa: S311  # the same faults each time are the point
        self._is_cut = False
        self._held: _Send | None = None
        self._receivers: list[Receive] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def connect(self) -> None:
        await self._inner.connect()
        self.name, self.capabilities = self._inner.name, _carrying_text(self._inner.capabilities)

    def inbox(self) -> str:
        return self._inner.inbox()

    async def publish(
        self, subject: str, data: bytes, *, reply: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        await self._through(lambda: self._inner.publish(subject, data, reply=reply, headers=headers))

    async def send(
        self, subject: str, data: bytes, *, reply: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        await self._through(lambda: self._inner.send(subject, data, reply=reply, headers=headers))

    async def subscribe(self, subject: str, receive: Receive, *, queue: str | None = None) -> Subscription:
        def unless_cut(message: Message) -> None:
            if not self._is_cut:
                receive(message)

        self._receivers.append(receive)
        return await self._inner.subscribe(subject, unless_cut, queue=queue)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await self._inner.close()

    def cut(self) -> None:
        """Break the connection: nothing goes out, nothing comes in."""
        if not self._is_cut:
            self._is_cut = True
            self._signal(Signal.LOST)

    def mend(self) -> None:
        if self._is_cut:
            self._is_cut = False
            self._signal(Signal.RESTORED)

    async def _through(self, send: _Send) -> None:
        self.sent += 1
        if self._is_cut:
            raise DisconnectedError
        faults = self.faults
        if self._happens(faults.cut):
            self.cut()
            asyncio.get_running_loop().call_later(faults.cut_for, self.mend)
            raise DisconnectedError(sent=True)
        if self._happens(faults.drop):
            self.lost += 1
            return
        held, self._held = self._held, None
        if held is None and self._happens(faults.reorder):
            self._held = send
            self._later(faults.longest_delay, self._release)
            return
        await self._go(send)
        if held is not None:
            await self._go(held)

    async def _go(self, send: _Send) -> None:
        copies = 2 if self._happens(self.faults.duplicate) else 1
        for _ in range(copies):
            if self._happens(self.faults.delay):
                self._later(self._random.uniform(0, self.faults.longest_delay), send)
            else:
                await send()

    async def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            await held()

    def _later(self, pause: float, send: _Send) -> None:
        async def wait_and_send() -> None:
            await asyncio.sleep(pause)
            try:
                if not self._is_cut:
                    await send()
            except TransportError:
                return

        task = asyncio.get_running_loop().create_task(wait_and_send())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _happens(self, probability: float) -> bool:
        return probability > 0 and self._random.random() < probability

    def _signal(self, signal: Signal) -> None:
        for receive in list(self._receivers):
            receive(Message("", signal=signal))


def _carrying_text(capabilities: Capabilities) -> Capabilities:
    """What happens to messages must happen to all of them: nothing goes past them as a value, or by another client."""
    return msgspec.structs.replace(capabilities, keeps_state=False)
