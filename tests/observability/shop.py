"""The shop whose calls the tests of records, metrics and traces observe."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from enfold import CallError, Context, Identity, OperationRegistry

ANN = Identity("ann", frozenset({"shop:write"}))


SURFACES = {
    "direct": "process",
    "http": "http",
    "mcp": "mcp",
    "mcp_session": "mcp",
    "cgi": "cgi",
    "command_line": "shell",
    "calls": "calls",
}


class Row(msgspec.Struct):
    id: int


def shop() -> OperationRegistry:
    ops = OperationRegistry("shop")

    @ops.query
    async def add(x: int, y: int) -> int:
        return x + y

    @ops.query
    async def untidy() -> Row:
        return {"id": "1", "extra": "a secret"}  # type: ignore[return-value]  # what handlers do

    @ops.query
    async def fail() -> None:
        raise CallError("SOLD_OUT", "nothing left")

    @ops.mutation(access={"required_scopes": ["shop:write"]})
    async def write() -> None: ...

    @ops.subscription
    async def count(to: int) -> AsyncIterator[int]:
        for _ in range(to):
            yield ops.services.observers.streams

    @ops.query
    async def outer(context: Context) -> Any:
        return (await context.env.shop.add(x=1, y=2)).data

    @ops.query
    def from_thread(context: Context) -> Any:
        return context.env.shop.add(x=1, y=2).data

    return ops
