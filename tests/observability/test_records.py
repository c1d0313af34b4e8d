"""Observers receive each finished call once, from every surface, and each refused request."""

from __future__ import annotations

import asyncio

import pytest
from tests.observability.shop import ANN, SURFACES, shop

from enfold import OperationRegistry, testing
from enfold.auth.tokens import Tokens
from enfold.observability import CallRecord
from enfold.surfaces.http import HTTPSettings, to_http
from enfold.surfaces.mcp import to_mcp


def watched(ops: OperationRegistry) -> list[CallRecord]:
    seen: list[CallRecord] = []
    ops.observe(seen.append)
    return seen


@pytest.mark.parametrize("surface", SURFACES)
async def test_each_call_is_recorded_once_with_its_code_and_never_its_values(surface: str) -> None:
    ops = shop()
    seen = watched(ops)
    async with testing.open_client(surface, ops) as client:
        await client.call("shop.add", {"x": 123456, "y": 1})
        await client.call("shop.untidy", {})
        await client.call("shop.fail", {})
        await client.call("shop.add", {"x": "abc"})
        await client.call("shop.write", {}, identity=ANN)
        await client.call("shop.nowhere", {})
    facts = [(each.surface, each.operation, each.code, each.warnings) for each in seen]
    expected = [
        ("shop.add", "OK", 0),
        ("shop.untidy", "OK", 2),
        ("shop.fail", "SOLD_OUT", 0),
        ("shop.add", "VALIDATION_ERROR", 0),
        ("shop.write", "OK", 0),
        ("", "OPERATION_NOT_FOUND", 0),
    ]
    # In process an unknown name is a mistake of the program's own; over calls it never reaches a worker.
    expected = expected[:5] if surface in ("direct", "calls") else expected
    assert facts == [(SURFACES[surface], *each) for each in expected]
    assert seen[4].caller == "ann"
    assert seen[0].caller in (None, "local", "anonymous")
    assert seen[1].first_warning == "strip"
    assert all(each.duration >= 0 and each.request_id for each in seen)
    assert len({each.request_id for each in seen}) == len(seen)
    assert "123456" not in str(seen)
    assert "secret" not in str(seen)
    assert ops.services.observers.running == 0


@pytest.mark.parametrize("surface", ["direct", "http", "command_line", "calls"])
async def test_a_stream_is_recorded_at_its_end_with_the_number_of_its_items(surface: str) -> None:
    ops = shop()
    seen = watched(ops)
    async with testing.open_client(surface, ops) as client:
        assert [each.data async for each in client.subscribe("shop.count", {"to": 3})] == [1, 1, 1]
    assert [(each.operation, each.code, each.items) for each in seen] == [("shop.count", "OK", 3)]
    assert (ops.services.observers.streams, ops.services.observers.running) == (0, 0)


@pytest.mark.parametrize("operation", ["shop.outer", "shop.from_thread"])
async def test_a_nested_call_names_its_parent(operation: str) -> None:
    ops = shop()
    seen = watched(ops)
    async with testing.http(ops) as client:
        await client.call(operation, {})
    inner, outer = seen
    assert (inner.operation, inner.surface, outer.operation, outer.surface) == (
        "shop.add",
        "process",
        operation,
        "http",
    )
    assert inner.parent_request_id == outer.request_id


REFUSED = {
    "no token": ("POST", "/functions/shop.add", {}, b"{}", 401, "ACCESS_DENIED"),
    "a wrong token": ("POST", "/functions/shop.add", {"authorization": "Bearer no"}, b"{}", 401, "ACCESS_DENIED"),
    "another host": ("POST", "/functions/shop.add", {"host": "evil.test"}, b"{}", 403, "ACCESS_DENIED"),
    "an unknown name": ("POST", "/functions/x", {"authorization": "Bearer t"}, b"{}", 404, "OPERATION_NOT_FOUND"),
    "no JSON": ("POST", "/functions/shop.add", {"authorization": "Bearer t"}, b"{", 400, "VALIDATION_ERROR"),
    "a wrong method": ("PUT", "/functions/shop.add", {"authorization": "Bearer t"}, b"", 405, "VALIDATION_ERROR"),
    "too large": ("POST", "/functions/shop.add", {"authorization": "Bearer t"}, b"1" * 99, 413, "PAYLOAD_TOO_LARGE"),
    "MCP, no token": ("POST", "/mcp", {}, b"{}", 401, "ACCESS_DENIED"),
    "MCP, no JSON": ("POST", "/mcp", {"authorization": "Bearer t"}, b"{", 400, "VALIDATION_ERROR"),
    "MCP, too large": ("POST", "/mcp", {"authorization": "Bearer t"}, b"1" * 99, 413, "PAYLOAD_TOO_LARGE"),
    "MCP, no session": (
        "DELETE",
        "/mcp",
        {"authorization": "Bearer t", "mcp-session-id": "x"},
        b"",
        404,
        "OPERATION_NOT_FOUND",
    ),
    "a page": ("GET", "/healthz", {}, b"", 200, None),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_request_refused_before_the_call_is_recorded_with_its_code(name: str) -> None:
    method, path, headers, body, status, code = REFUSED[name]
    ops = shop()
    seen = watched(ops)
    tokens = Tokens({"t": ANN})
    app = to_http(
        ops, HTTPSettings(max_body=50), tokens=tokens, mounts={"/mcp": to_mcp(ops, tokens=tokens, max_body=50)}
    )
    sent = {"host": "localhost", "content-type": "application/json", **headers}
    answer = testing.Conversation(app, method, path, sent, body)
    await answer.body()
    assert answer.status == status
    assert [each.code for each in seen] == ([] if code is None else [code])
    assert ops.services.observers.running == 0


async def test_a_client_that_disconnects_is_recorded_as_aborted() -> None:
    ops = OperationRegistry("shop")
    begun = asyncio.Event()

    @ops.query
    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    seen = watched(ops)
    answer = testing.Conversation(
        to_http(ops), "POST", "/functions/shop.wait", {"host": "localhost", "content-type": "application/json"}, b"{}"
    )
    await begun.wait()
    answer.leave()
    await answer.task
    assert [(each.operation, each.code) for each in seen] == [("shop.wait", "ABORTED")]


async def test_a_failing_observer_affects_no_call_and_an_unsubscribed_one_is_not_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ops = shop()

    def broken(_: CallRecord) -> None:
        raise RuntimeError("observer")

    end = ops.observe(broken)
    seen: list[CallRecord] = []
    end_seeing = ops.observe(seen.append)
    assert (await ops.execute("shop.add", {"x": 1, "y": 2})).data == 3
    assert len(seen) == 1
    assert "An observer of calls failed" in caplog.text
    end()
    end_seeing()
    await ops.execute("shop.add", {"x": 1, "y": 2})
    assert len(seen) == 1
    assert not ops.services.observers.is_on
