"""Open resources before the first call and close them after the last, on every surface."""

import asyncio

from enfold import App, OperationRegistry

ops = OperationRegistry("shop")
stock: dict[str, int] = {}


@ops.on_start
async def open_stock() -> None:
    stock["tea"] = 3
    print("opened")


@ops.on_stop
def close_stock() -> None:
    stock.clear()
    print("closed")


@ops.query
async def left(item: str) -> int:
    return stock[item]


async def main() -> None:
    async with App(ops):
        print((await ops.execute("shop.left", {"item": "tea"})).data)


if __name__ == "__main__":
    asyncio.run(main())
