"""Enfold behind Enfold over MCP: values arrive unchanged, and a caller's `_meta` reaches the last server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from tests.gateway.conftest import serve
from tests.gateway.puppets import stdio_puppet

from enfold import OperationRegistry
from enfold.envelope.content import TextContent
from enfold.mcp.json_rpc import passed_meta
from enfold.sources.mcp import Connection, from_mcp
from enfold.surfaces.http import to_http
from enfold.surfaces.mcp import to_mcp
from mcp import Client

shop = OperationRegistry("shop")


@shop.query()
def price(name: str) -> float:
    return len(name) / 2


@shop.query()
def basket() -> dict[str, int]:
    return {"result": 1, "apples": 3}


@shop.query()
def both() -> tuple[int, str]:
    return 1, "one"


@shop.mutation()
def clear() -> None:
    """Nothing to say."""


@shop.query()
def words() -> TextContent:
    return TextContent(text='{"result": 5}')


@shop.subscription()
async def count() -> AsyncIterator[int]:
    for number in range(3):
        yield number


@asynccontextmanager
async def behind(registry: OperationRegistry, protocol: str) -> AsyncIterator[OperationRegistry]:
    """The operations of a registry as another process would get them over MCP."""
    app = to_mcp(registry)
    async with (
        serve(app, app.stop) as url,
        from_mcp(f"{url}/mcp", namespace="far", connection=Connection(protocol=protocol)) as operations,
    ):
        far = OperationRegistry()
        far.register_all(operations)
        yield far


@pytest.mark.parametrize("protocol", ["2025-11-25", "2026-07-28"])
async def test_values_arrive_as_they_were_given_through_two_processes(protocol: str) -> None:
    async with behind(shop, protocol) as far, behind(far, protocol) as farther:
        assert (await far.execute("far.shop_price", {"name": "pear"})).data == 2.0
        assert (await farther.execute("far.far_shop_price", {"name": "pear"})).data == 2.0
        assert (await farther.execute("far.far_shop_basket", {})).data == {"result": 1, "apples": 3}
        assert (await farther.execute("far.far_shop_both", {})).data == [1, "one"]
        assert (await farther.execute("far.far_shop_clear", {})).data is None
        assert (await farther.execute("far.far_shop_count", {})).data == [0, 1, 2]
        assert (await farther.execute("far.far_shop_words", {})).data == [{"type": "text", "text": '{"result": 5}'}]
        spec = farther.get("far.far_shop_price").spec
    assert spec.output_schema["type"] == "number"


async def test_over_http_a_value_is_wrapped_once() -> None:
    async with behind(shop, "2026-07-28") as far:
        app = to_http(far)
        async with serve(app, app.stop) as url, httpx2.AsyncClient(base_url=url) as client:
            answer = await client.post("/functions/far.shop_price", json={"name": "pear"})
    assert answer.json() == {"result": 2.0}


def test_keys_of_the_protocol_and_of_ours_stay_between_two() -> None:
    passed = {
        "traceparent": "00-1",
        "baggage": "a=b",
        "example.org/tenant": 7,
        "mine": {"a": [1]},
        "mcp/x": 1,
        "a/b": 2,
    }
    kept_back: dict[str, Any] = {
        "progressToken": 1,
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "com.mcp.tools/x": 1,
        "enfold/format": "envelope",
        "enfold.example/x": 1,
        "capture_provenance": True,
        "provenance_mode": "full",
    }
    assert passed_meta({**kept_back, **passed}) == passed


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.parametrize("server", ["2025-11-25", "2026-07-28"])
async def test_a_callers_meta_reaches_the_server(mode: Any, server: str) -> None:
    registry = OperationRegistry()
    meta: Any = {
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "example.org/tenant": {"id": 7},
    }
    sent: Any = {**meta, "enfold/format": "envelope"}
    async with (
        stdio_puppet(server) as puppet,
        from_mcp(puppet.target, namespace="bank", connection=Connection(protocol=server)) as operations,
    ):
        registry.register_all(operations)
        app = to_mcp(registry)
        async with serve(app, app.stop) as url, Client(f"{url}/mcp", mode=mode) as client:
            calling = asyncio.create_task(client.call_tool("bank_nap", {}, meta=sent))
            nap = await puppet.call_of("nap")
            puppet.answer(nap)
            await calling
    told = nap["params"]["_meta"]
    assert {key: told[key] for key in meta} == meta
    assert "enfold/format" not in told
