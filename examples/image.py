"""Return an image: the file itself over HTTP for callers who ask for it, an image block over MCP."""

import asyncio
import struct
import zlib
from typing import Annotated

from enfold import MediaType, OperationRegistry, testing

ops = OperationRegistry("lab")


@ops.query
def gradient(width: int = 64, height: int = 16) -> Annotated[bytes, MediaType("image/png")]:
    """Draw a gradient from black to white."""
    row = b"\0" + bytes(255 * x // max(width - 1, 1) for x in range(width))
    return png(width, height, row * height)


def png(width: int, height: int, pixels: bytes) -> bytes:
    """Write a greyscale PNG; each row of `pixels` starts with a zero."""
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(pixels)),
        (b"IEND", b""),
    )
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


async def main() -> None:
    async with testing.http(ops) as client:
        answer = await client.request("GET", "/functions/lab.gradient", headers={"accept": "image/*"}).began()
        content = await answer.body()
        print(answer.status, answer.headers["content-type"], content[:4])

    async with testing.mcp(ops) as client:
        result = await client.ask("tools/call", {"name": "lab.gradient", "arguments": {"width": 8}})
        (block,) = result["content"]
        print(block["type"], block["mimeType"], block["data"][:12])


if __name__ == "__main__":
    asyncio.run(main())
