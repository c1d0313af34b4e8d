"""Turn a function into an operation, and call it: the result is an envelope that says where it came from."""

import asyncio

from enfold import CallError, OperationRegistry

ops = OperationRegistry("shop")


@ops.query
def add(x: int, y: int) -> int:
    """Add two numbers.

    Args:
        x: First addend.
        y: Second addend.
    """
    return x + y


async def main() -> None:
    envelope = await ops.execute("shop.add", {"x": 1, "y": "2"})  # text that stands for a number is converted
    print(envelope.data, "from", envelope.meta.source)

    try:
        await ops.execute("shop.add", {"x": 1})
    except CallError as error:
        print(error.code, error.details)


if __name__ == "__main__":
    asyncio.run(main())
