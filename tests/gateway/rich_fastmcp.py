"""A FastMCP server with tools, prompts, resources and templates, with and without what they may leave out."""

from typing import Annotated, Any

from fastmcp import FastMCP
from pydantic import BaseModel, Field

server: FastMCP[Any] = FastMCP("rich", instructions="Ask the rich server first.\nThen others.")


class Point(BaseModel):
    x: int
    y: int = 0


@server.tool(annotations={"readOnlyHint": True, "title": "Moves"}, tags={"geometry"}, meta={"team": "maps"})
def move(point: Point, by: Annotated[int, Field(ge=0, le=9, description="How far")] = 1) -> Point:
    """Move a point."""
    return Point(x=point.x + by, y=point.y)


@server.tool
def silent(anything: Any = None) -> None:
    return None


@server.prompt(title="Asks")
def ask(topic: str, style: str = "short") -> str:
    """Ask about a topic."""
    return f"{topic} {style}"


@server.prompt(name="move")
def prompt_with_the_name_of_a_tool() -> str:
    return "Move"


@server.resource("data://config", mime_type="application/json")
def config() -> dict[str, int]:
    return {"a": 1}


@server.resource("data://{name}/item", title="Item")
def item(name: str) -> str:
    """One item."""
    return name


if __name__ == "__main__":
    server.run(show_banner=False)
