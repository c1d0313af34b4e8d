"""Observe calls: an observer is a function that receives a record of every finished call."""

import asyncio
import contextlib

from enfold import CallError, Context, OperationRegistry
from enfold.observability import CallRecord

ops = OperationRegistry("shop")


@ops.query
async def price(item: str) -> float:
    if item != "tea":
        raise CallError("SOLD_OUT", f"There is no {item}")
    return 3.5


@ops.query
async def total(item: str, count: int, context: Context) -> float:
    found = await context.env.shop.price(item=item)
    return float(found.data * count)


def show(record: CallRecord) -> None:
    inside = " (inside another call)" if record.parent_request_id else ""
    print(f"{record.operation} {record.code}{inside}")


async def main() -> None:
    end = ops.observe(show)
    await ops.execute("shop.total", {"item": "tea", "count": 2})
    with contextlib.suppress(CallError):
        await ops.execute("shop.price", {"item": "salt"})
    end()


if __name__ == "__main__":
    asyncio.run(main())
