"""Middleware: a timing header, a retry, a cache, a tenant check and a redaction of results, each in a few lines."""

import asyncio
import time
from typing import Any

from enfold import Call, CallError, Identity, Next, OperationRegistry, Outcome, ResponseEnvelope
from enfold.testing import open_client

ops = OperationRegistry("shop")


@ops.middleware
async def timing(call: Call, next: Next) -> Outcome:
    """Send the duration of the call to HTTP clients."""
    began = time.perf_counter()
    try:
        return await next(call)
    finally:
        milliseconds = (time.perf_counter() - began) * 1000
        call.context.set_header("Server-Timing", f"call;dur={milliseconds:.1f}")


@ops.middleware
async def same_tenant(call: Call, next: Next) -> Outcome:
    """Refuse callers of another tenant before the handler runs."""
    tenant = call.input.get("tenant")
    if tenant is not None and call.identity is not None and tenant not in call.identity.scopes:
        raise CallError("ACCESS_DENIED", f"{call.identity.id} does not belong to {tenant}")
    return await next(call)


async def retry(call: Call, next: Next) -> Outcome:
    """Try up to three times, if the error says that a retry is safe."""
    for _ in range(2):
        try:
            return await next(call)
        except CallError as error:
            if not error.retryable:
                raise
    return await next(call)


class Cache:
    """Return the stored result of a repeated query."""

    def __init__(self) -> None:
        self._known: dict[str, ResponseEnvelope[Any]] = {}

    async def __call__(self, call: Call, next: Next) -> Outcome:
        key = repr((sorted(call.input.items()), call.select))  # the result has only the selected fields
        if key in self._known:
            return self._known[key]
        outcome = await next(call)
        if isinstance(outcome, ResponseEnvelope):
            self._known[key] = outcome
        return outcome


async def without_cards(call: Call, next: Next) -> Outcome:
    """Leave card numbers out of every result."""
    outcome = await next(call)
    if isinstance(outcome, ResponseEnvelope):
        return outcome.replace(data={**outcome.data, "card": "****"})
    return outcome  # a question to the caller


attempts = {"stock": 0, "price": 0}


@ops.query(middleware=[retry])
async def stock(item: str) -> int:
    attempts["stock"] += 1
    if attempts["stock"] < 3:
        raise CallError("UNAVAILABLE", "The warehouse does not answer", retryable=True)
    return 12


@ops.query(middleware=[Cache()])
async def price(item: str) -> float:
    attempts["price"] += 1
    return 3.5


@ops.query(middleware=[without_cards])
async def order(number: int, tenant: str = "north") -> dict[str, str | int]:
    return {"number": number, "tenant": tenant, "card": "4111 1111 1111 1111"}


async def main() -> None:
    print("stock", (await ops.execute("shop.stock", {"item": "tea"})).data, "after", attempts["stock"], "attempts")
    for _ in range(2):
        await ops.execute("shop.price", {"item": "tea"})
    print("price was asked for twice and looked up", attempts["price"], "time")
    ann = Identity("ann", frozenset({"north"}))
    async with open_client("http", ops) as client:
        reply = await client.call("shop.order", {"number": 7}, identity=ann)
        print(reply.data, "with the header", reply.headers["server-timing"].partition("=")[0])
        refused = await client.call("shop.order", {"number": 7, "tenant": "south"}, identity=ann)
        print(refused.status, refused.message)


if __name__ == "__main__":
    asyncio.run(main())
