"""Stream results from a subscription: each item of an async generator arrives in an envelope."""

import asyncio
from collections.abc import AsyncIterator

from enfold import Context, OperationRegistry

ops = OperationRegistry("clock")


@ops.subscription(resumable=True)
async def count(to: int, context: Context) -> AsyncIterator[int]:
    """Count up. A client that reconnects continues after the last number it received."""
    for number in range(int(context.last_event_id or 0) + 1, to + 1):
        context.event_id = str(number)
        yield number


async def main() -> None:
    async for envelope in ops.subscribe("clock.count", {"to": 3}, Context(last_event_id="1")):
        print(envelope.data)


if __name__ == "__main__":
    asyncio.run(main())
