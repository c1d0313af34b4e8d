"""Malformed frames from a malicious peer, reproducible by seed: `python -m tests.calls.noise ADDRESS COUNT RATE`."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

from tests.calls.fault_worker import connect

from enfold.calls.protocol.events import Aborted, Requested, write_event
from enfold.calls.protocol.transport import Transport
from enfold.calls.transports.frames import SUBPROTOCOL, Frame, Op, write_frame
from enfold.operations import new_request_id

AT_ONCE = 4  # frames between two looks at the clock


async def run(address: str, count: int, rate: float) -> None:
    async with asyncio.timeout(count / rate + 60):
        transport = connect(address, "noise")
        await transport.connect()
        shouting = make_noise(transport, count, rate)
        if address.startswith("ws"):
            await asyncio.gather(shouting, noise_on_the_wire(address, count // 10, rate / 10))
        else:
            await shouting
        await asyncio.sleep(0.5)  # what was sent is still to leave
        await transport.close()


async def make_noise(transport: Transport, count: int, rate: float) -> None:
    """Requests and what callers say of their calls, each with some bytes changed."""
    chance = random.Random(15)  # noqa: S311  # the same noise each time
    request_id = new_request_id()
    request = write_event("e", Requested(request_id, "work.add", {"x": 1, "y": 2}, 1000))
    abort = write_event("e", Aborted(request_id))

    async def send() -> None:
        if chance.random() < 0.9:
            reply = f"{transport.inbox()}.{new_request_id()}"
            await transport.publish(f"op.{transport.name}.work.add", _changed(request, chance), reply=reply)
        else:
            await transport.publish(f"ctl.worker.{chance.randrange(9)}.{request_id}", _changed(abort, chance))

    async for _ in _numbers(count, rate):
        await send()


async def noise_on_the_wire(url: str, count: int, rate: float) -> None:
    """Frames of the hub's own language, with some bytes changed."""
    from websockets.asyncio.client import connect as open_connection

    chance = random.Random(16)  # noqa: S311  # as above
    frames = [write_frame(Frame(op, 1, "op.anonymous-x.work.add", None, "_INBOX.x.y.z"), b"data") for op in Op]
    async with open_connection(url, subprotocols=[SUBPROTOCOL], compression=None) as connection:  # type: ignore[list-item]  # a NewType of str
        answers = asyncio.create_task(_drain(connection))
        async for _ in _numbers(count, rate):
            await connection.send(_changed(chance.choice(frames), chance))
        answers.cancel()


async def _drain(connection: AsyncIterable[Any]) -> None:
    """Read what the hub answers; a client that never reads is disconnected, which another test covers."""
    async for _ in connection:
        pass


def _changed(good: bytes, chance: random.Random) -> bytes:
    noise = bytearray(good)
    for _ in range(chance.randrange(1, 8)):
        noise[chance.randrange(len(noise))] = chance.randrange(256)
    return bytes(noise[: chance.randrange(len(noise))] if chance.random() < 0.1 else noise)


async def _numbers(count: int, rate: float) -> AsyncIterator[int]:
    """Numbers at a rate, in small bursts."""
    began = time.monotonic()
    for number in range(count):
        if number % AT_ONCE == 0:
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
        yield number


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
