"""Operations call each other through `context.env`, which passes on the identity and the remaining time."""

import asyncio

from enfold import Context, Identity, OperationRegistry

ops = OperationRegistry("shop")


@ops.query
async def price(item: str) -> float:
    return {"tea": 3.5, "cake": 4.0}[item]


@ops.query(timeout=5)
async def total(items: list[str], context: Context) -> float:
    prices: list[float] = [(await context.env.shop.price({"item": item})).data for item in items]
    return sum(prices)


@ops.query
async def who(context: Context) -> str:
    return context.identity.id if context.identity else "anonymous"


async def main() -> None:
    print((await ops.execute("shop.total", {"items": ["tea", "cake"]})).data)
    print((await ops.execute("shop.who", {}, Context(identity=Identity("ann")))).data)


if __name__ == "__main__":
    asyncio.run(main())
