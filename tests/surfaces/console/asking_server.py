"""An MCP server that takes its time, asks, and dies: `python asking_server.py`."""

import os

from fastmcp import Context, FastMCP
from pydantic import BaseModel, Field

server = FastMCP("desk")


class Guest(BaseModel):
    name: str = Field(title="Full name", description="As it is in your passport.")
    nights: int = Field(default=1, title="Nights", description="How long you stay.", ge=1, le=30)


@server.tool
async def check_in(ctx: Context) -> str:
    """Check a guest in, after some questions."""
    await ctx.report_progress(1, 4, "looking for a room")
    await ctx.info("room 7 is free")
    answer = await ctx.elicit("Who are <b>you</b>?", Guest)
    await ctx.report_progress(4, 4)
    return f"{answer.data.name}: {answer.data.nights}" if answer.action == "accept" else answer.action


@server.tool
def fire() -> None:
    """End the server without a word."""
    os._exit(1)


if __name__ == "__main__":
    server.run(show_banner=False)
