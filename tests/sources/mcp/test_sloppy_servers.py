"""Servers that are careless with JSON and the protocol: the meaning is kept, and deviations are reported."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from enfold import OperationRegistry, ResponseEnvelope
from enfold.sources.mcp import from_mcp

OBJECT = {"type": "object"}
TOOLS = [
    {"name": "nan", "inputSchema": OBJECT},
    {"name": "half", "inputSchema": OBJECT},
    {"name": "large", "inputSchema": OBJECT},
    {"name": "text", "inputSchema": OBJECT},
    {"name": "block", "inputSchema": OBJECT},
    {"name": "list_schema", "inputSchema": [1]},
    {"name": "odd_schema", "inputSchema": {"type": "strng", "properties": 5}, "outputSchema": {"properties": []}},
    5,
    {"noname": 1},
    {"name": 7},
    {"name": ""},
]
RESULTS = {
    "nan": '{"content": [], "structuredContent": {"a": NaN, "b": [1, -Infinity]}}',
    "large": '{"content": [], "structuredContent": {"a": 1e400, "b": [%s]}}' % ("7" * 5000),
    "half": '{"content": [{"type": "text", "text": "a \\ud83d b"}]}',
    "text": '{"content": "x"}',
    "block": '{"content": {"type": "text", "text": "y"}}',
}
SERVER = f"""
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    method = message["method"]
    result = {{
        "initialize": json.dumps({{
            "protocolVersion": "2025-06-18",
            "capabilities": {{"tools": {{}}, "prompts": {{}}}},
            "serverInfo": {{"name": "sloppy", "version": "1"}},
            "instructions": 5,
        }}),
        "prompts/list": json.dumps({{"prompts": [{{"name": "greet", "arguments": 5}}], "nextCursor": None}}),
        "tools/list": {json.dumps(json.dumps({"tools": TOOLS}))},
        "tools/call": {RESULTS!r}.get(message.get("params", {{}}).get("name"), "{{}}"),
    }}.get(method)
    outcome = '"error": {{"code": -32601, "message": "no"}}' if result is None else f'"result": {{result}}'
    print('{{"jsonrpc": "2.0", "id": %s, %s}}' % (json.dumps(message["id"]), outcome), flush=True)
"""


@pytest.fixture
def server(tmp_path: Path) -> list[str]:
    program = tmp_path / "sloppy.py"
    program.write_text(SERVER)
    return [sys.executable, str(program)]


async def _result(server: list[str], name: str) -> ResponseEnvelope[Any]:
    async with from_mcp(server) as operations:
        registry = OperationRegistry()
        registry.register_all(operations)
        return await registry.execute(name)


KEPT: dict[str, Any] = {
    "nan": ({"a": None, "b": [1, None]}, [("not_a_number", "/a"), ("not_a_number", "/b/1")]),
    "large": ({"a": "1e400", "b": ["7" * 5000]}, [("large_number", "/a"), ("large_number", "/b/0")]),
    "half": ([{"type": "text", "text": "a \ufffd b"}], [("half_character", "/0/text")]),
    "text": ([{"type": "text", "text": "x"}], [("content_block", "")]),
    "block": ([{"type": "text", "text": "y"}], [("content_block", "")]),
}


@pytest.mark.parametrize("name", KEPT)
async def test_a_slightly_invalid_result_is_kept_and_reported(server: list[str], name: str) -> None:
    envelope = await _result(server, name)
    data, warnings = KEPT[name]

    assert envelope.data == data
    assert [(warning.code, warning.path) for warning in envelope.warnings] == warnings


async def test_the_report_names_entries_and_schemas_that_cannot_be_used(server: list[str]) -> None:
    async with from_mcp(server) as operations:
        report = operations.report

    assert sorted(report.imported) == ["block", "greet", "half", "large", "list_schema", "nan", "odd_schema", "text"]
    assert [(each.where, each.why) for each in report.skipped] == [
        ("tools/list[7]", "an entry must be an object, not number"),
        ("tools/list[8]", "its name must be non-empty text"),
        ("tools/list[9]", "its name must be non-empty text"),
        ("tools/list[10]", "its name must be non-empty text"),
    ]
    assert [(each.where, each.why) for each in report.degraded] == [
        ("list_schema.inputSchema", "a schema must be an object, not array"),
        ("odd_schema.inputSchema", "unknown type 'strng'"),
        ("odd_schema.outputSchema", "properties must be an object"),
    ]
