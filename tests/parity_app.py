"""The operations that `test_parity` calls on every surface; a file of its own, because some surfaces are programs."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from enfold import CallError, Context, OperationRegistry

ops = OperationRegistry("parity")


@ops.query
def add(x: int, y: int) -> int:
    return x + y


@ops.query
async def echo(text: str) -> str:
    return text


@ops.query
async def total(prices: list[float], fees: dict[str, float]) -> dict[str, float]:
    return {"prices": sum(prices), "fees": sum(fees.values())}


@ops.query
def divide(x: int, y: int) -> tuple[int, int]:
    return x // y, x % y


@ops.query
async def maybe() -> int | None:
    return None


@ops.mutation
async def forget() -> None: ...


@ops.mutation(access={"required_scopes": ["parity"]})
async def guarded(context: Context) -> str:
    assert context.identity is not None
    return context.identity.id


@ops.query(error_schemas=[{"code": "SOLD_OUT", "description": "Nothing left", "http_status": 409}])
async def sell(left: int) -> Any:
    raise CallError("SOLD_OUT", "Nothing left", {"left": left})


@ops.query(timeout=0.05)
async def slow() -> None:
    await asyncio.sleep(30)


@ops.subscription
async def count(to: int, fail_at: int | None = None) -> AsyncIterator[int]:
    for number in range(to):
        if number == fail_at:
            raise CallError("DATA_LOSS", "A number is missing")
        yield number
