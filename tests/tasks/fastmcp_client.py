"""A client of FastMCP that knows tasks: it prints what it found at an address."""

import asyncio
import json
import sys
from importlib import import_module
from typing import Any


async def main(url: str) -> None:
    # By name: the type checker need not read FastMCP.
    fastmcp, tasks = import_module("fastmcp"), import_module("fastmcp_tasks")

    async def accept(message: str, response_type: Any, params: Any, context: Any) -> Any:
        return import_module("fastmcp.client.elicitation").ElicitResult(action="accept", content={"name": "Ann"})

    async with fastmcp.Client(url, elicitation_handler=accept) as client:
        called = await client.call_tool("shop_report", {"year": 2026})
        handle = await tasks.call_tool_task(client, "shop_report", {"year": 7})
        endless = await tasks.call_tool_task(client, "shop_report", {"year": 9999})
        await endless.cancel()
        cancelled = await endless.wait(timeout=20)
        signed = await client.call_tool("shop_sign", {})
        failed = await client.call_tool("shop_report", {"year": -1}, raise_on_error=False)
        found = {
            "call": called.structured_content,
            "handle": [len(handle.task_id), (await handle.result()).structured_content],
            "cancel": cancelled.status,
            "question": signed.structured_content,
            "failure": [failed.is_error, failed.content[0].text],
        }
    sys.stdout.write(json.dumps(found))


asyncio.run(main(sys.argv[1]))
