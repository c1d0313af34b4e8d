"""The methods of an MCP server: the handshake, resources, prompts and completion; and the table of all methods.

Those about tools are in `tools`, those about tasks in `tasks`. Each gets the server, the exchange and its own parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from enfold.envelope import MCPResponseMeta
from enfold.mcp.json_rpc import INVALID_PARAMS, ProtocolError
from enfold.mcp.messages import (
    CallTool,
    Complete,
    GetPrompt,
    Initialize,
    Page,
    Params,
    ReadResource,
    Reference,
    SetLevel,
    Subscribe,
)
from enfold.mcp.offers import fields_of_result, prompt_messages, resource_contents
from enfold.mcp.revisions import STATELESS, negotiate
from enfold.mcp.tasks import TASKS
from enfold.operations import OperationSpec
from enfold.operations.access import may_list
from enfold.operations.outcomes import NeedsInput
from enfold.surfaces.mcp import tools
from enfold.surfaces.mcp.catalog import Prompt
from enfold.surfaces.mcp.exchange import ClientExchange, Method, Session, check_level, revision_for
from enfold.surfaces.mcp.results import Result
from enfold.surfaces.mcp.uris import with_prefix, without_prefix

if TYPE_CHECKING:
    from enfold.surfaces.mcp.server import MCPServer

MAX_COMPLETIONS: Final = 100


# --- the handshake, and what replaced it ----------------------------------------------------------------------------


def _initialize(server: MCPServer, exchange: ClientExchange, params: Initialize) -> Result:
    revision, session = negotiate(params.protocol_version), exchange.caller
    if isinstance(session, Session):
        session.revision = revision_for(revision, params.client_info, server.text_clients)
        session.capabilities = params.capabilities or {}
    result = {"protocolVersion": revision.name, "capabilities": server.capabilities(), "serverInfo": server.info}
    return _with_instructions(server, exchange, result)


def _discover(server: MCPServer, exchange: ClientExchange, params: Params) -> Result:
    del params
    versions = [revision.name for revision in STATELESS]
    capabilities = server.capabilities()
    if server.settings.tasks is not None:
        capabilities["extensions"] = {TASKS: {}}
    result = _with_instructions(server, exchange, {"supportedVersions": versions, "capabilities": capabilities})
    return exchange.cacheable(result, server.settings.ttl_ms, is_private=server.has_private_instructions)


def _with_instructions(server: MCPServer, exchange: ClientExchange, result: Result) -> Result:
    instructions = server.instructions_for(exchange.identity)
    return result if instructions is None else {**result, "instructions": instructions}


def _ping(server: MCPServer, exchange: ClientExchange, params: Params) -> Result:
    del server, exchange, params
    return {}


def _set_level(server: MCPServer, exchange: ClientExchange, params: SetLevel) -> Result:
    del server
    exchange.caller.log_level = check_level(params.level)
    if isinstance(exchange.caller, Session):
        exchange.caller.has_set_level = True
    return {}


# --- resources ------------------------------------------------------------------------------------------------------


def _list_resources(server: MCPServer, exchange: ClientExchange, params: Page) -> Result:
    return server.listed(exchange, params.cursor, "resources", server.catalog.resources)


def _list_templates(server: MCPServer, exchange: ClientExchange, params: Page) -> Result:
    return server.listed(exchange, params.cursor, "resourceTemplates", server.catalog.templates)


async def _read_resource(server: MCPServer, exchange: ClientExchange, params: ReadResource) -> Result | NeedsInput:
    match = server.resource(exchange, params.uri)
    spec = match.resource.spec
    envelope = await server.run(exchange, spec, dict(match.arguments))
    if isinstance(envelope, NeedsInput):
        return envelope
    blocks = envelope.meta.content if isinstance(envelope.meta, MCPResponseMeta) else ()
    contents = resource_contents(spec, without_prefix(params.uri, match.prefix), envelope.data, blocks)
    result: Result = {**fields_of_result(envelope), "contents": [_named_as(each, match.prefix) for each in contents]}
    return exchange.cacheable(result, 0, is_private=True)


def _named_as(content: Result, prefix: str) -> Result:
    return {**content, "uri": with_prefix(content.get("uri", ""), prefix)} if prefix else content


async def _subscribe(server: MCPServer, exchange: ClientExchange, params: Subscribe) -> Result:
    session, uri = exchange.caller, params.uri
    match = server.resource(exchange, uri)
    if isinstance(session, Session) and uri not in session.followed:
        server.check_subscriptions([*session.followed, uri])
        release = await server.follow(match, uri)
        if session.is_over or uri in session.followed:  # meanwhile
            release()
        else:
            session.followed[uri] = release
    return {}


async def _unsubscribe(server: MCPServer, exchange: ClientExchange, params: Subscribe) -> Result:
    session = exchange.caller
    if isinstance(session, Session) and params.uri in session.followed:
        session.followed.pop(params.uri)()
    else:
        server.resource(exchange, params.uri)
    return {}


# --- prompts --------------------------------------------------------------------------------------------------------


def _list_prompts(server: MCPServer, exchange: ClientExchange, params: Page) -> Result:
    return server.listed(exchange, params.cursor, "prompts", server.catalog.prompts)


async def _get_prompt(server: MCPServer, exchange: ClientExchange, params: GetPrompt) -> Result | NeedsInput:
    prompt = _prompt(server, exchange, params.name)
    envelope = await server.run(exchange, prompt.spec, params.arguments or {})
    if isinstance(envelope, NeedsInput):
        return envelope
    described = {"description": prompt.spec.description} if prompt.spec.description else {}
    return {**described, **fields_of_result(envelope), "messages": prompt_messages(envelope.data)}


def _prompt(server: MCPServer, exchange: ClientExchange, name: str) -> Prompt:
    prompt = server.catalog.prompt(name)
    if prompt is None or not may_list(prompt.spec.access_control, exchange.identity):
        raise server.unknown_name(exchange, "prompt", name, server.catalog.prompts)
    return prompt


# --- completion -----------------------------------------------------------------------------------------------------


async def _complete(server: MCPServer, exchange: ClientExchange, params: Complete) -> Result | NeedsInput:
    """Values for an argument: those an operation proposes, or those its schema lists."""
    spec = _referenced_spec(server, exchange, params.ref)
    server.check_access(exchange, spec, {**params.others, params.argument.name: params.argument.value})
    proposed = await _proposed_values(server, exchange, spec, params)
    if isinstance(proposed, NeedsInput):
        return proposed
    values, counts = proposed
    shown = values[:MAX_COMPLETIONS]
    return {"completion": {"total": len(values), "hasMore": len(values) > len(shown), **counts, "values": shown}}


def _referenced_spec(server: MCPServer, exchange: ClientExchange, reference: Reference) -> OperationSpec:
    if reference.type == "ref/prompt":
        return _prompt(server, exchange, reference.name).spec
    offer = server.offer(exchange, reference.uri)
    if offer is None:
        raise ProtocolError(INVALID_PARAMS, f"Unknown resource: {reference.uri:.200}")
    return offer.spec


async def _proposed_values(
    server: MCPServer, exchange: ClientExchange, spec: OperationSpec, params: Complete
) -> tuple[list[str], Result] | NeedsInput:
    """The values, and what another server said of their number."""
    name, value = params.argument.name, params.argument.value
    found = server.catalog.completion(spec, name)
    if found is None:
        return _enum_values(spec, name, value), {}
    known = {"argument": name, "value": value, "arguments": params.others}
    asked = {name: given for name, given in known.items() if name in found.input_schema.get("properties", {})}
    envelope = await server.run(exchange, found, asked)
    if isinstance(envelope, NeedsInput):
        return envelope
    values = [str(each) for each in envelope.data] if isinstance(envelope.data, list) else []
    return values, fields_of_result(envelope)


def _enum_values(spec: OperationSpec, argument: str, value: str) -> list[str]:
    """The values of an argument that has only a few, as far as they begin like what is typed."""
    part = spec.input_schema.get("properties", {}).get(argument)
    values = part.get("enum", []) if isinstance(part, dict) else []
    return [each for each in values if isinstance(each, str) and each.lower().startswith(value.lower())]


# --- the table ------------------------------------------------------------------------------------------------------


_SHARED: Final = {
    "tools/list": Method(tools.list_tools, Page),
    "resources/list": Method(_list_resources, Page, capability="resources"),
    "resources/templates/list": Method(_list_templates, Page, capability="resources"),
    "prompts/list": Method(_list_prompts, Page, capability="prompts"),
    "tools/call": Method(tools.call_tool, CallTool, "call"),
    "resources/read": Method(_read_resource, ReadResource, "call", capability="resources"),
    "prompts/get": Method(_get_prompt, GetPrompt, "call", capability="prompts"),
    "completion/complete": Method(_complete, Complete, "call", capability="completions"),
}
IN_SESSION: Final = {
    **_SHARED,
    "initialize": Method(_initialize, Initialize),
    "ping": Method(_ping),
    "logging/setLevel": Method(_set_level, SetLevel),
    "resources/subscribe": Method(_subscribe, Subscribe, "slow", capability="resources"),
    "resources/unsubscribe": Method(_unsubscribe, Subscribe, "slow", capability="resources"),
}
STATELESS_ONES: Final = {**_SHARED, "server/discover": Method(_discover)}
