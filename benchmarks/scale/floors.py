"""What a call is compared with: the same text over the same cluster with nats-py alone, with JetStream alone, and with FastStream.

`python -m benchmarks.scale.floors respond NAME SERVERS` answers requests; `… ask NAME SERVERS SIZE SECONDS` sends them and
prints how many were answered.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import msgspec

from enfold.calls import PendingRequestMap
from enfold.calls.nats import NATSTransport

RAW: Final = "nats-py request and reply"
CALL: Final = "Enfold call without an edge"
FASTSTREAM: Final = "FastStream request and reply"
PUBLISH: Final = "JetStream publish, 3 replicas"
SUBJECT: Final = "floor.echo"
STREAM: Final = "floor"
IN_FLIGHT: Final = 16

Ask = Callable[[str], Awaitable[Any]]


def floors() -> tuple[str, ...]:
    """Those that can run here."""
    return (RAW, *((FASTSTREAM,) if find_spec("faststream") else ()), CALL, PUBLISH)


# --- who answers --------------------------------------------------------------------------------------------------


async def _respond_raw(servers: list[str]) -> None:
    import nats

    client = await nats.connect(servers)

    async def echo(message: Any) -> None:
        await message.respond(msgspec.json.encode(msgspec.json.decode(message.data)["text"]))

    await client.subscribe(SUBJECT, queue="workers", cb=echo)


async def _respond_faststream(servers: list[str]) -> None:
    broker = import_module("faststream.nats").NatsBroker(servers, logger=None)

    async def echo(body: dict[str, str]) -> str:
        return body["text"]

    broker.subscriber(f"{SUBJECT}.faststream", queue="workers")(echo)
    await broker.start()


async def _store(servers: list[str]) -> None:
    import nats

    client = await nats.connect(servers)
    await client.jetstream().add_stream(name=STREAM, subjects=[f"{STREAM}.>"], num_replicas=3, max_bytes=1 << 29)


RESPONDERS: Final[dict[str, Callable[[list[str]], Awaitable[None]]]] = {
    RAW: _respond_raw,
    FASTSTREAM: _respond_faststream,
    PUBLISH: _store,
}


async def _respond(name: str, servers: list[str]) -> None:
    await RESPONDERS[name](servers)
    print("ready", flush=True)
    await asyncio.Event().wait()


# --- who asks -----------------------------------------------------------------------------------------------------


async def _ask_raw(servers: list[str]) -> Ask:
    import nats

    client = await nats.connect(servers)

    async def ask(text: str) -> Any:
        reply = await client.request(SUBJECT, msgspec.json.encode({"text": text}), timeout=30)
        return msgspec.json.decode(reply.data)

    return ask


async def _ask_faststream(servers: list[str]) -> Ask:
    broker = import_module("faststream.nats").NatsBroker(servers, logger=None)
    await broker.start()

    async def ask(text: str) -> Any:
        reply = await broker.request({"text": text}, f"{SUBJECT}.faststream", timeout=30)
        return await reply.decode()

    return ask


async def _ask_call(servers: list[str]) -> Ask:
    pending = PendingRequestMap(NATSTransport(servers, name="caller"))

    async def ask(text: str) -> Any:
        return (await pending.call("scale.query", {"text": text})).data

    return ask


async def _publish(servers: list[str]) -> Ask:
    import nats

    stream = (await nats.connect(servers)).jetstream()

    async def ask(text: str) -> Any:
        await stream.publish(f"{STREAM}.x", msgspec.json.encode({"text": text}), timeout=30)
        return text

    return ask


ASKERS: Final[dict[str, Callable[[list[str]], Awaitable[Ask]]]] = {
    RAW: _ask_raw,
    FASTSTREAM: _ask_faststream,
    CALL: _ask_call,
    PUBLISH: _publish,
}


async def _count(name: str, servers: list[str], size: int, seconds: float) -> None:
    """Keep calls in flight; print how many there were and the CPU time of this process for them."""
    ask, text, count = await ASKERS[name](servers), "x" * size, 0
    if await ask(text) != text:
        raise ValueError(f"{name} gives another text")
    cpu, ends_at = time.process_time(), time.monotonic() + seconds

    async def one_after_another() -> None:
        nonlocal count
        while time.monotonic() < ends_at:
            await ask(text)
            count += 1

    await asyncio.gather(*(one_after_another() for _ in range(IN_FLIGHT)))
    print(msgspec.json.encode((count, time.process_time() - cpu)).decode(), flush=True)


def main(verb: str, name: str, servers: str, *more: str) -> None:
    if verb == "respond":
        asyncio.run(_respond(name, servers.split(",")))
    else:
        asyncio.run(_count(name, servers.split(","), int(more[0]), float(more[1])))


if __name__ == "__main__":
    main(*sys.argv[1:])
