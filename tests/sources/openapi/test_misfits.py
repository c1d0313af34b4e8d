"""Over MCP an answer whose details misfit is a success with warnings; only one whose root misfits is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest

from enfold.surfaces.mcp.catalog import Catalog

if TYPE_CHECKING:
    from tests.sources.openapi.conftest import Connect, Serve, Words

FILE: dict[str, Any] = {
    "type": "object",
    "required": ["name", "writable", "kind", "made"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]+$"},
        "writable": {"type": "boolean"},
        "kind": {"type": "string", "enum": ["file", "folder"]},
        "made": {"type": "string", "format": "date-time"},
        "size": {"type": "integer", "minimum": 0},
        "owner": {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}},
        "parts": {"type": "array", "items": {"type": "integer"}},
    },
}
GOOD: dict[str, Any] = {"name": "a", "writable": True, "kind": "file", "made": "2026-01-01T00:00:00Z"}
MISFITS: dict[str, dict[str, Any]] = {
    "null for what is required": {**GOOD, "writable": None},
    "missing": {key: value for key, value in GOOD.items() if key != "made"},
    "a new member of an enum": {**GOOD, "kind": "notebook"},
    "another pattern": {**GOOD, "name": "A1"},
    "below a bound": {**GOOD, "size": -1},
    "another type": {**GOOD, "size": "large"},
    "half a number": {**GOOD, "size": 1.5},
    "an empty list for an object": {**GOOD, "owner": []},
    "an object for a list": {**GOOD, "parts": {"0": 1}},
    "inside": {**GOOD, "owner": {"id": None}},
    "in a list": {**GOOD, "parts": [1, None, "x"]},
    "a field that a closed schema does not have": {**GOOD, "more": 1},
}


async def called(serve: Serve, connect: Connect, http: Words, answer: Any, schema: dict[str, Any]) -> tuple[Any, Any]:
    """The envelope of an answer, and the tool that gave it as MCP clients see it."""
    server = await serve(lambda _: http.reply(answer))
    document = http.document({"responses": http.json_response(schema)}, method="put")
    registry = connect(document, base_url=server.url)
    assert registry.get_spec("x").output_schema == schema
    return await registry.execute("x", {}), Catalog(registry, "result", "safe").tool("x")


@pytest.mark.parametrize("answer", MISFITS.values(), ids=MISFITS)
@pytest.mark.parametrize("nested", [False, True])
async def test_details_that_misfit_are_a_success_with_warnings(
    serve: Serve, connect: Connect, http: Words, answer: dict[str, Any], nested: bool
) -> None:
    schema = {"type": "array", "items": FILE} if nested else FILE
    envelope, tool = await called(serve, connect, http, [answer] if nested else answer, schema)
    assert not envelope.is_error
    assert envelope.warnings
    jsonschema_rs.validator_for(tool.output_schema).validate({"result": envelope.data})


@pytest.mark.parametrize("answer", [None, [], "text", 1, {"error": "x"}], ids=str)
async def test_a_root_that_misfits_is_an_error(serve: Serve, connect: Connect, http: Words, answer: Any) -> None:
    envelope, _ = await called(serve, connect, http, answer, FILE)
    assert envelope.is_error
