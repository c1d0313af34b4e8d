"""Test your operations on several surfaces, without a server."""

import asyncio

from enfold import Identity, OperationRegistry, testing

ops = OperationRegistry("shop")
KEEPER = Identity("ann", frozenset({"stock:write"}))


@ops.query
def add(x: int, y: int) -> int:
    return x + y


@ops.mutation(access={"required_scopes": ["stock:write"]})
def restock(item: str) -> str:
    return f"more {item}"


async def main() -> None:
    for surface in ("direct", "http", "mcp", "cgi", "command_line", "calls"):
        async with testing.open_client(surface, ops) as client:
            good = await client.call("shop.add", {"x": 1, "y": 2})
            bad = await client.call("shop.add", {"x": 1})
            kept = await client.call("shop.restock", {"item": "tea"}, identity=KEEPER)
            denied = await client.call("shop.restock", {"item": "tea"})
            print(f"{surface}: {good.data}, {bad.code} of {bad.details['argument']}, {kept.data}, {denied.code}")


if __name__ == "__main__":
    asyncio.run(main())
