"""The methods about tools: listing them, and calling one."""

from __future__ import annotations

from typing import Final

import msgspec

from enfold.errors import CallError, invalid_argument, safe_code
from enfold.formats import Format, find_format
from enfold.mcp.json_rpc import IDEMPOTENCY_KEY, INTERNAL_ERROR, NAMESPACE_KEY, ProtocolError
from enfold.mcp.tasks import declares_tasks
from enfold.operations import Context, Detached, new_request_id
from enfold.operations.access import is_hidden
from enfold.operations.context import DETACHABLE
from enfold.operations.handing_over import HandedOver
from enfold.operations.questions import InputRequired, MissingCapability
from enfold.surfaces.mcp.catalog import MCPTool
from enfold.surfaces.mcp.exchange import ClientExchange
from enfold.surfaces.mcp.results import FORMAT_KEY, failure, with_run_id, write_result
from enfold.surfaces.mcp.service import Result, Service, arguments_of

SELECT_KEY: Final = "enfold/select"


def list_tools(service: Service, exchange: ClientExchange) -> Result:
    """The tools that the client may call, or a search in their place; those of the namespace `enfold` must be asked for."""
    namespace = exchange.meta.get(NAMESPACE_KEY)
    if namespace is not None:
        return service.listed(exchange, "tools", service.catalog.tools_in(str(namespace)))
    return service.listed(exchange, "tools", service.tools_for(exchange), service.catalog.tools)


async def call_tool(service: Service, exchange: ClientExchange) -> Result:
    """Run an operation; its failure is a result too, but a question to the client is raised."""
    name = exchange.params.get("name")
    tool = (service.known_tools.get(name) if type(name) is str else None) or _find_tool(service, exchange)
    prepared, revision = tool.prepared, exchange.caller.revision
    exchange.operation = prepared.operation
    if tool.is_relay:
        return await _call_operation(service, exchange, tool)
    if not prepared.is_open and is_hidden(tool.spec.access_control, exchange.identity):
        raise service.unknown_name(exchange, "tool", name, service.catalog.tools)
    if revision.is_stateless and exchange.headers is not None and tool.mirrors and not exchange.is_relayed:
        from enfold.mcp.headers import check_argument_headers  # over HTTP alone

        check_argument_headers(tool.mirrors, exchange.headers, exchange.params.get("arguments") or {})
    asked: Format | None = None
    try:
        if FORMAT_KEY in exchange.meta:
            asked = find_format(str(exchange.meta[FORMAT_KEY]))
            prepared = tool.prepared_for(asked)
        arguments = exchange.params.get("arguments")
        if type(arguments) is not dict:
            arguments = arguments_of(exchange)
        tasks = service.settings.tasks
        is_task = tool.spec.durable != "never" and tasks is not None and _becomes_task(exchange, tool)
        if is_task and (not tool.spec.asks_first or IDEMPOTENCY_KEY in exchange.meta):
            return await _start_task(service, exchange, tool, arguments)
        if prepared.is_stream:
            return with_run_id(await _collect(service, exchange, tool, arguments, asked), exchange.recording)
        context = None
        if (
            prepared.needs_context
            or not prepared.is_open
            or is_task
            or service.settings.recorder is not None
            or IDEMPOTENCY_KEY in exchange.meta
            or SELECT_KEY in exchange.meta
        ):
            context = _context(service, exchange, tool)
            if is_task:
                context.meta = {**(context.meta or {}), DETACHABLE: True}
            elif tasks is not None and prepared.operation.origin.kind == "mcp" and _takes_tasks(exchange):
                tasks.offer_to_take(tool.id, context)
        try:
            envelope = exchange.envelope = await prepared.execute(arguments, context)
        except Detached:
            return await _start_task(service, exchange, tool, arguments)
        result = write_result(service, exchange, tool, envelope, asked)
    except HandedOver as handed:
        return _task_reference(handed)
    except CallError as error:
        exchange.code = safe_code(error.code)
        result = _failed(error, asked or tool.format, tool, is_stateless=revision.is_stateless)
    return result if exchange.recording is None else with_run_id(result, exchange.recording)


