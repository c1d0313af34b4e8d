"""The fixtures of the MCP conformance suite once more, written on the official SDK: the upstream of the gateway.

`python -m tests.conformance.sdk_server` speaks on the standard streams, with `--port 3902` over HTTP.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from base64 import b64decode
from typing import Annotated, Any, Final, TypeAlias

from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver import Context, MCPServer, RequestStateSecurity
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.prompts.base import Prompt, UserMessage
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from pydantic import Field
from tests.conformance.server import ADDRESS_SCHEMA, CONFIRM_FORM, NAME_FORM, PNG, WAV

from mcp import MCPError, types

Low: TypeAlias = ServerRequestContext[Any, Any]

SECRET: Final = b"a secret of thirty-two bytes or so"
COLOR_FORM: Final = {"type": "object", "properties": {"color": {"type": "string"}}, "required": ["color"]}
CONTEXT_FORM: Final = {"type": "object", "properties": {"context": {"type": "string"}}, "required": ["context"]}

server: Final = MCPServer("sdk-conformance", version="1", request_state_security=RequestStateSecurity(keys=[SECRET]))


def text(words: str) -> types.TextContent:
    return types.TextContent(text=words)


# --- content ------------------------------------------------------------------------------------------------------


@server.tool()
def test_simple_text() -> str:
    """A text."""
    return "This is a simple text response for testing."


@server.tool()
def test_image_content() -> list[types.ImageContent]:
    """An image."""
    return [types.ImageContent(data=PNG, mime_type="image/png")]


@server.tool()
def test_audio_content() -> list[types.AudioContent]:
    """A sound."""
    return [types.AudioContent(data=WAV, mime_type="audio/wav")]


def embedded(uri: str, words: str, mime_type: str = "text/plain") -> types.EmbeddedResource:
    return types.EmbeddedResource(resource=types.TextResourceContents(uri=uri, mime_type=mime_type, text=words))


@server.tool()
def test_embedded_resource() -> list[types.EmbeddedResource]:
    """A resource in full."""
    return [embedded("test://embedded-resource", "This is an embedded resource content.")]


@server.tool()
def test_multiple_content_types() -> list[types.TextContent | types.ImageContent | types.EmbeddedResource]:
    """A text, an image and a resource."""
    inner = embedded("test://mixed-content-resource", '{"test": "data", "value": 123}', "application/json")
    return [text("Multiple content types test:"), types.ImageContent(data=PNG, mime_type="image/png"), inner]


@server.tool()
def test_error_handling() -> str:
    """Always fails."""
    raise ToolError("This tool intentionally returns an error for testing")


# --- on the way ---------------------------------------------------------------------------------------------------


@server.tool()
async def test_tool_with_progress(ctx: Context) -> str:
    """Reports its progress."""
    for progress in (0, 50, 100):
        await ctx.report_progress(progress, 100, f"Completed step {progress} of 100")
        await asyncio.sleep(0.05)
    return "Done"


async def say(ctx: Context, words: str) -> None:
    """A log message that belongs to the call; the shorter way of the SDK warns that it will go."""
    await ctx.session.send_log_message("info", words, related_request_id=ctx.request_id)


@server.tool()
async def test_tool_with_logging(ctx: Context) -> str:
    """Says what it does."""
    for words in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await say(ctx, words)
        await asyncio.sleep(0.05)
    return "Done"


@server.tool()
async def test_logging_tool(ctx: Context) -> str:
    """Says something, to those who asked to hear it."""
    await say(ctx, "A message for those who asked for messages")
    return "Done"


@server.tool()
async def test_reconnection(ctx: Context) -> str:
    """Lets the connection go in the middle; the client comes back for the result."""
    await ctx.close_sse_stream()
    await asyncio.sleep(0.2)
    return "Reconnection test completed successfully"


# --- asking, on the open connection -------------------------------------------------------------------------------


@server.tool()
async def test_sampling(prompt: str, ctx: Context) -> str:
    """Asks the client's model."""
    messages = [types.SamplingMessage(role="user", content=text(prompt))]
    answer = await ctx.session.create_message(messages, max_tokens=100, related_request_id=ctx.request_id)
    return f"LLM response: {answer.content}"


async def fill_in(ctx: Context, message: str, properties: dict[str, Any], required: list[str] | None = None) -> str:
    form = {"type": "object", "properties": properties, "required": required or []}
    answer = await ctx.session.elicit_form(message, form, related_request_id=ctx.request_id)
    return f"Elicitation completed: action={answer.action}, content={json.dumps(answer.content)}"


@server.tool()
async def test_elicitation(message: str, ctx: Context) -> str:
    """Asks the user."""
    described = {"type": "string", "description": "User's response"}
    return await fill_in(ctx, message, {"username": described, "email": described}, ["username", "email"])


@server.tool()
async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    """Asks with a default for every field."""
    return await fill_in(
        ctx,
        "Please fill in the form",
        {
            "name": {"type": "string", "default": "John Doe"},
            "age": {"type": "integer", "default": 30},
            "score": {"type": "number", "default": 95.5},
            "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
            "verified": {"type": "boolean", "default": True},
        },
    )


