"""What workers say to each other: one MessagePack value after another, each with its length before it."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

__all__ = ["read_frame", "write_frame"]

LARGEST: Final = 1 << 30  # siblings are ourselves: this only tells a broken stream


async def read_frame(reader: asyncio.StreamReader) -> Any:
    """The next value; EOFError where the other end is gone."""
    try:
        size = int.from_bytes(await reader.readexactly(4), "big")
        if size > LARGEST:
            raise EOFError("a frame of an impossible size")
        return msgspec.msgpack.decode(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise EOFError("the other end is gone") from error


async def write_frame(writer: asyncio.StreamWriter, value: Any) -> None:
    data = msgspec.msgpack.encode(value)
    writer.write(len(data).to_bytes(4, "big") + data)
    await writer.drain()
