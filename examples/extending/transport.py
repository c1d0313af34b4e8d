"""A custom transport: the call protocol over any pair of byte streams, here a Unix socket."""

import asyncio
import base64
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from enfold import Identity, OperationRegistry
from enfold.calls.protocol.transport import (
    Capabilities,
    DisconnectedError,
    Message,
    PayloadTooLargeError,
    Receive,
    Signal,
    inbox_of,
    new_boot,
)
from enfold.calls.transports.addresses import SCHEMES, AddressOptions, open_transport
from enfold.calls.transports.memory import Listener, Router
from enfold.sources.calls import from_calls
from enfold.surfaces.calls import serve_calls

ops = OperationRegistry("shop")

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@ops.query
def add(x: int, y: int) -> int:
    return x + y


class CableTransport:
    """One end of a connection between two peers. A message is a line of JSON."""

    # A byte stream cannot report that the other end has no listener: callers wait until their deadline.
    capabilities = Capabilities(max_payload=32_000, no_responders=False)

    def __init__(self, name: str, open_streams: Callable[[], Any], peer: Identity | None = None) -> None:
        """`open_streams` returns a reader and a writer; `peer` is the identity of the other end."""
        self.name = name
        self._peer = peer
        self._open_streams = open_streams
        self._router = Router()
        self._inbox = inbox_of(name, new_boot())
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()

    async def connect(self) -> None:
        async with self._connecting:
            if self._reading is None:
                reader, self._writer = await self._open_streams()
                self._reading = asyncio.create_task(self._read(reader))

    def inbox(self) -> str:
        return self._inbox

    async def publish(
        self, subject: str, data: bytes, *, reply: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        if self._writer is None or self._writer.is_closing():
            raise DisconnectedError
        if len(data) > self.capabilities.max_payload:
            raise PayloadTooLargeError(len(data), self.capabilities.max_payload)
        message = [subject, base64.b64encode(data).decode(), reply, headers and dict(headers), self.name]
        self._writer.write(json.dumps(message).encode() + b"\n")

    send = publish  # there is one peer: one of all is the same as all

    async def subscribe(self, subject: str, receive: Receive, *, queue: str | None = None) -> "CableSubscription":
        listener = Listener(subject, receive, queue, self)
        self._router.add(listener)
        return CableSubscription(self._router, listener)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            subject, data, reply, headers, name = json.loads(line)
            self._router.route(Message(subject, base64.b64decode(data), reply, headers, name, self._peer))
        self._router.route(Message(self._inbox, signal=Signal.LOST))

    async def close(self) -> None:
        if self._writer is not None and self._reading is not None:
            self._writer.close()
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)


class CableSubscription:
    def __init__(self, router: Router, listener: Listener) -> None:
        self._router = router
        self._listener = listener

    async def close(self, *, drain: bool = False) -> None:
        del drain  # what has arrived has been received already
        self._router.remove(self._listener)


def open_unix(address: str, asked: AddressOptions, /, **options: Any) -> CableTransport:
    path = address.removeprefix("unix://")
    return CableTransport(asked.name or "caller", lambda: asyncio.open_unix_connection(path))


SCHEMES["unix"] = open_unix  # from now on `unix://…` is an address of peers, for every command and for from_calls


async def main() -> None:
    arrived: asyncio.Future[Streams] = asyncio.get_running_loop().create_future()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "shop.sock")
        server = await asyncio.start_unix_server(lambda *streams: arrived.set_result(streams), path)
        caller = open_transport(f"unix://{path}")
        await caller.connect()
        worker = CableTransport("worker", lambda: arrived, Identity("caller"))
        await worker.connect()
        async with serve_calls(ops, worker), from_calls(caller) as operations:
            here = OperationRegistry()
            here.register_all(operations)
            print([spec.id for spec in here.list()], (await here.execute("shop.add", {"x": 1, "y": 2})).data)
        await caller.close()
        await worker.close()
        server.close()


if __name__ == "__main__":
    asyncio.run(main())
