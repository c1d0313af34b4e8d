"""The methods of an MCP server: the handshake, resources, prompts and completion; and the table of all methods.

Those about tools are in `tools`, those about tasks in `tasks`. Each gets the server, the exchange and its own parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

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
from enfold.mcp.results import (
    Completion,
    CompletionResult,
    Contents,
    DiscoverResult,
    InitializeResult,
    PromptList,
    PromptMessages,
    ResourceList,
    Result,
    TemplateList,
)
from enfold.mcp.revisions import STATELESS, negotiate
from enfold.mcp.tasks import TASK_METHODS, TASKS
from enfold.operations import OperationSpec
from enfold.operations.access import may_list
from enfold.operations.outcomes import NeedsInput
from enfold.surfaces.mcp import tools
from enfold.surfaces.mcp.catalog import Prompt
from enfold.surfaces.mcp.exchange import ClientExchange, check_level, revision_for
from enfold.surfaces.mcp.uris import with_prefix, without_prefix

if TYPE_CHECKING:
    from enfold.surfaces.mcp.server import MCPServer

MAX_COMPLETIONS: Final = 100


# --- the handshake, and what replaced it ----------------------------------------------------------------------------


def _initialize(server: MCPServer, exchange: ClientExchange, params: Initialize) -> Result:
    revision, session = negotiate(params.protocol_version), exchange.session
    if session is not None:
        session.revision = revision_for(revision, params.client_info, server.text_clients)
        session.capabilities = params.capabilities or {}
    return InitializeResult(
        revision.name, server.capabilities(), server.info, server.instructions_for(exchange.identity)
    )


def _discover(server: MCPServer, exchange: ClientExchange, params: Params) -> Result:
    del params
    capabilities = server.capabilities()
    if server.settings.tasks is not None:
        capabilities["extensions"] = {TASKS: {}}
    instructions = server.instructions_for(exchange.identity)
    result = DiscoverResult([revision.name for revision in STATELESS], capabilities, instructions)
    return exchange.cacheable(result, server.settings.ttl_ms, is_private=server.has_private_instructions)


def _set_level(server: MCPServer, exchange: ClientExchange, params: SetLevel) -> Result:
    del server
    exchange.client.log_level = check_level(params.level)
    if exchange.session is not None:
        exchange.session.has_set_level = True
    return Result()


# --- resources ------------------------------------------------------------------------------------------------------


def _list_resources(server: MCPServer, exchange: ClientExchange, params: Page) -> Result:
    return server.listed(exchange, params.cursor, ResourceList, server.catalog.resources)


def _list_templates(server: MCPServer, exchange: ClientExchange, params: Page) -> Result:
    return server.listed(exchange, params.cursor, TemplateList, server.catalog.templates)


async def _read_resource(server: MCPServer, exchange: ClientExchange, params: ReadResource) -> Result | NeedsInput:
    match = server.resource(exchange, params.uri)
    spec = match.resource.spec
    envelope = await server.run(exchange, spec, dict(match.arguments))
    if isinstance(envelope, NeedsInput):
        return envelope
    blocks = envelope.meta.content if isinstance(envelope.meta, MCPResponseMeta) else ()
    contents = resource_contents(spec, without_prefix(params.uri, match.prefix), envelope.data, blocks)
    if match.prefix:
        contents = [{**each, "uri": with_prefix(each.get("uri", ""), match.prefix)} for each in contents]
    _, meta = fields_of_result(envelope)
    return exchange.cacheable(Contents(contents, meta=meta), 0, is_private=True)


async def _subscribe(server: MCPServer, exchange: ClientExchange, params: Subscribe) -> Result:
    session, uri = exchange.session, params.uri
    match = server.resource(exchange, uri)
    if session is not None and uri not in session.followed:
        server.check_subscriptions([*session.followed, uri])
        release = await server.follow(match, uri)
        if session.is_over or uri in session.followed:  # meanwhile
            release()
        else:
            session.followed[uri] = release
    return Result()


async def _unsubscribe(server: MCPServer, exchange: ClientExchange, params: Subscribe) -> Result:
    session = exchange.session
    if session is not None and params.uri in session.followed:
        session.followed.pop(params.uri)()
    else:
        server.resource(exchange, params.uri)
    return Result()


# --- prompts --------------------------------------------------------------------------------------------------------


def _list_prompts(server: MCPServer, exchange: ClientExchange, params: Page) -> Result:
    return server.listed(exchange, params.cursor, PromptList, server.catalog.prompts)


async def _get_prompt(server: MCPServer, exchange: ClientExchange, params: GetPrompt) -> Result | NeedsInput:
    prompt = _prompt(server, exchange, params.name)
    envelope = await server.run(exchange, prompt.spec, params.arguments or {})
    if isinstance(envelope, NeedsInput):
        return envelope
    fields, meta = fields_of_result(envelope)
    description = fields.get("description", prompt.spec.description or UNSET)
    return PromptMessages(description, prompt_messages(envelope.data), meta=meta)


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
    name, typed = params.argument.name, params.argument.value
    found = server.catalog.completion(spec, name)
    if found is None:
        return _completion(_enum_values(spec, name, typed))
    known = {"argument": name, "value": typed, "arguments": params.others}
    asked = {name: given for name, given in known.items() if name in found.input_schema.get("properties", {})}
    envelope = await server.run(exchange, found, asked)
    if isinstance(envelope, NeedsInput):
        return envelope
    fields, meta = fields_of_result(envelope)
    values = [str(each) for each in envelope.data] if isinstance(envelope.data, list) else []
    return _completion(values, fields, meta)


def _completion(
    values: list[str], said: Mapping[str, Any] = {}, meta: dict[str, Any] | UnsetType = UNSET
) -> CompletionResult:
    """The first of the values; `said` is what another server said of their number."""
    total, has_more = said.get("total", len(values)), said.get("hasMore", len(values) > MAX_COMPLETIONS)
    return CompletionResult(Completion(total, has_more, values[:MAX_COMPLETIONS]), meta=meta)


def _referenced_spec(server: MCPServer, exchange: ClientExchange, reference: Reference) -> OperationSpec:
    if reference.type == "ref/prompt":
        return _prompt(server, exchange, reference.name).spec
    offer = server.offer(exchange, reference.uri)
    if offer is None:
        raise ProtocolError(INVALID_PARAMS, f"Unknown resource: {reference.uri:.200}")
    return offer.spec


def _enum_values(spec: OperationSpec, argument: str, value: str) -> list[str]:
    """The values of an argument that has only a few, as far as they begin like what is typed."""
    part = spec.input_schema.get("properties", {}).get(argument)
    values = part.get("enum", []) if isinstance(part, dict) else []
    return [each for each in values if isinstance(each, str) and each.lower().startswith(value.lower())]


# --- tasks ----------------------------------------------------------------------------------------------------------


async def _about_task(server: MCPServer, exchange: ClientExchange, params: Params) -> Result:
    del params  # they are read once it is known that there are tasks
    from enfold.surfaces.mcp.tasks import answer_about_task  # which needs asyncio

    return await answer_about_task(server, exchange)


# --- the table ------------------------------------------------------------------------------------------------------


class Method(msgspec.Struct, frozen=True):
    """How the requests of a method are answered: by a function of the server, the exchange and the parameters."""

    answer: Callable[[MCPServer, ClientExchange, Any], Any]
    params: type[Params] = Params
    kind: Literal["quick", "slow", "call"] = "quick"  # quick ones need no event loop, calls run an operation
    capability: str = ""  # of ours, without which there is no such method


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
    "ping": Method(lambda *_: Result()),
    "logging/setLevel": Method(_set_level, SetLevel),
    "resources/subscribe": Method(_subscribe, Subscribe, "slow", capability="resources"),
    "resources/unsubscribe": Method(_unsubscribe, Subscribe, "slow", capability="resources"),
}
STATELESS_ONES: Final = {
    **_SHARED,
    "server/discover": Method(_discover),
    **dict.fromkeys(TASK_METHODS, Method(_about_task, kind="slow")),
}
