"""The methods about tools: listing them, and calling one."""

from __future__ import annotations

from enfold.errors import CallError
from enfold.formats import Format, find_format
from enfold.mcp.asking import InputRequired, MissingCapability
from enfold.mcp.headers import check_argument_headers
from enfold.mcp.messages import INVALID_PARAMS, ProtocolError
from enfold.mcp.revisions import Revision
from enfold.operation import new_request_id
from enfold.surfaces.collecting import collect
from enfold.surfaces.mcp.catalog import Tool
from enfold.surfaces.mcp.exchange import Exchange
from enfold.surfaces.mcp.results import FORMAT_KEY, failure, success, with_run_id
from enfold.surfaces.mcp.service import Result, Service, arguments_of

__all__ = ["call_plainly", "call_tool", "list_tools"]


def list_tools(service: Service, exchange: Exchange) -> Result:
    return service.listed(exchange, "tools", service.catalog.tools)


async def call_tool(service: Service, exchange: Exchange) -> Result:
    """Run an operation; whatever it comes to is a result, unless the client must first answer a question."""
    tool = _find(service, exchange)
    asked: Format | None = None
    try:
        asked = _asked_format(exchange)
        arguments = arguments_of(exchange)
        if tool.needs_context or service.records(exchange):
            return with_run_id(await _call_in_context(service, exchange, tool, arguments, asked), exchange.recording)
        if asked is not None:
            envelope = await service.registry.execute(tool.id, arguments)
            return success(tool, envelope, exchange.caller.revision, asked)
    except CallError as error:
        failed = _told(error, asked or tool.format, tool, is_stateless=exchange.is_stateless)
        return with_run_id(failed, exchange.recording)
    return await call_plainly(service, tool, arguments, exchange.caller.revision)


async def call_plainly(service: Service, tool: Tool, arguments: Result, revision: Revision) -> Result:
    """Run what is open to everyone and asks for nothing but its arguments: there is nothing to check or to tell."""
    try:
        envelope = await (tool.prepared or service.prepared(tool)).execute(arguments, None)
        return success(tool, envelope, revision, None)
    except CallError as error:
        return _told(error, tool.format, tool, is_stateless=revision.is_stateless)


def _told(error: CallError, format: Format, tool: Tool, *, is_stateless: bool) -> Result:
    if isinstance(error, InputRequired) or (isinstance(error, MissingCapability) and is_stateless):
        raise error
    error.request_id = error.request_id or new_request_id()
    return failure(error, format, tool.id)


async def _call_in_context(
    service: Service, exchange: Exchange, tool: Tool, arguments: Result, asked: Format | None
) -> Result:
    exchange.subject = tool.id
    # A stream that sets itself no time is given as far as it comes in ours.
    is_endless = tool.is_stream and tool.spec.timeout is None
    context = service.context(exchange, tool.spec, service.settings.collect_for if is_endless else None)
    if not tool.is_stream:
        envelope = await service.registry.execute(tool.id, arguments, context)
        return success(tool, envelope, exchange.revision, asked)
    collected = await collect(service.registry, tool.id, arguments, context)
    return success(tool, collected.envelope, exchange.revision, asked, truncated=collected.truncated)


def _find(service: Service, exchange: Exchange) -> Tool:
    name = exchange.params.get("name")
    tool = service.catalog.tool(name)
    if tool is None:
        raise ProtocolError(INVALID_PARAMS, f"Unknown tool: {name!s:.200}")
    if exchange.headers is not None and tool.mirrors:
        check_argument_headers(tool.mirrors, exchange.headers, exchange.params.get("arguments") or {})
    return tool


def _asked_format(exchange: Exchange) -> Format | None:
    name = exchange.meta.get(FORMAT_KEY)
    return None if name is None else find_format(str(name))
