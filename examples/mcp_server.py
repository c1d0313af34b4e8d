"""Serve operations as an MCP server: tools, a resource, a prompt, and a tool that asks the user."""

from typing import Literal

from enfold import Context, OperationRegistry
from enfold.mcp import completion, elicit
from enfold.surfaces.mcp import serve_stdio

ops = OperationRegistry("shop")
STOCK = {"apple": 3, "pear": 0}


@ops.query
def stock(fruit: str) -> int:
    """Return how many there are of a fruit."""
    return STOCK.get(fruit, 0)


@ops.mutation(destructive=True)
async def clear(context: Context) -> str:
    """Throw all fruit away, if the user really wants it."""
    form = {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]}
    answer = await elicit(context, "Throw all fruit away?", form)
    if not (answer.accepted and answer.content.get("sure")):
        return "Nothing happened"
    STOCK.clear()
    return "All gone"


@ops.resource("shop://fruit/{name}", mime_type="application/json")
def fruit(name: str) -> dict[str, str | int]:
    """Return one fruit."""
    return {"name": name, "stock": STOCK.get(name, 0)}


@ops.prompt
def recipe(name: str, kind: Literal["cake", "juice"] = "cake") -> str:
    """Ask for a recipe."""
    return f"Write a recipe for {name} {kind}."


@completion(ops, of="recipe", argument="name")
def fruit_names(value: str) -> list[str]:
    return [name for name in STOCK if name.startswith(value)]


if __name__ == "__main__":
    serve_stdio(ops, name="Shop")
