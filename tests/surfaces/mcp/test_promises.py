"""Results match the schema that a tool advertises, in every format, by an independent validator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, TypedDict

import jsonschema_rs
import pytest

from enfold import ImageContent, OperationRegistry, TextContent, http_envelope, mcp_envelope
from enfold.formats import FORMATS

if TYPE_CHECKING:
    from tests.surfaces.mcp.conftest import MakeClient


class Tree(TypedDict):
    name: str
    below: list[Tree]


class Page(TypedDict):
    data: list[int]
    blob: dict[str, str]


PAGE: Page = {"data": [1, 2], "blob": {"data": "a"}}


@pytest.fixture
def ops() -> OperationRegistry:
    """Operations whose results are of every shape."""
    ops = OperationRegistry()

    @ops.query
    def number() -> int:
        return 1

    @ops.query
    def nothing() -> None: ...

    @ops.query
    def maybe() -> int | None:
        return None

    @ops.query
    def pair() -> tuple[int, str]:
        return 1, "a"

    @ops.query
    def data() -> bytes:
        return b"\x00\xff"

    @ops.query
    def tree() -> Tree:
        return {"name": "a", "below": [{"name": "b", "below": []}]}

    @ops.query
    def unknown():  # type: ignore[no-untyped-def]  # noqa: ANN202  # a user who writes no types
        return {"anything": [1, None]}

    @ops.query
    def text() -> TextContent:
        return TextContent(text="a")

    @ops.query
    def images() -> list[ImageContent]:
        return [ImageContent(data="aGk=", mime_type="image/png")]

    @ops.query
    def wrong() -> dict[str, int]:
        return {"a": "b"}  # type: ignore[dict-item]  # kept although it does not fit

    @ops.query
    def repaired() -> Tree:
        return {"name": 7, "below": [], "extra": 1}  # type: ignore[typeddict-item, typeddict-unknown-key]  # repaired

    @ops.query
    def download() -> Any:
        return http_envelope(b"\x00", headers={"content-type": "image/png"})

    @ops.query
    def elsewhere() -> Any:
        return mcp_envelope({"a": 1}, content=[TextContent(text="a")], structured_content={"a": 1})

    @ops.query
    def page() -> Page:
        return mcp_envelope(PAGE, content=[TextContent(text="two items")])  # type: ignore[return-value]  # the same data

    @ops.subscription
    async def trees() -> AsyncIterator[Tree]:
        yield {"name": "a", "below": []}

    return ops


@pytest.mark.parametrize("format", FORMATS)
async def test_structure_fits_the_advertised_schema(
    make_client: MakeClient, ops: OperationRegistry, revision: str, format: str
) -> None:
    client = make_client(ops, revision, format=format)
    tools = (await client.result("tools/list"))["tools"]
    results = await asyncio.gather(*(client.call(tool["name"]) for tool in tools))
    for tool, result in zip(tools, results, strict=True):
        if "outputSchema" in tool and not result["isError"]:
            jsonschema_rs.validate(tool["outputSchema"], result["structuredContent"])
        else:
            assert "structuredContent" not in result
    # Where no schema is advertised, nothing can fail to fit it.
    assert sum(result["isError"] for result in results) == any("outputSchema" in tool for tool in tools)


async def test_schemas_are_schemas(make_client: MakeClient, ops: OperationRegistry, revision: str) -> None:
    tools = (await make_client(ops, revision).result("tools/list"))["tools"]
    schemas = [tool[name] for tool in tools for name in ("inputSchema", "outputSchema") if name in tool]
    for schema in schemas:
        jsonschema_rs.meta.validate(schema)
    assert {schema["type"] for schema in schemas} == {"object"}
    assert [tool["name"] for tool in tools if "outputSchema" not in tool] == ["text", "images"]


async def test_data_beside_content_is_given_whole(make_client: MakeClient, ops: OperationRegistry) -> None:
    result = await make_client(ops).call("page")
    assert result["structuredContent"] == {"result": PAGE}
    assert result["content"] == [{"type": "text", "text": "two items"}]


async def test_a_misfit_is_found_among_many_warnings(make_client: MakeClient, revision: str) -> None:
    ops = OperationRegistry()

    @ops.query
    def tree() -> Tree:
        return {"name": None, "below": []} | {f"extra{n}": n for n in range(100)}  # type: ignore[return-value]  # stripped

    result = await make_client(ops, revision).call("tree")
    assert (result["isError"], "structuredContent" in result) == (True, False)
