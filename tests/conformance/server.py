"""The fixtures of the MCP conformance suite, as ordinary operations, resources and prompts of a registry.

`python tests/conformance/server.py --port 3901` serves them at http://127.0.0.1:3901/mcp.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any, Final

from enfold import AudioContent, CallError, Context, EmbeddedResource, ImageContent, OperationRegistry, TextContent
from enfold.mcp import (
    PromptMessage,
    Question,
    ask,
    client_capabilities,
    close_stream,
    completion,
    elicit,
    elicitation,
    list_roots,
    remember,
    roots,
    sample,
    sampling,
)
from enfold.operations import Operation, OperationSpec
from enfold.surfaces.mcp import MCPApp, to_mcp
from enfold.tasks import Tasks
from enfold.tasks.memory import MemoryTasks

# The smallest image and the smallest sound there are.
PNG: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
WAV: Final = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="

NAME_FORM: Final = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
CONFIRM_FORM: Final = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}

ops: Final = OperationRegistry()


# --- content ------------------------------------------------------------------------------------------------------


@ops.query
async def test_simple_text() -> TextContent:
    """A text."""
    return TextContent(text="This is a simple text response for testing.")


@ops.query
async def test_image_content() -> ImageContent:
    """An image."""
    return ImageContent(data=PNG, mime_type="image/png")


@ops.query
async def test_audio_content() -> AudioContent:
    """A sound."""
    return AudioContent(data=WAV, mime_type="audio/wav")


@ops.query
async def test_embedded_resource() -> EmbeddedResource:
    """A resource in full."""
    text = "This is an embedded resource content."
    return EmbeddedResource(resource={"uri": "test://embedded-resource", "mimeType": "text/plain", "text": text})


@ops.query
async def test_multiple_content_types() -> list[TextContent | ImageContent | EmbeddedResource]:
    """A text, an image and a resource."""
    text = json.dumps({"test": "data", "value": 123})
    inner = {"uri": "test://mixed-content-resource", "mimeType": "application/json", "text": text}
    return [
        TextContent(text="Multiple content types test:"),
        ImageContent(data=PNG, mime_type="image/png"),
        EmbeddedResource(resource=inner),
    ]


@ops.query
async def test_error_handling() -> str:
    """Always fails."""
    raise CallError("EXECUTION_ERROR", "This tool intentionally returns an error for testing")


# --- on the way ---------------------------------------------------------------------------------------------------


@ops.query
async def test_tool_with_progress(context: Context) -> str:
    """Reports its progress."""
    for progress in (0, 50, 100):
        context.progress(progress, 100, f"Completed step {progress} of 100")
        await asyncio.sleep(0.05)
    return "Done"


@ops.query
async def test_tool_with_logging(context: Context) -> str:
    """Says what it does."""
    context.log("Tool execution started")
    await asyncio.sleep(0.05)
    context.log("Tool processing data")
    await asyncio.sleep(0.05)
    context.log("Tool execution completed")
    return "Done"


@ops.query
async def test_logging_tool(context: Context) -> str:
    """Says something, to those who asked to hear it."""
    context.log("A message for those who asked for messages")
    return "Done"


@ops.query
async def test_reconnection(context: Context) -> TextContent:
    """Lets the connection go in the middle; the client comes back for the result."""
    close_stream(context)
    await asyncio.sleep(0.1)
    return TextContent(text="Reconnection test completed successfully")


# --- tasks --------------------------------------------------------------------------------------------------------


@ops.query
async def greet(name: str) -> TextContent:
    """Greets, and is never a task."""
    return TextContent(text=f"Hello, {name}!")


@ops.query(durable=True)
async def slow_compute(seconds: float, label: str = "") -> TextContent:
    """Takes its time."""
    await asyncio.sleep(seconds)
    return TextContent(text=f"Computed {label} in {seconds:g} seconds")


@ops.query(durable="required")
async def failing_job() -> str:
    """Fails after a second."""
    await asyncio.sleep(1)
    raise CallError("EXECUTION_ERROR", "This job fails")


@ops.query(durable=True)
async def protocol_error_job(context: Context) -> str:
    """Asks for what the client of the suite does not offer, which is an error of the protocol."""
    return str(await list_roots(context))


@ops.mutation(durable=True)
async def confirm_delete(filename: str, context: Context) -> TextContent:
    """Asks once."""
    form = {"type": "object", "properties": {"confirm": {"type": "boolean"}}, "required": ["confirm"]}
    answer = await elicit(context, f"Delete {filename}?", form)
    return TextContent(text=f"Deleted {filename}" if answer.content.get("confirm") else f"Kept {filename}")


@ops.mutation(durable=True)
async def multi_input(context: Context) -> TextContent:
    """Asks two things at once."""
    answers = await ask(context, {"name": elicitation("Who?", NAME_FORM), "sure": elicitation("Sure?", CONFIRM_FORM)})
    return TextContent(text=json.dumps(answers))


@ops.mutation(durable="required", asks_first=True)
async def test_tool_with_task(context: Context) -> TextContent:
    """Asks in the call, and goes on as a task."""
    answer = await elicit(context, "Who are you?", NAME_FORM, key="user")
    context.detach()
    return TextContent(text=f"Hello, {answer.content.get('name')}!")


# --- asking -------------------------------------------------------------------------------------------------------


@ops.query
async def test_sampling(prompt: str, context: Context) -> TextContent:
    """Asks the client's model."""
    result = await sample(context, prompt, max_tokens=100)
    return TextContent(text=f"LLM response: {result['content'].get('text')}")


