"""Tools of the revision 2025-11-25 that only run as a task: started by one request, fetched by another."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from enfold.operation import Context
from enfold.sources.mcp.driving import cancel_quietly
from enfold.sources.mcp.mcp_limits import MCPLimits
from enfold.sources.mcp.recipients import Recipient
from enfold.sources.mcp.upstream import Upstream

__all__ = ["needs_task", "run_task"]


def needs_task(tool: Mapping[str, Any]) -> bool:
    execution = tool.get("execution")
    return isinstance(execution, Mapping) and execution.get("taskSupport") == "required"


async def run_task(upstream: Upstream, params: dict[str, Any], context: Context) -> dict[str, Any]:
    """Start the task and wait for its result; a caller who gives up cancels the task."""

    async def start(caller: Recipient) -> dict[str, Any]:
        begun = await upstream.converse("tools/call", {**params, "task": {}}, caller, idempotent=False)
        task = begun.get("task")
        if not isinstance(task, Mapping) or not isinstance(task.get("taskId"), str):
            return begun  # it has run as an ordinary call after all
        return await _result(upstream, task["taskId"], caller)

    return await upstream.call("tools/call", params, context, start=start)


async def _result(upstream: Upstream, task_id: str, caller: Recipient) -> dict[str, Any]:
    try:
        return await upstream.converse("tasks/result", {"taskId": task_id}, caller)
    except asyncio.CancelledError:
        nobody = Recipient(Context(), {}, MCPLimits())
        await cancel_quietly(lambda method, params: upstream.converse(method, params, nobody), task_id)
        raise
