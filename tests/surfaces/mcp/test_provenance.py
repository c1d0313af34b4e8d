"""Provenance over MCP: asked for in `_meta`, given in `_meta`, and only where the operator allows it."""

from typing import Any

from tests.serving import Client, serve

from enfold import OperationRegistry
from enfold.provenance import Recorder, verify
from enfold.surfaces.mcp.http import to_mcp


def ops() -> OperationRegistry:
    registry = OperationRegistry("shop")

    @registry.query
    async def add(x: int, y: int) -> int:
        return x + y

    return registry


def call(client: Client, **meta: Any) -> dict[str, Any]:
    params = {"name": "shop_add", "arguments": {"x": 1, "y": 2}, "_meta": meta}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    answer = client.post("/", body, Accept="application/json, text/event-stream")
    result: dict[str, Any] = answer.json["result"]
    return result


def test_a_record_comes_with_the_result_when_it_is_asked_for_and_allowed() -> None:
    with serve(to_mcp(ops(), recorder=Recorder())) as client:
        plain = call(client)
        asked = call(client, capture_provenance=True, provenance_mode="full")
    record = asked["_meta"]["enfold/provenance"]
    assert verify(record).ok
    assert (record["tool"]["name"], record["tool"]["adapter"]) == ("shop.add", "mcp")
    assert asked["content"] == plain["content"] == [{"type": "text", "text": '{"result":3}'}]
    assert "enfold/provenance" not in plain.get("_meta", {})


def test_a_server_that_does_not_allow_it_records_nothing() -> None:
    with serve(to_mcp(ops())) as client:
        assert "enfold/provenance" not in call(client, capture_provenance=True).get("_meta", {})


def test_a_run_recorded_by_default_returns_its_id_without_the_record() -> None:
    with serve(to_mcp(ops(), recorder=Recorder(record="all"))) as client:
        meta = call(client)["_meta"]
    assert "enfold/provenance" not in meta
    assert len(meta["enfold/runId"]) == 36