@ops.query
async def test_elicitation(message: str, context: Context) -> TextContent:
    """Asks the user."""
    properties = {
        "username": {"type": "string", "description": "User's response"},
        "email": {"type": "string", "description": "User's email address"},
    }
    form = {"type": "object", "properties": properties, "required": ["username", "email"]}
    answer = await elicit(context, message, form)
    return TextContent(text=f"User response: action={answer.action}, content={json.dumps(answer.content)}")


async def _fill_in(context: Context, properties: dict[str, Any]) -> TextContent:
    answer = await elicit(context, "Please fill in the form", {"type": "object", "properties": properties})
    return TextContent(text=f"Elicitation completed: action={answer.action}, content={json.dumps(answer.content)}")


@ops.query
async def test_elicitation_sep1034_defaults(context: Context) -> TextContent:
    """Asks with a default for every field."""
    status = ["active", "inactive", "pending"]
    return await _fill_in(
        context,
        {
            "name": {"type": "string", "default": "John Doe"},
            "age": {"type": "integer", "default": 30},
            "score": {"type": "number", "default": 95.5},
            "status": {"type": "string", "enum": status, "default": "active"},
            "verified": {"type": "boolean", "default": True},
        },
    )


@ops.query
async def test_elicitation_sep1330_enums(context: Context) -> TextContent:
    """Asks for a choice in every form a choice may have."""
    plain = ["option1", "option2", "option3"]
    titled = [{"const": f"value{number}", "title": f"Option {number}"} for number in (1, 2, 3)]
    names = ["Option One", "Option Two", "Option Three"]
    return await _fill_in(
        context,
        {
            "untitledSingle": {"type": "string", "enum": plain},
            "titledSingle": {"type": "string", "oneOf": titled},
            "legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": names},
            "untitledMulti": {"type": "array", "items": {"type": "string", "enum": plain}},
            "titledMulti": {"type": "array", "items": {"anyOf": titled}},
        },
    )


@ops.query
async def test_missing_capability(context: Context) -> str:
    """Needs a client with a model."""
    return str(await sample(context, "Anything"))


@ops.query
async def test_streaming_elicitation(context: Context) -> TextContent:
    """Reports progress, then asks."""
    context.progress(1, 2)
    answer = await elicit(context, "What is your name?", NAME_FORM)
    return TextContent(text=answer.action)


@ops.query
async def test_input_required_result_elicitation(context: Context) -> TextContent:
    """Asks for a name."""
    answer = await elicit(context, "What is your name?", NAME_FORM, key="user_name")
    return TextContent(text=f"Hello, {answer.content.get('name')}!")


@ops.query
async def test_input_required_result_sampling(context: Context) -> TextContent:
    """Asks the client's model."""
    result = await sample(context, "What is the capital of France?", max_tokens=100, key="capital_question")
    return TextContent(text=str(result["content"].get("text")))


@ops.query
async def test_input_required_result_list_roots(context: Context) -> TextContent:
    """Asks for the client's folders."""
    found = await list_roots(context, key="client_roots")
    return TextContent(text=", ".join(root["uri"] for root in found))


@ops.query
async def test_input_required_result_request_state(context: Context) -> TextContent:
    """Remembers something from one round to the next."""
    remembered = remember(context, "token", lambda: "state-ok")
    await elicit(context, "Please confirm", CONFIRM_FORM, key="confirm")
    return TextContent(text=remembered)


@ops.query
async def test_input_required_result_tampered_state(context: Context) -> TextContent:
    """Asks for a confirmation."""
    await elicit(context, "Please confirm", CONFIRM_FORM, key="confirm")
    return TextContent(text="Confirmed")


@ops.query
async def test_input_required_result_multiple_inputs(context: Context) -> TextContent:
    """Asks three questions at once."""
    answers = await ask(
        context,
        {
            "user_name": elicitation("What is your name?", NAME_FORM),
            "greeting": sampling("Generate a greeting", max_tokens=50),
            "client_roots": roots(),
        },
    )
    return TextContent(text=", ".join(sorted(answers)))


@ops.query
async def test_input_required_result_multi_round(context: Context) -> TextContent:
    """Asks, and asks again."""
    name = await elicit(context, "Step 1: What is your name?", NAME_FORM, key="step1")
    form = {"type": "object", "properties": {"color": {"type": "string"}}, "required": ["color"]}
    color = await elicit(context, "Step 2: What is your favorite color?", form, key="step2")
    return TextContent(text=f"{name.content.get('name')} likes {color.content.get('color')}")


