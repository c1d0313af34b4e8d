"""Resources, prompts and completion, each an ordinary operation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pytest

from enfold import CallError, EmbeddedResource, ImageContent, OperationRegistry
from enfold.auth.tokens import Tokens
from enfold.mcp import PromptMessage, completion

if TYPE_CHECKING:
    from tests.surfaces.mcp.conftest import MakeClient


@pytest.fixture
def ops() -> OperationRegistry:
    """A shop with resources and prompts."""
    ops = OperationRegistry("shop")

    @ops.resource("shop://about", mime_type="text/markdown")
    def about() -> str:
        """What the shop is."""
        return "# Shop"

    @ops.resource("shop://logo", mime_type="image/png")
    def logo() -> bytes:
        return b"abc"

    @ops.resource("shop://items/{id}")
    async def item(id: int) -> dict[str, Any]:
        """One item."""
        if id > 9:
            raise CallError("OPERATION_NOT_FOUND", f"There is no item {id}")
        return {"id": id}

    @ops.prompt(title="Review")
    def review(code: str, language: Literal["python", "perl", "go"] = "python") -> str:
        """Review some code.

        Args:
            code: What to review.
        """
        return f"Review this {language}: {code}"

    @completion(ops, "review", "code")
    def codes(value: str, arguments: dict[str, str]) -> list[str]:
        return [f"{value}-{arguments.get('language', '?')}"] * 150

    return ops


async def test_resources_and_prompts_are_not_tools(
    make_client: MakeClient, ops: OperationRegistry, revision: str
) -> None:
    assert (await make_client(ops, revision).result("tools/list"))["tools"] == []


async def test_they_are_ordinary_operations_elsewhere(ops: OperationRegistry) -> None:
    assert (await ops.execute("shop.item", {"id": 3})).data == {"id": 3}


async def test_resources_are_listed(make_client: MakeClient, ops: OperationRegistry, revision: str) -> None:
    about, logo = (await make_client(ops, revision).result("resources/list"))["resources"]
    assert about == {
        "uri": "shop://about",
        "name": "shop_about",
        "description": "What the shop is.",
        "mimeType": "text/markdown",
    }
    assert logo["uri"] == "shop://logo"


async def test_templates_are_listed_by_themselves(
    make_client: MakeClient, ops: OperationRegistry, revision: str
) -> None:
    [template] = (await make_client(ops, revision).result("resources/templates/list"))["resourceTemplates"]
    assert (template["uriTemplate"], template["description"]) == ("shop://items/{id}", "One item.")


READS = {
    "shop://about": {"uri": "shop://about", "mimeType": "text/markdown", "text": "# Shop"},
    "shop://logo": {"uri": "shop://logo", "mimeType": "image/png", "blob": "YWJj"},
    "shop://items/7": {"uri": "shop://items/7", "mimeType": "application/json", "text": '{"id":7}'},
}


@pytest.mark.parametrize(("uri", "contents"), READS.items())
async def test_a_resource_is_read(
    make_client: MakeClient, ops: OperationRegistry, revision: str, uri: str, contents: dict[str, Any]
) -> None:
    assert (await make_client(ops, revision).result("resources/read", {"uri": uri}))["contents"] == [contents]


async def test_a_resource_may_make_its_contents_itself(make_client: MakeClient, ops: OperationRegistry) -> None:
    inner = {"uri": "shop://a", "text": "A"}

    @ops.resource("shop://all")
    async def everything() -> list[EmbeddedResource]:
        return [EmbeddedResource(resource=inner), EmbeddedResource(resource={**inner, "uri": "shop://b"})]

    read = await make_client(ops).result("resources/read", {"uri": "shop://all"})
    assert read["contents"] == [inner, {**inner, "uri": "shop://b"}]


@pytest.mark.parametrize(("revision", "code"), [("2025-11-25", -32002), ("2026-07-28", -32602)])
async def test_a_resource_that_is_not_there(
    make_client: MakeClient, ops: OperationRegistry, revision: str, code: int
) -> None:
    error = (await make_client(ops, revision).ask("resources/read", {"uri": "shop://nowhere"}))["error"]
    assert (error["code"], error["data"]) == (code, {"uri": "shop://nowhere"})


@pytest.mark.parametrize("uri", ["shop://items/10", "shop://items/many"], ids=["no such item", "no number"])
async def test_a_wrong_read_is_refused_with_a_reason(make_client: MakeClient, ops: OperationRegistry, uri: str) -> None:
    error = (await make_client(ops).ask("resources/read", {"uri": uri}))["error"]
    assert error["code"] == -32602
    assert error["data"]["enfold/error"]["code"] in ("OPERATION_NOT_FOUND", "VALIDATION_ERROR")


async def test_a_resource_one_may_not_read_is_not_there(
    make_client: MakeClient, ops: OperationRegistry, tokens: Tokens
) -> None:
    ops.resource("shop://safe", name="safe", access={"required_scopes": ["write"]})(lambda: "gold")
    ann = make_client(ops, token="ann-token", tokens=tokens)
    bob = make_client(ops, token="bob-token", tokens=tokens)
    assert (await ann.result("resources/read", {"uri": "shop://safe"}))["contents"][0]["text"] == "gold"
    assert "error" in await bob.ask("resources/read", {"uri": "shop://safe"})


# --- prompts ------------------------------------------------------------------------------------------------------


async def test_prompts_are_listed_with_their_arguments(
    make_client: MakeClient, ops: OperationRegistry, revision: str
) -> None:
    [listed] = (await make_client(ops, revision).result("prompts/list"))["prompts"]
    assert (listed["name"], listed["title"]) == ("shop_review", "Review")
    assert listed["arguments"] == [
        {"name": "code", "description": "What to review.", "required": True},
        {"name": "language", "required": False},
    ]


async def test_a_prompt_is_a_message_of_the_user(
    make_client: MakeClient, ops: OperationRegistry, revision: str
) -> None:
    given = {"name": "shop_review", "arguments": {"code": "x = 1"}}
    result = await make_client(ops, revision).result("prompts/get", given)
    content = {"type": "text", "text": "Review this python: x = 1"}
    assert result["messages"] == [{"role": "user", "content": content}]


async def test_a_prompt_may_have_several_messages_of_any_content(
    make_client: MakeClient, ops: OperationRegistry
) -> None:
    @ops.prompt
    async def compare() -> list[PromptMessage]:
        image = ImageContent(data="aGk=", mime_type="image/png")
        return [PromptMessage(image), PromptMessage("I see a cat", role="assistant")]

    messages = (await make_client(ops).result("prompts/get", {"name": "shop_compare"}))["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert messages[0]["content"] == {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    assert messages[1]["content"] == {"type": "text", "text": "I see a cat"}


@pytest.mark.parametrize(
    "params", [{"name": "nowhere"}, {"name": "shop_review"}, {}], ids=["unknown", "an argument missing", "no name"]
)
async def test_a_prompt_that_cannot_be_built_is_an_error(
    make_client: MakeClient, ops: OperationRegistry, params: dict[str, Any], revision: str
) -> None:
    assert (await make_client(ops, revision).ask("prompts/get", params))["error"]["code"] == -32602


# --- completion ---------------------------------------------------------------------------------------------------


def reference(argument: str, value: str) -> dict[str, Any]:
    return {"ref": {"type": "ref/prompt", "name": "shop_review"}, "argument": {"name": argument, "value": value}}


async def test_an_argument_with_few_values_completes_itself(
    make_client: MakeClient, ops: OperationRegistry, revision: str
) -> None:
    result = await make_client(ops, revision).result("completion/complete", reference("language", "P"))
    assert result["completion"] == {"values": ["python", "perl"], "total": 2, "hasMore": False}


async def test_a_function_completes_with_what_is_known_already(make_client: MakeClient, ops: OperationRegistry) -> None:
    params = {**reference("code", "x"), "context": {"arguments": {"language": "go"}}}
    found = (await make_client(ops).result("completion/complete", params))["completion"]
    assert (found["values"][0], len(found["values"]), found["total"], found["hasMore"]) == ("x-go", 100, 150, True)


@pytest.mark.parametrize(
    "params",
    [{}, {"ref": {"type": "ref/prompt", "name": "no"}, "argument": {}}, {"ref": {"uri": "no"}, "argument": {}}],
    ids=["nothing", "an unknown prompt", "an unknown resource"],
)
async def test_completing_what_is_not_there(
    make_client: MakeClient, ops: OperationRegistry, params: dict[str, Any]
) -> None:
    assert (await make_client(ops).ask("completion/complete", params))["error"]["code"] == -32602


@pytest.mark.parametrize("method", ["resources/list", "resources/read", "prompts/list", "prompts/get"])
async def test_a_capability_that_a_server_lacks_is_an_unknown_method(
    make_client: MakeClient, revision: str, method: str
) -> None:
    client = make_client(OperationRegistry(), revision)
    assert (await client.ask(method, {"uri": "a", "name": "a"}))["error"]["code"] == -32601
