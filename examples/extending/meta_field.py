"""A custom meta field: return the cost of a result beside its data, on every surface."""

import asyncio
from typing import Any, TypeVar

from enfold import MCPResponseMeta, OperationRegistry, ResponseEnvelope, TextContent, mcp_envelope, testing

T = TypeVar("T")

ops = OperationRegistry("shop")
COST = "example.org/cost"  # a prefix that is yours keeps the name apart from others


def with_cost(data: T, cost: float) -> ResponseEnvelope[T]:
    """Return a result with its cost. `_meta` is open for custom fields; the other fields of `meta` are fixed."""
    return mcp_envelope(data, content=[TextContent(str(data))], structured_content=data, _meta={COST: cost})


def cost_of(envelope: ResponseEnvelope[Any]) -> float | None:
    meta = envelope.meta
    return meta._meta.get(COST) if isinstance(meta, MCPResponseMeta) and isinstance(meta._meta, dict) else None


@ops.query
def quote(item: str) -> dict[str, str]:
    return with_cost({"item": item, "price": "3.50"}, 0.002)  # type: ignore[return-value]  # wrapped, as handlers may


async def main() -> None:
    for surface in ("direct", "http", "mcp", "cgi", "calls"):
        async with testing.open_client(surface, ops) as client:
            reply = await client.call("shop.quote", {"item": "tea"})
            assert reply.envelope is not None
            print(f"{surface}: {reply.data} cost {cost_of(reply.envelope)}")


if __name__ == "__main__":
    asyncio.run(main())
