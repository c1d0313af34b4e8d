"""A result that is not JSON serializable names its type and its place; a missing `await` is reported as such, over HTTP and MCP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel
from tests.serving import Client, serve

import mcp
from enfold import OperationRegistry
from enfold.surfaces.http import to_http
from enfold.surfaces.mcp import to_mcp


class Thing:
    """Has no form in JSON."""


class Model(BaseModel):
    inner: Any = None


@dataclass
class Row:
    price: int
    thing: Any


async def later() -> int:
    return 1


ops = OperationRegistry()


@ops.query
def root() -> Any:
    return Thing()


@ops.query
def deep() -> dict[str, Any]:
    return {"rows": [1, {"thing": Thing()}]}


@ops.query
def rows() -> list[Row]:
    return [Row(1, 1), Row(2, Thing())]


@ops.query
def typed() -> list[int]:
    return [1, Thing()]  # type: ignore[list-item]


@ops.query
def model() -> Model:
    return Model(inner=[Thing()])


@ops.query
def a_class() -> Any:
    return Thing


@ops.query
async def unawaited() -> int:
    return later()  # type: ignore[return-value]


@ops.query
async def unawaited_below() -> dict[str, Any]:
    return {"rows": [later()]}


@ops.query
def unawaited_in_a_model() -> Model:
    return Model(inner=later())


@ops.query
def unawaited_in_a_def() -> dict[str, Any]:
    return {"count": later()}


@ops.query
def generator() -> Any:
    return (number for number in range(3))


@ops.subscription
async def items() -> AsyncIterator[Any]:
    yield {"thing": Thing()}


EXPECTED = {
    "root": "/: Thing is not JSON serializable",
    "deep": "/rows/1/thing: Thing is not JSON serializable",
    "rows": "/1/thing: Thing is not JSON serializable",
    "typed": "/1: Thing is not JSON serializable",
    "model": "/inner/0: Thing is not JSON serializable",
    "a_class": "/: type Thing is not JSON serializable",
    "unawaited": "/: coroutine later was not awaited: add `await`",
    "unawaited_below": "/rows/0: coroutine later was not awaited",
    "unawaited_in_a_model": "/inner: coroutine later was not awaited",
    "unawaited_in_a_def": "/count: coroutine later was not awaited",
    "generator": "/: generator generator.<locals>.<genexpr> is an iterator: collect its items in a list",
    "items": "/thing: Thing is not JSON serializable",
}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with serve(to_http(ops, mounts={"/mcp": to_mcp(ops)})) as client:
        yield client


@pytest.mark.filterwarnings("error")  # Python's own, for a coroutine that was never awaited
@pytest.mark.parametrize(("name", "words"), EXPECTED.items(), ids=EXPECTED)
def test_the_type_and_the_place_are_named_over_http(client: Client, name: str, words: str) -> None:
    answer = client.get(f"/functions/{name}")
    assert f"failed to marshal response: {words}" in answer.body.decode()


@pytest.mark.parametrize("name", ["deep", "unawaited_below"])
async def test_the_type_and_the_place_are_named_over_mcp(client: Client, name: str) -> None:
    async with mcp.Client(f"http://127.0.0.1:{client.port}/mcp") as session:
        result = await session.call_tool(name, {})
    assert result.is_error
    assert f"failed to marshal response: {EXPECTED[name]}" in str(result.content)


def test_a_def_that_gives_a_coroutine_is_awaited() -> None:
    awaiting = OperationRegistry()
    awaiting.query(name="wrapped")(lambda: later())  # noqa: PLW0108  # as many decorators do
    with serve(to_http(awaiting)) as client:
        assert client.get("/functions/wrapped").json == {"result": 1}
