"""`enfold.operations.…`: an operation in full, and the registry as an agent sees it."""

from typing import Annotated, Any

import msgspec
import pytest

from enfold import CallError, Context, Identity, OperationRegistry, testing
from enfold.auth.tokens import Tokens
from enfold.surfaces.introspection import introduce
from enfold.surfaces.mcp import to_mcp


class Item(msgspec.Struct):
    name: str
    price: float
    notes: str


def shop() -> OperationRegistry:
    ops = OperationRegistry("shop")

    @ops.query(
        timeout=7,
        access={"required_scopes": ["buy"]},
        error_schemas=[{"code": "SOLD_OUT", "description": "Nothing is left", "http_status": 409}],
    )
    def items(shelf: Annotated[str, msgspec.Meta(examples=["drinks"])], limit: int = 10) -> list[Item]:
        """List what is on a shelf."""
        del shelf, limit
        return []

    introduce(ops, {})
    return ops


async def ask(ops: OperationRegistry, name: str, caller: Identity | None = None, **arguments: Any) -> Any:
    buyer = caller or Identity("ann", frozenset({"buy"}))
    return (await ops.execute(f"enfold.operations.{name}", arguments, Context(identity=buyer))).data


async def test_an_operation_tells_its_errors_limits_scopes_examples_and_its_tool() -> None:
    ops = shop()
    found = await ask(ops, "get", id="shop.items")
    assert (found["timeout"], found["scopes"], found["examples"]) == (7, ["buy"], [{"shelf": "drinks"}])
    assert [(each["code"], each["http_status"]) for each in found["errors"]] == [("SOLD_OUT", 409)]
    assert found["output_schema"]["type"] == "array"
    assert (found["tool"]["name"], found["tool"]["description"]) == ("shop_items", "List what is on a shelf.")
    assert "outputSchema" not in found["tool"]
    to_mcp(ops)
    listed = await ask(ops, "get", id="shop.items")
    assert "outputSchema" in listed["tool"]  # as the surface lists it
    assert found["tokens"] > 0


async def test_a_caller_without_a_token_does_not_change_how_a_tool_is_described() -> None:
    ops = shop()
    ops.query(name="hours", access={"public": True})(lambda: "9 to 5")
    app = to_mcp(ops, tokens=Tokens({"ann-token": Identity("ann")}))
    before = (await ask(ops, "get", id="shop.items"))["tool"]
    body = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}'
    headers = {"host": "localhost:8000", "content-type": "application/json"}
    assert b"shop_hours" in await testing.Conversation(app, "POST", "/mcp", headers, body).body()
    assert (await ask(ops, "get", id="shop.items"))["tool"] == before
    assert "outputSchema" in before


DOCSTRINGS = {
    "add(1, y=2)": [{"x": 1, "y": 2}],
    "shop.add(x=3)": [{"x": 3}],
    "await add(\n    ...     1,\n    ...     tags=['a'],\n    ... )": [{"x": 1, "tags": ["a"]}],
    "add(x=1)\n    4\n    >>> add(x=2)": [{"x": 1}, {"x": 2}],
    "sub(1)": [],
    "add(1, 2, 3, 4)": [],
    "add(x=open('/etc/passwd'))": [],
    "add(": [],
    "add(" + "(" * 1000: [],
}


@pytest.mark.parametrize(("example", "inputs"), DOCSTRINGS.items())
async def test_calls_in_a_docstring_are_examples(example: str, inputs: list[Any]) -> None:
    def add(x: int, y: int = 0, tags: list[str] | None = None) -> int:
        del tags
        return x + y

    add.__doc__ = f"Add two numbers.\n\n    Examples:\n    >>> {example}\n    3\n    "
    ops = OperationRegistry("shop")
    ops.query(add)
    introduce(ops, {})
    assert (await ask(ops, "get", id="shop.add"))["examples"] == inputs


async def test_an_agent_finds_describes_and_narrows_with_the_cost_of_each() -> None:
    ops = shop()
    found = await ask(ops, "search", query="what is on the shelf")
    assert [each["id"] for each in found["found"]] == ["shop.items"]
    assert (found["tools"], found["tokens"] > 0, found["list_tokens"] > 0) == (1, True, True)
    described = await ask(ops, "describe", id="shop.items")
    assert described["description"]["result"] == "[{name, price, notes}]"
    narrowed = await ask(ops, "select", id="shop.items", select="name")
    assert narrowed["outline"] == "[{name}]"
    assert narrowed["tokens"] < narrowed["whole_tokens"]
    with pytest.raises(CallError, match="did you mean name"):
        await ask(ops, "select", id="shop.items", select="nmae")


@pytest.mark.parametrize("name", ["get", "describe", "select"])
async def test_an_operation_that_the_caller_may_not_call_is_not_found(name: str) -> None:
    more = {"select": "name"} if name == "select" else {}
    with pytest.raises(CallError) as refused:
        await ask(shop(), name, Identity("ben"), id="shop.items", **more)
    assert refused.value.code == "OPERATION_NOT_FOUND"
    assert (await ask(shop(), "search", Identity("ben"), query="shelf"))["found"] == []
