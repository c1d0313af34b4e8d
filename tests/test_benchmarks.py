"""The parts of the benchmarks that could measure the wrong thing."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from benchmarks.http_load import Post, ask, ask_often


class Growing:
    """A server whose answers differ in length, in their heads and in their bodies, and come in pieces."""

    def __init__(self) -> None:
        self.answered = 0
        self._numbers = itertools.count(1)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while b"Content-Length: 2" in await reader.read(1000):
            number = next(self._numbers)
            body = b"x" * (number * 7 % 50)
            answer = f"HTTP/1.1 200 OK\r\nx-request-id: {10 ** (number % 9)}\r\ncontent-length: {len(body)}\r\n\r\n"
            for piece in (answer[:20], answer[20:]):
                writer.write(piece.encode())
                await writer.drain()
            writer.write(body)
            self.answered += 1


Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[int]:
    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer(reader, writer)
        writer.close()
        await writer.wait_closed()

    taken: list[asyncio.Task[None]] = []
    server = await asyncio.start_server(
        lambda reader, writer: taken.append(asyncio.create_task(take(reader, writer))), "127.0.0.1", 0
    )
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.gather(*taken)


async def test_every_answer_of_a_load_may_have_its_own_length() -> None:
    growing = Growing()
    async with serving(growing.answer) as port:
        await ask_often(Post(port, "/add", b"{}"), 200)
    assert growing.answered == 200


async def test_a_load_stops_at_an_answer_that_is_not_a_success() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 500 Oh\r\ncontent-length: 2\r\n\r\nno")

    async with serving(refuse) as port:
        with pytest.raises(ConnectionError, match="500 Oh"):
            await ask_often(Post(port, "/add", b"{}"), 3)


async def test_one_answer_is_read_to_its_end() -> None:
    growing = Growing()
    async with serving(growing.answer) as port:
        assert await ask(Post(port, "/add", b"{}")) == b"x" * 7