@ops.query
async def test_input_required_result_capabilities(context: Context) -> TextContent:
    """Asks only what the client can answer."""
    offered = client_capabilities(context)
    questions: dict[str, Question] = {
        "greeting": sampling("Generate a greeting"),
        "user_name": elicitation("What is your name?", NAME_FORM),
    }
    answers = await ask(context, {key: each for key, each in questions.items() if each.capability[0] in offered})
    return TextContent(text=", ".join(sorted(answers)))


# --- changes ------------------------------------------------------------------------------------------------------


@ops.mutation
async def test_trigger_tool_change() -> str:
    """Adds or removes a tool."""
    if "test_changing_tool" in ops:
        ops.unregister("test_changing_tool")
    else:
        ops.query(name="test_changing_tool")(_nothing)
    return "Done"


@ops.mutation
async def test_trigger_prompt_change() -> str:
    """Adds or removes a prompt."""
    if "test_changing_prompt" in ops:
        ops.unregister("test_changing_prompt")
    else:
        ops.prompt(name="test_changing_prompt")(_nothing)
    return "Done"


async def _nothing() -> str:
    """Comes and goes."""
    return "Here"


# --- schemas ------------------------------------------------------------------------------------------------------

ADDRESS_SCHEMA: Final[dict[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}

REGION_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"region": {"type": "string", "x-mcp-header": "Region"}, "query": {"type": "string"}},
    "required": ["region"],
}


async def _say_input(input: dict[str, Any], context: Context) -> str:
    return json.dumps(input)


for name, description, schema in (
    ("json_schema_2020_12_tool", "Has a schema with the newer words", ADDRESS_SCHEMA),
    ("test_x_mcp_header", "Has an argument that a header repeats", REGION_SCHEMA),
):
    ops.register(Operation(OperationSpec(name=name, description=description, input_schema=schema), _say_input))


# --- resources ----------------------------------------------------------------------------------------------------


@ops.resource("test://static-text", mime_type="text/plain")
async def static_text() -> str:
    """A text that does not change."""
    return "This is the content of the static text resource."


@ops.resource("test://static-binary", mime_type="image/png")
async def static_binary() -> EmbeddedResource:
    """An image that does not change."""
    return EmbeddedResource(resource={"uri": "test://static-binary", "mimeType": "image/png", "blob": PNG})


@ops.resource("test://template/{id}/data", mime_type="application/json")
async def template_data(id: str) -> dict[str, Any]:
    """The data of one id."""
    return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}


@ops.resource("test://watched-resource", mime_type="text/plain")
async def watched_resource() -> str:
    """A text that clients follow."""
    return "Watched resource content."


# --- prompts ------------------------------------------------------------------------------------------------------


@ops.prompt
async def test_simple_prompt() -> str:
    """A prompt without arguments."""
    return "This is a simple prompt for testing."


@ops.prompt
async def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """A prompt with arguments.

    Args:
        arg1: First test argument.
        arg2: Second test argument.
    """
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@completion(ops, "test_prompt_with_arguments", "arg1")
async def arg1_values(value: str) -> list[str]:
    """Values that begin with what is typed."""
    return [each for each in ("testing", "test", "paris", "park") if each.startswith(value)]


@ops.prompt
async def test_prompt_with_embedded_resource(resourceUri: str) -> list[PromptMessage]:  # noqa: N803  # the suite's name
    """A prompt with a resource in it.

    Args:
        resourceUri: The URI of the resource.
    """
    inner = {"uri": resourceUri, "mimeType": "text/plain", "text": "Embedded resource content for testing."}
    return [
        PromptMessage(EmbeddedResource(resource=inner)),
        PromptMessage("Please process the embedded resource above."),
    ]


@ops.prompt
async def test_prompt_with_image() -> list[PromptMessage]:
    """A prompt with an image in it."""
    image = ImageContent(data=PNG, mime_type="image/png")
    return [PromptMessage(image), PromptMessage("Please analyze the image above.")]


@ops.prompt
async def test_input_required_result_prompt(context: Context) -> str:
    """A prompt that asks the user."""
    form = {"type": "object", "properties": {"context": {"type": "string"}}, "required": ["context"]}
    answer = await elicit(context, "What context should the prompt use?", form, key="user_context")
    return f"Use this context: {answer.content.get('context')}"


def app() -> MCPApp:
    return to_mcp(ops, name="enfold-conformance", tasks=Tasks(ops, MemoryTasks()))


def main() -> None:
    import uvicorn

    parser = argparse.ArgumentParser(description="Serve the fixtures of the MCP conformance suite.")
    parser.add_argument("--port", type=int, default=3901)
    port = parser.parse_args().port
    uvicorn.run(app(), host="127.0.0.1", port=port, log_level="warning", timeout_graceful_shutdown=1)


if __name__ == "__main__":
    main()
