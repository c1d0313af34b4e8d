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

PATIENCE: Final = 2.0  # seconds that a sibling may take to say something of itself
AGAIN: Final = 0.5  # seconds before a sibling that has died is listened to again
MOST_WAITING: Final = 10_000  # pieces of news for a sibling that reads slowly
LARGEST: Final = 1 << 30  # siblings are ourselves: this only tells a broken stream

Answer: TypeAlias = Callable[[], Any]
WatchNews: TypeAlias = Callable[[Callable[[Any], None]], Callable[[], None]]  # calls back with news until it is ended


class SelfReport(msgspec.Struct, frozen=True):
    """What a worker tells of itself: what it says when it is asked, and what it says by itself, each by its name."""

    answers: dict[str, Answer] = {}
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
    async with asyncio.timeout(PATIENCE):
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
        await asyncio.sleep(AGAIN)


class News:
    """Tells one sibling what happens, until it has heard enough."""

    def __init__(self, watch: WatchNews, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._watch = watch
        self._reader = reader
        self._writer = writer

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        waiting: asyncio.Queue[Any] = asyncio.Queue()

        def put(piece: Any) -> None:
            if waiting.qsize() < MOST_WAITING:
                waiting.put_nowait(piece)

        def hear(piece: Any) -> None:  # on whatever thread it happens
            loop.call_soon_threadsafe(put, piece)

        end = self._watch(hear)
        gone = asyncio.ensure_future(self._reader.read(1))
        telling = asyncio.ensure_future(self._write_news(waiting))
        try:
            await asyncio.wait({gone, telling}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            end()
            for task in (gone, telling):
                task.cancel()
            await asyncio.gather(gone, telling, return_exceptions=True)

    async def _write_news(self, waiting: asyncio.Queue[Any]) -> None:
        while True:
            await write_value(self._writer, await waiting.get())


# --- on the wire --------------------------------------------------------------------------------------------------


async def read_value(reader: asyncio.StreamReader) -> Any:
    """The next value; EOFError where the other end is gone."""
    try:
        size = int.from_bytes(await reader.readexactly(4), "big")
        if size > LARGEST:
            raise EOFError("a value of an impossible size")
        return msgspec.msgpack.decode(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise EOFError("the other end is gone") from error


async def write_value(writer: asyncio.StreamWriter, value: Any) -> None:
    data = msgspec.msgpack.encode(value)
    writer.write(len(data).to_bytes(4, "big") + data)
    await writer.drain()
