"""The methods about tools: listing them, and calling one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from enfold.errors import CallError, invalid_argument, safe_code
from enfold.formats import Format, find_format
from enfold.mcp.json_rpc import FORMAT_KEY, IDEMPOTENCY_KEY, INTERNAL_ERROR, NAMESPACE_KEY, ProtocolError
from enfold.mcp.messages import CallTool, Page
from enfold.mcp.results import Result, ToolList, ToolResult
from enfold.mcp.tasks import declares_tasks
from enfold.operations import Context, Identity, OperationSpec, new_request_id
from enfold.operations.access import is_hidden
from enfold.operations.outcomes import Deferred, NeedsInput, Outcome, envelope_of
from enfold.operations.questions import MissingCapabilityError
from enfold.runtime.prepared import PreparedOperation
from enfold.surfaces.mcp.catalog import MCPTool
from enfold.surfaces.mcp.exchange import ClientExchange
from enfold.surfaces.mcp.results import RUN_KEY, failure, write_result

if TYPE_CHECKING:
    from enfold.surfaces.mcp.server import MCPServer
    from enfold.tasks import Tasks

SELECT_KEY: Final = "enfold/select"


def list_tools(server: MCPServer, exchange: ClientExchange, params: Page) -> Result:
    """The tools that the client may call, or a search in their place; those of the namespace `enfold` must be asked for."""
    namespace = exchange.meta.get(NAMESPACE_KEY)
    if namespace is not None:
        return server.listed(exchange, params.cursor, ToolList, server.catalog.tools_in(str(namespace)))
    return server.listed(exchange, params.cursor, ToolList, server.tools_for(exchange), server.catalog.tools)


async def call_tool(server: MCPServer, exchange: ClientExchange, params: CallTool) -> Result | NeedsInput:
    """Run an operation: its result, which may report a failure; a reference to a task; or questions for the client."""
    tool = server.known_tools.get(params.name)
    if tool is None:
        tool = server.catalog.tool(params.name)
        if tool is None:
            raise server.unknown_name(exchange, "tool", params.name, server.catalog.tools)
        server.known_tools[params.name] = tool
    exchange.operation = tool.prepared.operation
    if tool.find_target is not None:
        return await _call_operation(server, exchange, tool, tool.find_target, params)
    _check_call(server, exchange, tool, params)
    asked: Format | None = None
    try:
        if FORMAT_KEY in exchange.meta:
            asked = find_format(str(exchange.meta[FORMAT_KEY]))
        outcome = await _run(server, exchange, tool, params, asked)
        if isinstance(outcome, NeedsInput):
            return outcome
        if isinstance(outcome, Deferred):
            from enfold.surfaces.mcp.tasks import task_reference  # which needs asyncio

            return task_reference(server, exchange, outcome.task)
        exchange.envelope = outcome
        result = write_result(server, exchange, tool, outcome, asked)
    except CallError as error:
        exchange.code = safe_code(error.code)
        result = _failed(error, asked or tool.format, tool, is_stateless=exchange.is_stateless)
    if exchange.recording is not None and exchange.recording.is_kept:
        result.add_meta({RUN_KEY: exchange.recording.run_id})
    return result


def _check_call(server: MCPServer, exchange: ClientExchange, tool: MCPTool, params: CallTool) -> None:
    """Refuse a tool that is hidden from its caller, and arguments that differ from their HTTP headers."""
    if not tool.prepared.is_open and is_hidden(tool.spec.access_control, exchange.identity):
        raise server.unknown_name(exchange, "tool", params.name, server.catalog.tools)
    if tool.mirrors and exchange.is_stateless and exchange.headers is not None and not exchange.is_relayed:
        from enfold.mcp.headers import check_argument_headers  # over HTTP alone

        check_argument_headers(tool.mirrors, exchange.headers, params.arguments or {})


def _run(
    server: MCPServer, exchange: ClientExchange, tool: MCPTool, params: CallTool, asked: Format | None
) -> Awaitable[Outcome]:
    """Run an operation as a task, as a stream that is collected, or as a call."""
    prepared = tool.prepared if asked is None else tool.prepared_for(asked)
    arguments, tasks = _arguments(params), server.settings.tasks
    is_task = tool.spec.durable != "never" and tasks is not None and _becomes_task(exchange, tool)
    if is_task and (not tool.spec.asks_first or IDEMPOTENCY_KEY in exchange.meta):
        return _order_task(server, exchange, tool, arguments)
    if prepared.is_stream:
        return _collect(server, exchange, tool, arguments)
    context = None
    if is_task or _needs_context(server, exchange, prepared):
        context = _context(server, exchange, tool)
        context.accepts_task = is_task
        if not is_task and tasks is not None and prepared.operation.origin.kind == "mcp" and _takes_tasks(exchange):
            tasks.offer_to_take(prepared, context)
    return prepared.execute(arguments, context)


def _needs_context(server: MCPServer, exchange: ClientExchange, prepared: PreparedOperation) -> bool:
    return (
        prepared.needs_context
        or not prepared.is_open
        or server.settings.recorder is not None
        or IDEMPOTENCY_KEY in exchange.meta
        or SELECT_KEY in exchange.meta
    )


def _becomes_task(exchange: ClientExchange, tool: MCPTool) -> bool:
    """Whether a durable operation runs as a task; MissingCapabilityError where it has to and its client takes none."""
    if tool.spec.durable == "required" and exchange.is_stateless:
        from enfold.surfaces.mcp.tasks import check_declared  # which needs asyncio

        check_declared(exchange)
    return _takes_tasks(exchange)


async def _order_task(server: MCPServer, exchange: ClientExchange, tool: MCPTool, arguments: dict[str, Any]) -> Outcome:
    """Order a task, which is stored when this returns."""
    answers, capabilities = exchange.answers, exchange.capabilities
    context = _context(server, exchange, tool)
    tasks: Tasks = server.settings.tasks
    handle = await tasks.order(tool.id, arguments, context, answers=answers, capabilities=capabilities)
    return Deferred(handle.last or await handle.state())


def _takes_tasks(exchange: ClientExchange) -> bool:
    return exchange.is_stateless and declares_tasks(exchange.client.capabilities)


async def _collect(server: MCPServer, exchange: ClientExchange, tool: MCPTool, arguments: dict[str, Any]) -> Outcome:
    """Collect the items of a stream as one result, until its timeout or our default."""
    from enfold.surfaces.collection import collect  # most tools give one result

    timeout = server.settings.collect_for if tool.spec.timeout is None else None
    context = _context(server, exchange, tool, timeout)
    collected = await collect(server.registry, tool.id, arguments, context)
    exchange.is_truncated = collected.truncated
    return collected.outcome


def _context(server: MCPServer, exchange: ClientExchange, tool: MCPTool, timeout: float | None = None) -> Context:
    """The context of a call, with what its `_meta` asks for."""
    exchange.subject = tool.id
    context = server.context(exchange, tool.spec, timeout)
    context.select = _selection(exchange, tool)
    return context


def _selection(exchange: ClientExchange, tool: MCPTool) -> str | None:
    """Return the client's selection of fields; reject it if the tool has an outputSchema."""
    text = exchange.meta.get(SELECT_KEY)
    if text is None or exchange.is_relayed:
        return text
    if not isinstance(text, str):
        told = f"{SELECT_KEY} must be a string, as in items(id,title),total"
        raise invalid_argument(SELECT_KEY, "type", "string", told)
    if tool.output_schema_for(exchange.revision) is not None:
        told = f"{tool.name} has an outputSchema, which a selection would not match: omit {SELECT_KEY}"
        raise invalid_argument(SELECT_KEY, "constraint", "a tool without an outputSchema", told)
    return text


