"""Who owns an idempotency key: the process that runs the handler, or that calls an upstream without the call protocol."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.calls import conftest
from tests.calls.networks import Network
from tests.waiting import until

from enfold import CallError, Context, Identity, OperationRegistry
from enfold.sources.calls import from_calls
from enfold.sources.mcp import from_mcp
from enfold.sources.openapi import from_openapi
from enfold.sources.options import Rules
from enfold.surfaces.calls import serve_calls
from enfold.surfaces.http import to_http
from enfold.testing.asgi import Conversation, living

network = conftest.network
nats_url = conftest.nats_url
ANN, BOB = Identity("ann"), Identity("bob")


# --- edges on every transport -------------------------------------------------------------------------------------


class Bank:
    """What the worker runs."""

    def __init__(self) -> None:
        self.paid: list[int] = []
        self.go_on = asyncio.Event()
        self.ops = OperationRegistry("shop")
        self.ops.mutation(name="add", idempotent=True)(
            self.pay
        )  # under a name that every caller of the network may call

    async def pay(self, x: int) -> int:
        self.paid.append(x)
        await self.go_on.wait()
        return len(self.paid)

    async def has_begun(self) -> None:
        await until(lambda: self.paid)


@asynccontextmanager
async def edges(network: Network) -> AsyncIterator[tuple[Bank, OperationRegistry, OperationRegistry]]:
    bank = Bank()
    async with (
        serve_calls(bank.ops, network.peer("worker")),
        from_calls(network.peer("alice")) as first,
        from_calls(network.peer("alice")) as second,
    ):
        registries = []
        for operations in (first, second):
            registry = OperationRegistry()
            operations.keep(registry)
            registries.append(registry)
        await until(lambda: not any(("shop.add" not in registry for registry in registries)))
        yield bank, registries[0], registries[1]


def called(edge: OperationRegistry, identity: Identity = ANN, timeout: float | None = None) -> Any:
    return edge.execute("shop.add", {"x": 1}, Context(identity=identity, idempotency_key="k", timeout=timeout))


async def test_an_edge_passes_the_key_on_and_keeps_nothing(network: Network) -> None:
    async with edges(network) as (bank, first, second):
        with pytest.raises(CallError) as raised:
            await called(first, timeout=1.0)
        error = raised.value
        assert (error.code, error.retryable, error.details.get("reason")) == ("TIMEOUT", True, "in_progress")
        await bank.has_begun()
        bank.go_on.set()
        assert [(await called(edge)).data for edge in (second, first, second)] == [1, 1, 1]
        assert [edge.services.idempotency_store for edge in (first, second)] == [None, None]
        assert (await called(first, BOB)).data == 2  # another caller of the same edge
    assert bank.paid == [1, 1]


async def test_a_caller_who_leaves_an_edge_does_not_end_the_call(network: Network) -> None:
    async with edges(network) as (bank, first, second):
        leaving = asyncio.create_task(called(first))
        await bank.has_begun()
        leaving.cancel()
        await asyncio.wait({leaving})
        again = asyncio.create_task(called(second))
        bank.go_on.set()
        assert (await again).data == 1
    assert bank.paid == [1]


async def test_a_client_that_disconnects_from_an_edge_gets_the_result_of_its_call_later(network: Network) -> None:
    headers = {"host": "localhost:8000", "content-type": "application/json", "idempotency-key": "k"}
    async with edges(network) as (bank, first, second):
        apps = [to_http(edge) for edge in (first, second)]
        async with living(apps[0]), living(apps[1]):
            lost = Conversation(apps[0], "POST", "/functions/shop.add", headers, b'{"x": 1}')
            await bank.has_begun()
            lost.leave()
            await asyncio.wait({lost.task})
            bank.go_on.set()
            answer = await Conversation(apps[1], "POST", "/functions/shop.add", headers, b'{"x": 1}').began()
            assert (answer.status, await answer.json()) == (200, {"result": 1})
    assert bank.paid == [1]


# --- upstreams without the call protocol ---------------------------------------------------------------------------

MCP_SERVER = """
import os, sys
from enfold import OperationRegistry
ops = OperationRegistry("bank")

@ops.mutation
def pay(dies: bool) -> str:
    with open(sys.argv[1], "a") as file:
        file.write("paid ")
    if dies:
        os._exit(3)
    return "paid"

ops.run(["mcp"])
"""


async def _codes(ops: OperationRegistry, name: str, input: dict[str, Any], times: int) -> list[str]:
    codes = []
    for _ in range(times):
        try:
            await ops.execute(name, input, Context(identity=ANN, idempotency_key="k"))
            codes.append("")
        except CallError as error:
            codes.append(error.code)
    return codes


async def test_an_mcp_server_that_dies_in_a_call_leaves_an_unknown_outcome(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(MCP_SERVER)
    effects = tmp_path / "effects"
    async with from_mcp([sys.executable, str(tmp_path / "server.py"), str(effects)], namespace="bank") as tools:
        ops = OperationRegistry()
        ops.register_all(tools)
        (name,) = [spec.id for spec in ops.list()]
        assert await _codes(ops, name, {"dies": True}, 3) == ["UNAVAILABLE", "OUTCOME_UNKNOWN", "OUTCOME_UNKNOWN"]
    assert effects.read_text() == "paid "


@pytest.mark.parametrize(("is_silent", "code"), [(False, "UNAVAILABLE"), (True, "TIMEOUT")], ids=["cut", "silent"])
async def test_a_service_that_breaks_off_in_a_call_leaves_an_unknown_outcome(is_silent: bool, code: str) -> None:
    requests: list[bytes] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        if is_silent:
            await reader.read()
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Bank", "version": "1"},
        "paths": {"/pay": {"post": {"operationId": "pay", "responses": {"200": {"description": "paid"}}}}},
    }
    ops = OperationRegistry()
    base_url = f"http://127.0.0.1:{port}"
    ops.register_all(from_openapi(document, namespace="bank", base_url=base_url, rules=Rules(timeout=1.0)))
    async with server:
        assert await _codes(ops, "bank.pay", {}, 3) == [code, "OUTCOME_UNKNOWN", "OUTCOME_UNKNOWN"]
    assert len(requests) == 1
