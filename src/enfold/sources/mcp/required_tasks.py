"""Tools of the revision 2025-11-25 that only run as a task: started by one request, fetched by another."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from enfold.mcp.json_rpc import fields_of
from enfold.operation import Context
from enfold.operation.handing_over import is_left, note_task, noted_task
from enfold.sources.mcp.driving import cancel_quietly
from enfold.sources.mcp.mcp_limits import MCPLimits
from enfold.sources.mcp.recipients import Recipient
from enfold.sources.mcp.upstream import ServerRequest, Upstream


def needs_task(tool: Mapping[str, Any]) -> bool:
    return fields_of(tool.get("execution")).get("taskSupport") == "required"


async def run_task(upstream: Upstream, params: dict[str, Any], context: Context) -> dict[str, Any]:
    """Start the task and wait for its result; a caller who gives up cancels the task."""

    async def start(caller: Recipient) -> dict[str, Any]:
        if (noted := noted_task(caller.context)) is not None:
            return await _result(upstream, noted, caller)
        request = ServerRequest("tools/call", {**params, "task": {}}, idempotent=False)
        begun = await upstream.converse(request, caller)
        task_id = fields_of(begun.get("task")).get("taskId")
        if not isinstance(task_id, str):
            return begun  # it has run as an ordinary call after all
        await note_task(caller.context, task_id)
        return await _result(upstream, task_id, caller)

    return await upstream.run(start, context)


async def _result(upstream: Upstream, task_id: str, caller: Recipient) -> dict[str, Any]:
    try:
        return await upstream.converse(ServerRequest("tasks/result", {"taskId": task_id}), caller)
    except asyncio.CancelledError:
        if is_left(caller.context):
            raise
        nobody = Recipient(Context(), {}, MCPLimits())
        await cancel_quietly(lambda method, params: upstream.converse(ServerRequest(method, params), nobody), task_id)
        raise
