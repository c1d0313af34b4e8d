"""A server of FastMCP whose tools are tasks; it prints each method that comes, and when."""

import asyncio
import json
import sys
import time
from datetime import timedelta
from importlib import import_module
from typing import Any

INTERVAL = 0.3  # seconds, that the server asks its clients to wait
QUESTION = {
    "message": "Who signs?",
    "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
}


def build() -> Any:
    # By name: the type checker need not read FastMCP.
    fastmcp, tasks, types = import_module("fastmcp"), import_module("fastmcp_tasks"), import_module("mcp_types")
    config = import_module("fastmcp.utilities.tasks").TaskConfig
    server = fastmcp.FastMCP("shop")
    server.add_extension(tasks.TasksExtension())
    often = config(mode="required", poll_interval=timedelta(seconds=INTERVAL))

    async def slow(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "done"

    async def failing() -> str:
        raise ValueError("No such year")

    async def sign(context: Any) -> Any:
        if context.input_responses is None:
            return types.InputRequiredResult(input_requests={"who": types.ElicitRequest(params=QUESTION)})
        return f"signed by {context.input_responses['who'].content['name']}"

    sign.__annotations__["context"] = fastmcp.Context
    for tool in (slow, failing, sign):
        server.tool(tool, task=often)
    return _Telling(server.http_app(path="/mcp", json_response=True))


class _Telling:
    """The app, and a line on stdout for every message that it is sent."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def hear() -> Any:
            message = await receive()
            if message["type"] == "http.request" and message.get("body"):
                sys.stdout.write(json.dumps([json.loads(message["body"])["method"], time.monotonic()]) + "\n")
                sys.stdout.flush()
            return message

        await self._app(scope, hear if scope["type"] == "http" else receive, send)


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(build(), host="127.0.0.1", port=int(sys.argv[1]), log_level="error", access_log=False)