@server.tool()
async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    """Asks for a choice in every form a choice may have."""
    plain = ["option1", "option2", "option3"]
    titled = [{"const": f"value{number}", "title": f"Option {number}"} for number in (1, 2, 3)]
    return await fill_in(
        ctx,
        "Please choose",
        {
            "untitledSingle": {"type": "string", "enum": plain},
            "titledSingle": {"type": "string", "oneOf": titled},
            "legacyEnum": {"type": "string", "enum": plain, "enumNames": ["One", "Two", "Three"]},
            "untitledMulti": {"type": "array", "items": {"type": "string", "enum": plain}},
            "titledMulti": {"type": "array", "items": {"anyOf": titled}},
        },
    )


# --- asking, by a result ------------------------------------------------------------------------------------------


@server.tool()
async def test_missing_capability(ctx: Context) -> str:
    """Needs a client with a model."""
    offered = ctx.client_capabilities
    if offered is None or offered.sampling is None:
        needed: dict[str, Any] = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(
            types.MISSING_REQUIRED_CLIENT_CAPABILITY,
            "This operation needs a client with the capability sampling",
            needed,
        )
    return "It is there"


def form(message: str, schema: dict[str, Any]) -> types.ElicitRequest:
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def sampled(prompt: str) -> types.CreateMessageRequest:
    messages = [types.SamplingMessage(role="user", content=text(prompt))]
    return types.CreateMessageRequest(params=types.CreateMessageRequestParams(messages=messages, max_tokens=100))


def asks(requests: dict[str, types.InputRequest], state: str | None = None) -> types.InputRequiredResult:
    return types.InputRequiredResult(input_requests=requests, request_state=state)


def given(ctx: Context, key: str) -> dict[str, Any] | None:
    """The fields of a form that came with this round; an answer of another kind has none."""
    answer = (ctx.input_responses or {}).get(key)
    if answer is None:
        return None
    return dict(answer.content or {}) if isinstance(answer, types.ElicitResult) else {}


@server.tool()
async def test_streaming_elicitation(ctx: Context) -> str | types.InputRequiredResult:
    """Asks for a name, whatever the client speaks."""
    answer = given(ctx, "user_name")
    return asks({"user_name": form("What is your name?", NAME_FORM)}) if answer is None else str(answer)


@server.tool()
async def test_input_required_result_elicitation(ctx: Context) -> str | types.InputRequiredResult:
    """Asks for a name."""
    answer = given(ctx, "user_name")
    return asks({"user_name": form("What is your name?", NAME_FORM)}) if answer is None else f"Hello, {answer['name']}!"


@server.tool()
async def test_input_required_result_sampling(ctx: Context) -> str | types.InputRequiredResult:
    """Asks the client's model."""
    answer = given(ctx, "capital_question")
    return asks({"capital_question": sampled("What is the capital of France?")}) if answer is None else "It said so"


@server.tool()
async def test_input_required_result_list_roots(ctx: Context) -> str | types.InputRequiredResult:
    """Asks for the client's folders."""
    answer = given(ctx, "client_roots")
    return asks({"client_roots": types.ListRootsRequest()}) if answer is None else "There they are"


@server.tool()
async def test_input_required_result_request_state(ctx: Context) -> str | types.InputRequiredResult:
    """Remembers something from one round to the next."""
    if given(ctx, "confirm") is None:
        return asks({"confirm": form("Please confirm", CONFIRM_FORM)}, "state-ok")
    return str(ctx.request_state)


@server.tool()
async def test_input_required_result_tampered_state(ctx: Context) -> str | types.InputRequiredResult:
    """Asks for a confirmation."""
    if ctx.request_state is None:
        return asks({"confirm": form("Please confirm", CONFIRM_FORM)}, "round 1")
    return "Confirmed"


@server.tool()
async def test_input_required_result_multiple_inputs(ctx: Context) -> str | types.InputRequiredResult:
    """Asks three questions at once."""
    asked: dict[str, types.InputRequest] = {
        "user_name": form("What is your name?", NAME_FORM),
        "greeting": sampled("Generate a greeting"),
        "client_roots": types.ListRootsRequest(),
    }
    return "All are here" if asked.keys() <= (ctx.input_responses or {}).keys() else asks(asked, "three at once")


@server.tool()
async def test_input_required_result_multi_round(ctx: Context) -> str | types.InputRequiredResult:
    """Asks, and asks again."""
    name, color = given(ctx, "step1"), given(ctx, "step2")
    if color is not None:
        return f"{ctx.request_state} likes {color.get('color')}"
    if name is not None:
        return asks({"step2": form("Step 2: What is your favorite color?", COLOR_FORM)}, str(name.get("name")))
    return asks({"step1": form("Step 1: What is your name?", NAME_FORM)}, "none")


@server.tool()
async def test_input_required_result_capabilities(ctx: Context) -> str | types.InputRequiredResult:
    """Asks only what the client can answer."""
    if ctx.input_responses:
        return ", ".join(sorted(ctx.input_responses))
    offered, asked = ctx.client_capabilities, dict[str, types.InputRequest]()
    if offered is not None and offered.sampling is not None:
        asked["greeting"] = sampled("Generate a greeting")
    if offered is not None and offered.elicitation is not None:
        asked["user_name"] = form("What is your name?", NAME_FORM)
    return asks(asked, "as far as you can")


