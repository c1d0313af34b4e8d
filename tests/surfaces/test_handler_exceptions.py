"""Whatever a handler raises ends its call with an answer in JSON, over HTTP and MCP under a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.serving import Client, serve

from enfold import OperationRegistry
from enfold.surfaces.http import to_http
from enfold.surfaces.mcp import to_mcp


class SilentError(Exception):
    """An exception that cannot even be printed."""

    def __str__(self) -> str:
        raise SystemExit(3)


KINDS: list[type[BaseException]] = [
    KeyboardInterrupt,
    GeneratorExit,
    SystemExit,
    StopIteration,
    StopAsyncIteration,
    asyncio.CancelledError,
    MemoryError,
    SilentError,
]


def raising(kind: type[BaseException]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    async def waiting() -> int:
        raise kind

    def plain() -> int:
        raise kind

    return waiting, plain


def build() -> OperationRegistry:
    ops = OperationRegistry("odd")
    for kind in KINDS:
        waiting, plain = raising(kind)
        ops.query(name=f"async_{kind.__name__}")(waiting)
        ops.query(name=f"thread_{kind.__name__}")(plain)
        ops.query(name=f"inline_{kind.__name__}", inline=True)(plain)

    @ops.query
    async def cancels_itself() -> int:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        return 1

    return ops


ops = build()


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with serve(to_http(ops, mounts={"/mcp": to_mcp(ops)})) as client:
        yield client


@pytest.mark.parametrize("operation", [spec.id for spec in ops.list()])
def test_every_failure_over_http_is_json(client: Client, operation: str) -> None:
    answer = client.get(f"/functions/{operation}")
    assert (answer.headers["content-type"], list(answer.json)) == ("application/json", ["error"])
    assert answer.status >= 400


@pytest.mark.parametrize("operation", [spec.id for spec in ops.list()])
def test_every_failure_over_mcp_is_a_message(client: Client, operation: str) -> None:
    call = {"name": operation.replace(".", "_"), "arguments": {}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    answer = client.post("/mcp", message, Accept="application/json, text/event-stream")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["jsonrpc"] == "2.0"
    assert client.get("/healthz").status == 200
