"""A hub in a process of its own: `python -m tests.calls.fault_hub PORT`."""

from __future__ import annotations

import asyncio
import sys

from enfold.calls.websocket import WebSocketHub


async def run(port: int) -> None:
    async with WebSocketHub() as hub:
        await hub.listen(port=port)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run(int(sys.argv[1])))
