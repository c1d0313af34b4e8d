"""A server written on the official SDK, of both eras: over HTTP as an app, or on the standard streams when run."""

from __future__ import annotations

from typing import Any

import anyio
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.sse import SseServerTransport
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from mcp import MCPError, types

NUMBERS = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}, "required": ["x", "y"]}
SUM = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
WRAPPED = {
    "type": "object",
    "properties": {"result": {"type": "integer"}},
    "required": ["result"],
    "x-fastmcp-wrap-result": True,
}
STATELESS = "2026-07-28"

BUS = InMemorySubscriptionBus()

Context = ServerRequestContext[Any, Any]


def make_server() -> Server[Any]:
    server: Server[Any] = Server(
        "sdk",
        version="1",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_subscribe_resource=subscribe,
        on_unsubscribe_resource=unsubscribe,
        on_subscriptions_listen=ListenHandler(BUS),
        on_completion=complete,
    )
    # By name, because the SDK warns of what is new in no revision any more.
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, set_level)
    return server


# --- tools --------------------------------------------------------------------------------------------------------


def tool(
    name: str, schema: dict[str, Any] | None = None, output: dict[str, Any] | None = None, **more: Any
) -> types.Tool:
    return types.Tool(
        name=name, description=f"Tool {name}", input_schema=schema or {"type": "object"}, output_schema=output, **more
    )


async def list_tools(ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    reads = types.ToolAnnotations(read_only_hint=True, title="Adds")
    region = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    tools = [
        tool("add", NUMBERS, SUM, annotations=reads),
        tool("misfit", None, SUM),
        tool("wrapped", None, WRAPPED),
        tool("steps"),
        tool("ask"),
        tool("slow"),
        tool("touch"),
        tool("mutter"),
        tool("near", region),
        tool("with dots.and spaces"),
    ]
    return types.ListToolsResult(tools=tools)


async def call_tool(
    ctx: Context, params: types.CallToolRequestParams
) -> types.CallToolResult | types.InputRequiredResult:
    arguments = params.arguments or {}
    if params.name == "ask":
        return await ask(ctx, params)
    if params.name == "steps":
        return await steps(ctx)
    if params.name == "touch":
        await BUS.publish(ResourceUpdated(uri="note://first"))
    if params.name == "mutter":
        await mutter(ctx)
    if params.name == "slow":
        await anyio.sleep(60)
    results: dict[str, Any] = {
        "add": {"sum": arguments.get("x", 0) + arguments.get("y", 0)},
        "misfit": {"sum": "42", "note": "not in the schema"},
        "wrapped": {"result": 7},
        "near": {"region": arguments.get("region")},
        "touch": {"touched": True},
        "mutter": {"muttered": True},
        "with dots.and spaces": {"found": True},
    }
    if params.name not in results:
        raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}")
    return types.CallToolResult(content=[types.TextContent(text="done")], structured_content=results[params.name])


async def steps(ctx: Context) -> types.CallToolResult:
    await ctx.session.report_progress(1, 2, "step 1")
    await ctx.session.report_progress(2, 2, "step 2")
    return types.CallToolResult(content=[types.TextContent(text="done")])


async def mutter(ctx: Context) -> None:
    for level in ("debug", "warning"):
        await ctx.session.send_log_message(level, f"a {level}", logger="sdk", related_request_id=ctx.request_id)


async def ask(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult | types.InputRequiredResult:
    """Ask for a name: on the open connection in the older era, as a result in the newest."""
    if ctx.protocol_version < STATELESS:
        answer = await ctx.session.elicit_form("Who are you?", FORM, related_request_id=ctx.request_id)
        return said(answer.action, answer.content)
    given = (params.input_responses or {}).get("who")
    if given is None:
        form = types.ElicitRequestFormParams(message="Who are you?", requested_schema=FORM)
        return types.InputRequiredResult(
            input_requests={"who": types.ElicitRequest(params=form)}, request_state="sealed state"
        )
    assert params.request_state == "sealed state"
    assert isinstance(given, types.ElicitResult)
    return said(given.action, given.content)


def said(action: str, content: Any) -> types.CallToolResult:
    name = content["name"] if content else "anonymous"
    return types.CallToolResult(content=[types.TextContent(text=f"{action}: {name}")])


# --- prompts and resources ----------------------------------------------------------------------------------------


async def list_prompts(ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
    arguments = [types.PromptArgument(name="city", description="Where", required=True)]
    return types.ListPromptsResult(prompts=[types.Prompt(name="weather", description="Asks", arguments=arguments)])


async def get_prompt(ctx: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
    text = types.TextContent(text=f"How is the weather in {(params.arguments or {})['city']}?")
    return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=text)])


async def list_resources(ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
    return types.ListResourcesResult(
        resources=[types.Resource(uri="note://first", name="first", mime_type="text/plain", description="A note")]
    )


async def list_templates(
    ctx: Context, params: types.PaginatedRequestParams | None
) -> types.ListResourceTemplatesResult:
    return types.ListResourceTemplatesResult(
        resource_templates=[
            types.ResourceTemplate(uri_template="note://by/{author}", name="by author", description="Notes")
        ]
    )


async def read_resource(ctx: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    if not str(params.uri).startswith("note://"):
        raise MCPError(types.INVALID_PARAMS, f"Resource not found: {params.uri}")
    return types.ReadResourceResult(contents=[types.TextResourceContents(uri=params.uri, text=f"text of {params.uri}")])


async def subscribe(ctx: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
    return types.EmptyResult()


async def unsubscribe(ctx: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
    return types.EmptyResult()


async def set_level(ctx: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
    return types.EmptyResult()


async def complete(ctx: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
    cities = ["Paris", "Prague", "Porto"]
    values = [city for city in cities if city.startswith(params.argument.value)]
    return types.CompleteResult(completion=types.Completion(values=values))


def make_event_stream_app() -> Starlette:
    """The server on the oldest HTTP transport."""
    server, transport = make_server(), SseServerTransport("/messages/")

    async def listen(scope: Any, receive: Any, send: Any) -> None:
        async with transport.connect_sse(scope, receive, send) as (read, write):
            await server.run(read, write, server.create_initialization_options())

    return Starlette(routes=[Route("/sse", _App(listen)), Mount("/messages/", transport.handle_post_message)])


class _App:
    """An ASGI app that is a function; Starlette takes a bare one for a handler of requests."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)


if __name__ == "__main__":
    from mcp.server.stdio import stdio_server

    async def main() -> None:
        server = make_server()
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    anyio.run(main)