def _becomes_task(exchange: ClientExchange, tool: MCPTool) -> bool:
    """Whether a durable operation runs as a task; MissingCapability where it has to and its client takes none."""
    if tool.spec.durable == "required" and exchange.is_stateless:
        from enfold.surfaces.mcp.tasks import check_declared  # which needs asyncio

        check_declared(exchange)
    return _takes_tasks(exchange)


async def _start_task(service: Service, exchange: ClientExchange, tool: MCPTool, arguments: Result) -> Result:
    from enfold.surfaces.mcp.tasks import start_task  # which needs asyncio

    return await start_task(service, exchange, tool, arguments, _context(service, exchange, tool))


def _takes_tasks(exchange: ClientExchange) -> bool:
    return exchange.is_stateless and declares_tasks(exchange.caller.capabilities)


def _task_reference(handed: HandedOver) -> Result:
    from enfold.surfaces.tasks import flat_task  # only where there are tasks

    return {"resultType": "task", **flat_task(handed.task)}


async def _collect(
    service: Service, exchange: ClientExchange, tool: MCPTool, arguments: Result, asked: Format | None
) -> Result:
    """The items of a stream as one result: as many as come before its own timeout, or ours where it has none."""
    from enfold.surfaces.collection import collect  # most tools give one result

    timeout = service.settings.collect_for if tool.spec.timeout is None else None
    context = _context(service, exchange, tool, timeout)
    collected = await collect(service.registry, tool.id, arguments, context)
    exchange.envelope = collected.envelope
    return write_result(service, exchange, tool, collected.envelope, asked, truncated=collected.truncated)


def _context(service: Service, exchange: ClientExchange, tool: MCPTool, timeout: float | None = None) -> Context:
    """The context of a call, with what its `_meta` asks for."""
    exchange.subject = tool.id
    context = service.context(exchange, tool.spec, timeout)
    context.select = _selection(exchange, tool)
    return context


def _selection(exchange: ClientExchange, tool: MCPTool) -> str | None:
    """The selection of fields that the client asks for; refused where the tool promises an outputSchema."""
    text = exchange.meta.get(SELECT_KEY)
    if text is None or exchange.is_relayed:
        return text
    if not isinstance(text, str):
        told = f"{SELECT_KEY} must be a text, as in items(id,title),total"
        raise invalid_argument(SELECT_KEY, "type", "string", told)
    if tool.output_schema_for(exchange.revision) is not None:
        told = f"{tool.name} promises an outputSchema, which a selection would break: leave out {SELECT_KEY}"
        raise invalid_argument(SELECT_KEY, "constraint", "a tool without an outputSchema", told)
    return text


async def _call_operation(service: Service, exchange: ClientExchange, relay: MCPTool) -> Result:
    """Run the operation that `call_operation` names, as if it had been called by its own name."""
    try:
        asked = (await relay.prepared.execute(arguments_of(exchange), None)).data
        if isinstance(asked, msgspec.Raw):
            asked = msgspec.json.decode(asked)
        spec = service.relay_target(asked, exchange)
    except CallError as error:
        return _failed(error, relay.format, relay, is_stateless=exchange.revision.is_stateless)
    exchange.params = {**exchange.params, "name": spec.id, "arguments": asked["arguments"] or {}}
    exchange.meta = {**exchange.meta, SELECT_KEY: asked["select"]}
    exchange.is_relayed = True
    return await call_tool(service, exchange)


def _failed(error: CallError, format: Format, tool: MCPTool, *, is_stateless: bool) -> Result:
    """The result that tells of a failure; a question to the client is raised again."""
    if isinstance(error, InputRequired) or (isinstance(error, MissingCapability) and is_stateless):
        raise error
    if tool.spec.durable != "never" and (error.code, error.details.get("reason")) == ("UNAVAILABLE", "store"):
        raise ProtocolError(INTERNAL_ERROR, error.message) from error  # nobody knows whether there is a task
    error.request_id = error.request_id or new_request_id()
    return failure(error, format, tool.id)


def _find_tool(service: Service, exchange: ClientExchange) -> MCPTool:
    name = exchange.params.get("name")
    tool = service.catalog.tool(name) or service.search_tool(name)
    if tool is None:
        raise service.unknown_name(exchange, "tool", name, service.catalog.tools)
    service.known_tools[str(name)] = tool
    return tool
