"""What workers tell each other of themselves: counts, sources and calls, so that whoever asks one learns of all.

On the wire that is one MessagePack value after another, each with its length before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias

import msgspec

from enfold.workers.processes import Worker

ANSWER_TIMEOUT: Final = 2.0  # seconds that a sibling has to answer
RECONNECT_PAUSE: Final = 0.5  # seconds before a sibling that has died is listened to again
MAX_WAITING: Final = 10_000  # pieces of news for a sibling that reads slowly
MAX_BYTES: Final = 1 << 30  # siblings are ourselves: more can only be a broken stream

WatchNews: TypeAlias = Callable[[Callable[[Any], object]], Callable[[], None]]  # calls back with news until it is ended


class SelfReport(msgspec.Struct, frozen=True):
    """What a worker tells of itself: what it says when it is asked, and what it says by itself, each by its name."""

    answers: dict[str, Callable[[], Any]] = {}
    news: dict[str, WatchNews] = {}


class Siblings:
    """The other workers, as one of them asks them."""

    def __init__(self, worker: Worker) -> None:
        self._paths = [worker.socket_of(number) for number in range(worker.count) if number != worker.number]

    async def ask(self, name: str) -> list[Any]:
        """What each of the others says; one that is away or slow is left out."""
        told = await asyncio.gather(*(_ask(path, name) for path in self._paths), return_exceptions=True)
        return [each for each in told if not isinstance(each, BaseException)]

    async def listen(self, name: str, hear: Callable[[Any], None]) -> None:
        """Be called with the news of all others, until this is cancelled."""
        await asyncio.gather(*(_listen(path, name, hear) for path in self._paths))


async def _ask(path: str, name: str) -> Any:
    async with asyncio.timeout(ANSWER_TIMEOUT):
        reader, writer = await asyncio.open_unix_connection(path)
        try:
            await write_value(writer, {"ask": name})
            return await read_value(reader)
        finally:
            writer.close()


async def _listen(path: str, name: str, hear: Callable[[Any], None]) -> None:
    while True:
        with suppress(OSError, EOFError):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                await write_value(writer, {"listen": name})
                while True:
                    hear(await read_value(reader))
            finally:
                writer.close()
        await asyncio.sleep(RECONNECT_PAUSE)


async def tell_news(watch: WatchNews, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Tell one sibling what happens, until it closes the connection."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[Any] = asyncio.Queue(MAX_WAITING)

    def put(piece: Any) -> None:
        with suppress(asyncio.QueueFull):
            waiting.put_nowait(piece)

    async def write() -> None:
        while True:
            await write_value(writer, await waiting.get())

    unwatch = watch(lambda piece: loop.call_soon_threadsafe(put, piece))  # on whatever thread it happens
    tasks = [asyncio.ensure_future(reader.read(1)), asyncio.ensure_future(write())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        unwatch()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# --- on the wire --------------------------------------------------------------------------------------------------


async def read_value(reader: asyncio.StreamReader) -> Any:
    """The next value; EOFError where the other end is gone."""
    try:
        size = int.from_bytes(await reader.readexactly(4), "big")
        if size > MAX_BYTES:
            raise EOFError("a value of an impossible size")
        return msgspec.msgpack.decode(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise EOFError("the other end is gone") from error


async def write_value(writer: asyncio.StreamWriter, value: Any) -> None:
    data = msgspec.msgpack.encode(value)
    writer.write(len(data).to_bytes(4, "big") + data)
    await writer.drain()