async def _call_operation(
    server: MCPServer,
    exchange: ClientExchange,
    relay: MCPTool,
    find_target: Callable[[str, Identity | None], OperationSpec],
    params: CallTool,
) -> Result | NeedsInput:
    """Run the operation that `call_operation` names, as if it had been called by its own name."""
    try:
        asked = envelope_of(await relay.prepared.execute(_arguments(params), None)).data
        if isinstance(asked, msgspec.Raw):
            asked = msgspec.json.decode(asked)
        spec = find_target(asked["id"], exchange.identity)
    except CallError as error:
        return _failed(error, relay.format, relay, is_stateless=exchange.is_stateless)
    exchange.meta = {**exchange.meta, SELECT_KEY: asked["select"]}
    exchange.is_relayed = True
    return await call_tool(server, exchange, CallTool(name=spec.id, arguments=asked["arguments"]))


def _failed(error: CallError, format: Format, tool: MCPTool, *, is_stateless: bool) -> ToolResult:
    """Build the result of a failed call; a missing capability is an error of the stateless protocol."""
    if is_stateless and isinstance(error, MissingCapabilityError):
        raise error
    if tool.spec.durable != "never" and (error.code, error.details.get("reason")) == ("UNAVAILABLE", "store"):
        raise ProtocolError(INTERNAL_ERROR, error.message) from error  # it is unknown whether there is a task
    error.request_id = error.request_id or new_request_id()
    return failure(error, format, tool.id)


def _arguments(params: CallTool) -> dict[str, Any]:
    if params.arguments is not None and not isinstance(params.arguments, dict):
        raise invalid_argument("", "type", "object", "Invalid arguments format: they must be an object")
    return params.arguments or {}
