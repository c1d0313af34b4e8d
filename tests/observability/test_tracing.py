"""One call through many processes is one trace; what a span says; and that nothing is traced without an SDK."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id
from tests.calls.networks import Server, nats_server_program
from tests.gateway.conftest import serve
from tests.observability.shop import SURFACES, shop

from enfold import Context, OperationRegistry, testing
from enfold.calls.nats import NATSTransport
from enfold.observability import spans as outgoing
from enfold.sources.calls import from_calls
from enfold.sources.mcp import from_mcp
from enfold.sources.openapi import from_openapi
from enfold.surfaces.calls import serve_calls
from enfold.surfaces.http import to_http
from enfold.surfaces.mcp import to_mcp
from enfold.surfaces.openapi import to_openapi

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


class Spans:
    """What the SDK would export."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._provider = TracerProvider()
        self._provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._registries: list[OperationRegistry] = []

    def of(self, registry: OperationRegistry) -> OperationRegistry:
        registry.services.observers.trace(self._provider)
        self._registries.append(registry)
        return registry

    def all(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def close(self) -> None:
        for registry in self._registries:
            registry.services.observers.trace(None)


@pytest.fixture
def spans() -> Iterator[Spans]:
    found = Spans()
    yield found
    found.close()
    assert outgoing.inject is None


def chain(spans: tuple[ReadableSpan, ...]) -> list[tuple[str, str]]:
    """The spans from the first to the one at the end, by their parents; each with its kind."""
    by_parent = {span.parent.span_id if span.parent else None: span for span in spans}
    found, parent = [], None
    while parent in by_parent:
        span = by_parent[parent]
        found.append((span.name, span.kind.name))
        parent = span.context.span_id
    return found


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[str]:
    server = Server(nats_server_program(), tmp_path)
    server.wait_until_ready()
    yield server.url
    server.close()


async def test_function_http_upstream_mcp_server_and_nats_worker_are_one_trace(spans: Spans, nats: str) -> None:
    front, api, tools, store = (spans.of(OperationRegistry(name)) for name in ("front", "api", "tools", "store"))

    @store.query
    async def count(item: str) -> int:
        return len(item)

    @tools.query
    async def look(item: str, context: Context) -> Any:
        return (await context.env.store.count(item=item)).data

    @api.query
    async def price(item: str, context: Context) -> Any:
        return (await context.env.mcp.tools_look(item=item)).data

    @front.query
    async def order(item: str, context: Context) -> Any:
        return (await context.env.http.api_price_get(item=item)).data

    async with AsyncExitStack() as opened:
        open_ = opened.enter_async_context
        await open_(serve_calls(store, await open_(NATSTransport(nats, name="worker"))))
        tools.register_all(await open_(from_calls(await open_(NATSTransport(nats, name="edge")))))
        served = to_mcp(tools)
        address = await open_(serve(served, served.stop))
        api.register_all(await open_(from_mcp(f"{address}/mcp", namespace="mcp")))
        base = await open_(serve(to_http(api)))
        imported = from_openapi(to_openapi(api), namespace="http", base_url=base)
        front.register_all(await open_(imported))
        result = await front.execute("front.order", {"item": "teapot"})
        assert result.data == {"result": 6}
    found = spans.all()
    assert len({span.context.trace_id for span in found}) == 1
    assert chain(found) == [
        ("front.order", "INTERNAL"),
        ("http.api_price_get", "CLIENT"),
        ("GET /functions/api.price", "SERVER"),
        ("mcp.tools_look", "CLIENT"),
        ("tools/call tools_look", "SERVER"),
        ("store.count", "CLIENT"),
        ("store.count", "SERVER"),
    ]
    assert "teapot" not in str([span.to_json() for span in found])


@pytest.mark.parametrize("surface", SURFACES)
async def test_every_surface_gives_a_call_one_span_with_its_code_and_never_its_values(
    spans: Spans, surface: str
) -> None:
    ops = spans.of(shop())
    async with testing.open_client(surface, ops) as client:
        await client.call("shop.untidy", {})
        await client.call("shop.fail", {})
        await client.call("shop.add", {"x": "a secret"})
    ok, failed, wrong = spans.all()
    told = dict(ok.attributes or {})
    assert (told["enfold.operation"], told["enfold.code"], told["enfold.warnings"]) == ("shop.untidy", "OK", 2)
    assert (told["enfold.surface"], told["enfold.source.kind"]) == (SURFACES[surface], "functions")
    assert (failed.attributes or {})["error.type"] == ("tool_error" if "mcp" in surface else "SOLD_OUT")
    assert (failed.attributes or {})["enfold.code"] == "SOLD_OUT"
    assert (ok.status.status_code, failed.status.status_code) == (StatusCode.UNSET, StatusCode.ERROR)
    assert (wrong.attributes or {})["enfold.code"] == "VALIDATION_ERROR"
    assert "secret" not in str([span.to_json() for span in spans.all()])


@pytest.mark.parametrize("traceparent", [PARENT, "00-1", "x" * 70_000, "\x00"])
async def test_the_parent_is_read_from_http_headers_and_from_meta_and_nonsense_begins_a_trace(
    spans: Spans, traceparent: str
) -> None:
    ops = spans.of(shop())
    headers = {"host": "localhost", "content-type": "application/json", "traceparent": traceparent}
    app = to_http(ops, mounts={"/mcp": to_mcp(ops)})
    await testing.Conversation(app, "POST", "/functions/shop.add", headers, b'{"x":1,"y":2}').body()
    params = {"name": "shop_add", "arguments": {"x": 1, "y": 2}, "_meta": {"traceparent": traceparent, "tracestate": 7}}
    body = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    accepted = {
        "host": "localhost",
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
    }
    await testing.Conversation(app, "POST", "/mcp", accepted, body).body()
    over_http, over_mcp = spans.all()
    assert (over_http.kind, over_mcp.kind) == (SpanKind.SERVER, SpanKind.SERVER)
    for span in (over_http, over_mcp):
        is_child = format_trace_id(span.context.trace_id) == TRACE
        assert is_child == (traceparent == PARENT)
        assert (span.parent is not None and format_span_id(span.parent.span_id) == "b7ad6b7169203331") == is_child
    assert over_mcp.attributes is not None
    assert over_mcp.attributes["gen_ai.tool.name"] == "shop_add"
    assert over_mcp.attributes["mcp.method.name"] == "tools/call"


async def test_a_stream_is_one_span_and_its_consumer_is_outside_of_it(spans: Spans) -> None:
    from opentelemetry.trace import get_current_span

    ops = spans.of(OperationRegistry("shop"))
    inside: list[bool] = []

    @ops.subscription
    async def count() -> AsyncIterator[int]:
        for number in range(2):
            inside.append(get_current_span().is_recording())
            yield number

    outside = [get_current_span().is_recording() async for _ in ops.subscribe("shop.count")]
    assert (inside, outside) == ([True, True], [False, False])
    assert [(span.name, (span.attributes or {})["enfold.items"]) for span in spans.all()] == [("shop.count", 2)]


PROGRAM = """
import asyncio, sys
from enfold import OperationRegistry
ops = OperationRegistry("shop")

@ops.query
async def add(x: int, y: int) -> int:
    return x + y

async def main():
    if "{sdk}":
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor, ConsoleSpanExporter
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=lambda span: span.name + "\\n")))
        trace.set_tracer_provider(provider)
    await ops.execute("shop.add", {{"x": 1, "y": 2}})
    print(ops.services.observers.is_on, any(name.startswith("opentelemetry") for name in sys.modules))

asyncio.run(main())
"""


@pytest.mark.parametrize(("sdk", "expected"), [("", "False False"), ("sdk", "shop.add\nTrue True")])
def test_the_first_call_finds_the_sdk_that_the_program_has_installed(sdk: str, expected: str) -> None:
    program = PROGRAM.format(sdk=sdk)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected
