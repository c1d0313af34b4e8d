"""A composed call, function to OpenAPI to MCP, leaves a lineage that links by itself and can be verified."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import httpx2
from tests.serving import serve

from enfold import Context, OperationRegistry
from enfold.provenance import Recorder, RecordStore, build_graph, options_from_mode, to_mermaid, to_svg, verify_lineage
from enfold.sources.mcp import from_mcp
from enfold.sources.openapi import Service, from_openapi
from enfold.surfaces.http import to_http
from enfold.surfaces.openapi import to_openapi

SERVER = """
from enfold import OperationRegistry
from enfold.surfaces.mcp import serve_stdio
ops = OperationRegistry("far")

@ops.query
async def triple(x: int) -> int:
    return 3 * x

serve_stdio(ops)
"""


def upstream() -> OperationRegistry:
    ops = OperationRegistry("web")

    @ops.query
    async def double(x: int) -> int:
        return 2 * x

    return ops


async def compose(base: str, program: Path, store: RecordStore) -> dict[str, Any]:
    """Call one operation that calls the two others, each from another source, and give the record of the whole."""
    ops = OperationRegistry("here")
    document = to_openapi(upstream())
    async with (
        httpx2.AsyncClient() as client,
        from_mcp([sys.executable, str(program)], namespace="mcp") as tools,
    ):
        ops.register_all(from_openapi(document, namespace="api", base_url=base, service=Service(client=client)))
        ops.register_all(tools)

        @ops.query
        async def both(x: int, context: Context) -> Any:
            doubled = await context.env.api[name_of(ops, "api")]({"x": x})
            tripled = await context.env.mcp[name_of(ops, "mcp")]({"x": x})
            return [doubled.data, tripled.data]

        context = Context()
        context.recording = Recorder(store=store).begin(options_from_mode("full"))
        envelope = await ops.execute("here.both", {"x": 2}, context)
        assert envelope.provenance is not None
        return envelope.provenance


def name_of(ops: OperationRegistry, namespace: str) -> str:
    return next(spec.name for spec in ops.list(namespace=namespace) if spec.type != "subscription")


def test_three_steps_over_three_sources_leave_one_lineage(tmp_path: Path) -> None:
    program = tmp_path / "server.py"
    program.write_text(SERVER)
    with RecordStore(tmp_path / "records.db") as store, serve(to_http(upstream())) as client:
        record = asyncio.run(compose(f"http://127.0.0.1:{client.port}", program, store))
        records = store.lineage(record["run_id"])
    assert all(verdict.ok for verdict in verify_lineage(records))
    graph = build_graph(records)
    assert [parent for parent, _ in graph.edges] == [record["run_id"]] * 2
    assert {found.tool.name.partition(".")[0] for found in graph.records.values()} == {"here", "api", "mcp"}
    assert "<svg" in to_svg(graph)
    assert to_mermaid(graph).startswith("flowchart")