# --- changes ------------------------------------------------------------------------------------------------------


def nothing() -> str:
    """Comes and goes."""
    return "Here"


@server.tool()
async def test_trigger_tool_change(ctx: Context) -> str:
    """Adds a tool and removes it before it tells that the list has changed."""
    server.add_tool(nothing, name="test_changing_tool")
    server.remove_tool("test_changing_tool")
    await ctx.notify_tools_changed()
    return "Done"


@server.tool()
async def test_trigger_prompt_change(ctx: Context) -> str:
    """Adds a prompt and removes it before it tells that the list has changed."""
    server.add_prompt(Prompt.from_function(nothing, name="test_changing_prompt"))
    server.remove_prompt("test_changing_prompt")
    await ctx.notify_prompts_changed()
    return "Done"


# --- schemas ------------------------------------------------------------------------------------------------------


@server.tool()
def test_x_mcp_header(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> str:
    """Has an argument that a header repeats."""
    return region


@server.tool()
def json_schema_2020_12_tool() -> str:
    """Has a schema with the newer words."""
    return "Done"


# The SDK has no public way to give a schema that is not made of a signature.
server._tool_manager._tools["json_schema_2020_12_tool"].parameters = ADDRESS_SCHEMA


# --- resources ----------------------------------------------------------------------------------------------------


@server.resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    """A text that does not change."""
    return "This is the content of the static text resource."


@server.resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    """An image that does not change."""
    return b64decode(PNG)


@server.resource("test://template/{id}/data", mime_type="application/json")
def template_data(id: str) -> str:
    """The data of one id."""
    return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


@server.resource("test://watched-resource", mime_type="text/plain")
def watched_resource() -> str:
    """A text that clients follow."""
    return "Watched resource content."


# --- prompts ------------------------------------------------------------------------------------------------------


@server.prompt()
def test_simple_prompt() -> str:
    """A prompt without arguments."""
    return "This is a simple prompt for testing."


@server.prompt()
def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """A prompt with arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@server.prompt()
def test_prompt_with_embedded_resource(resourceUri: str) -> list[UserMessage]:  # noqa: N803  # the suite's name
    """A prompt with a resource in it."""
    inner = embedded(resourceUri, "Embedded resource content for testing.")
    return [UserMessage(content=inner), UserMessage(content=text("Please process the embedded resource above."))]


@server.prompt()
def test_prompt_with_image() -> list[UserMessage]:
    """A prompt with an image in it."""
    image = types.ImageContent(data=PNG, mime_type="image/png")
    return [UserMessage(content=image), UserMessage(content=text("Please analyze the image above."))]


@server.prompt()
async def test_input_required_result_prompt(ctx: Context) -> list[UserMessage] | types.InputRequiredResult:
    """A prompt that asks the user."""
    answer = given(ctx, "user_context")
    if answer is None:
        return asks({"user_context": form("What context should the prompt use?", CONTEXT_FORM)})
    return [UserMessage(content=text(f"Use this context: {answer.get('context')}"))]


# --- methods that the SDK leaves to its users ---------------------------------------------------------------------


async def complete(ctx: Low, params: types.CompleteRequestParams) -> types.CompleteResult:
    """Values that begin with what is typed."""
    values = [each for each in ("testing", "test", "paris", "park") if each.startswith(params.argument.value)]
    return types.CompleteResult(completion=types.Completion(values=values))


async def set_level(ctx: Low, params: types.SetLevelRequestParams) -> types.EmptyResult:
    return types.EmptyResult()


async def subscribe(ctx: Low, params: types.SubscribeRequestParams) -> types.EmptyResult:
    return types.EmptyResult()


async def unsubscribe(ctx: Low, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
    return types.EmptyResult()


# It has no public way to add these either.
low: Final = server._lowlevel_server
low.add_request_handler("completion/complete", types.CompleteRequestParams, complete)
low.add_request_handler("logging/setLevel", types.SetLevelRequestParams, set_level)
low.add_request_handler("resources/subscribe", types.SubscribeRequestParams, subscribe)
low.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, unsubscribe)


class Events(EventStore):
    """All events there were, so that a client can come back for those it has missed."""

    def __init__(self) -> None:
        self._events: list[tuple[str, types.JSONRPCMessage | None]] = []

    async def store_event(self, stream_id: str, message: types.JSONRPCMessage | None) -> str:
        self._events.append((stream_id, message))
        return str(len(self._events))

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        seen = int(last_event_id)
        stream = self._events[seen - 1][0]
        for number, (owner, message) in enumerate(self._events[seen:], seen + 1):
            if owner == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve the fixtures of the MCP conformance suite, on the SDK.")
    parser.add_argument("--port", type=int)
    port = parser.parse_args().port
    if port is None:
        server.run("stdio")
    else:
        server.run("streamable-http", port=port, event_store=Events(), retry_interval=100)


if __name__ == "__main__":
    main()
