"""A server with state on the standard streams: written on FastMCP, on the official SDK, or on nothing at all.

`python counter_server.py fastmcp|sdk|plain`: `add` counts up, `read` reads, `confirm` asks first, `grow` adds a tool.
"""

import json
import sys
from typing import Any

FORM: dict[str, Any] = {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]}
EMPTY: dict[str, Any] = {"type": "object", "properties": {}}


def serve_fastmcp() -> None:
    from dataclasses import dataclass

    from fastmcp import Context, FastMCP

    server = FastMCP("counter")
    count = 0

    @dataclass
    class Sure:
        sure: bool

    @server.tool
    def add() -> int:
        nonlocal count
        count += 1
        return count

    @server.tool
    def read() -> int:
        return count

    @server.tool
    async def confirm(ctx: Context) -> str:
        answer = await ctx.elicit("Sure?", Sure)
        return answer.action

    @server.tool
    async def grow(ctx: Context) -> str:
        server.add_tool(_named(new))
        await ctx.send_notification(_tools_changed())
        return "grown"

    def new() -> int:
        return count

    server.run(show_banner=False)


def _named(function: Any) -> Any:
    from fastmcp.tools import Tool

    return Tool.from_function(function, name="new")


def _tools_changed() -> Any:
    from mcp import types

    return types.ToolListChangedNotification()


def serve_sdk() -> None:
    from mcp.server.mcpserver import Context, MCPServer
    from pydantic import BaseModel

    server = MCPServer("counter")
    count = 0

    class Sure(BaseModel):
        sure: bool

    @server.tool()
    def add() -> int:
        nonlocal count
        count += 1
        return count

    @server.tool()
    def read() -> int:
        return count

    @server.tool()
    async def confirm(ctx: Context[Any, Any]) -> str:
        answer = await ctx.elicit("Sure?", Sure)
        return answer.action

    @server.tool()
    async def grow(ctx: Context[Any, Any]) -> str:
        server.add_tool(read, name="new")
        await ctx.session.send_tool_list_changed()
        return "grown"

    server.run()


def serve_plain() -> None:
    """A server of the older era that reads on while it waits for an answer."""
    tools = ["add", "read", "confirm", "grow"]
    count = 0
    asked: dict[str, object] = {}

    def write(**message: Any) -> None:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()

    def answer(request_id: object, text: object) -> None:
        write(id=request_id, result={"content": [{"type": "text", "text": str(text)}]})

    for line in sys.stdin:
        message = json.loads(line)
        method, own_id, params = message.get("method"), message.get("id"), message.get("params") or {}
        if method == "initialize":
            capabilities = {"tools": {"listChanged": True}}
            info = {"name": "counter", "version": "1"}
            write(id=own_id, result={"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": info})
        elif method == "tools/list":
            write(id=own_id, result={"tools": [{"name": name, "inputSchema": EMPTY} for name in tools]})
        elif method == "tools/call" and params["name"] == "confirm":
            asked[f"q{own_id}"] = own_id
            write(id=f"q{own_id}", method="elicitation/create", params={"message": "Sure?", "requestedSchema": FORM})
        elif method == "tools/call":
            if params["name"] == "grow":
                tools.append("new")
                write(method="notifications/tools/list_changed")
            count += params["name"] == "add"
            answer(own_id, count)
        elif method is None and own_id in asked:
            answer(asked.pop(own_id), message.get("result", {}).get("action", "refused"))
        elif own_id is not None:
            write(id=own_id, error={"code": -32601, "message": "There is no such method"})


if __name__ == "__main__":
    {"fastmcp": serve_fastmcp, "sdk": serve_sdk, "plain": serve_plain}[sys.argv[1]]()
