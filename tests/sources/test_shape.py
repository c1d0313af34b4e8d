"""Options that change imported operations: fixed arguments, short descriptions, and default selections."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from enfold import CallError, Context, OperationRegistry, OperationSpec, TextContent, http_envelope, mcp_envelope
from enfold.app.file import read_config
from enfold.app.reconciler import open_config
from enfold.operations import Operation, OperationType
from enfold.sources.openapi import from_openapi
from enfold.sources.options import Shape
from enfold.sources.secrets import KnownSecrets
from enfold.surfaces.mcp.catalog import tool_costs

SEEN: list[dict[str, Any]] = []


async def call(input: dict[str, Any], context: Context) -> dict[str, Any]:
    SEEN.append(input)
    return {"id": 1, "name": "Tea"}


async def follow(input: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
    yield {"id": input["id"], "name": input["token"]}


def operation(type: OperationType = OperationType.QUERY, **more: Any) -> Operation:
    spec = OperationSpec(
        name="card",
        type=type,
        description="Gets a card. And says more.",
        input_schema={
            "type": "object",
            "properties": {"id": {"type": "integer"}, "token": {"type": "string"}, "page": {"type": "integer"}},
            "required": ["id", "token"],
            **more,
        },
        output_schema={"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}},
    )
    return Operation(spec, follow if type is OperationType.SUBSCRIPTION else call)


async def test_a_fixed_argument_is_hidden_and_filled_and_cannot_be_changed() -> None:
    shape = Shape(fix={"token": "secret", "page": "3", "other": 1})
    for is_closed in (True, False):
        ops = OperationRegistry()
        ops.register(shape.apply(operation(additionalProperties=not is_closed)))
        schema = ops.get_spec("card").input_schema
        assert (list(schema["properties"]), schema["required"]) == (["id"], ["id"])
        await ops.execute("card", {"id": 1})
        assert SEEN.pop() == {"id": 1, "token": "secret", "page": 3}
        if not is_closed:
            await ops.execute("card", {"id": 1, "token": "mine"})
            assert SEEN.pop()["token"] == "secret"
            continue
        with pytest.raises(CallError, match="token") as refused:
            await ops.execute("card", {"id": 1, "token": "mine"})
        assert "secret" not in str(refused.value)


async def test_a_stream_gets_its_fixed_arguments_too() -> None:
    ops = OperationRegistry()
    ops.register(Shape(fix={"token": "secret"}).apply(operation(OperationType.SUBSCRIPTION)))
    [item] = [each.data async for each in ops.subscribe("card", {"id": 1})]
    assert item == {"id": 1, "name": "secret"}


SECRET = "s3cret/of the owner"
ECHO = {"next": f"/cards?token={quote(SECRET)}", "rows": [[SECRET]], "owner": "the owner"}
CLEAN = {"next": "/cards?token=[hidden]", "rows": [["[hidden]"]], "owner": "the owner"}
ECHOES: dict[str, tuple[Any, Any]] = {
    "data": (ECHO, CLEAN),
    "an answer": (
        http_envelope(ECHO, headers={"link": SECRET}),
        http_envelope(CLEAN, headers={"link": "[hidden]"}),
    ),
    "bytes": (http_envelope(SECRET.encode()), http_envelope(b"[hidden]")),
    "a tool's result": (
        mcp_envelope(ECHO, content=[TextContent(text=SECRET)], structured_content=ECHO, _meta={"t": SECRET}),
        mcp_envelope(CLEAN, content=[TextContent(text="[hidden]")], structured_content=CLEAN, _meta={"t": "[hidden]"}),
    ),
}


@pytest.mark.parametrize(("given", "seen"), ECHOES.values(), ids=ECHOES)
async def test_a_fixed_secret_that_the_service_repeats_is_hidden(given: Any, seen: Any) -> None:
    async def echo(input: dict[str, Any], context: Context) -> Any:
        return given

    async def stream(input: dict[str, Any], context: Context) -> AsyncIterator[Any]:
        yield given

    shape = Shape(fix={"token": SECRET, "page": 3})
    ops = OperationRegistry()
    ops.register(shape.apply(operation().replace(handler=echo, spec=operation().spec.replace(output_schema={}))))
    found = await ops.execute("card", {"id": 1})
    assert found.data == getattr(seen, "data", seen)
    assert SECRET not in str(found)
    follower = operation(OperationType.SUBSCRIPTION).replace(handler=stream)
    ops = OperationRegistry()
    ops.register(shape.apply(follower.replace(spec=follower.spec.replace(output_schema={}))))
    [item] = [each async for each in ops.subscribe("card", {"id": 1})]
    assert item.data == getattr(seen, "data", seen)
    assert SECRET not in str(item)


def test_all_fixed_secrets_are_hidden_however_many_there_are() -> None:
    fix = {f"token_{number}": f"secret-{number:03}" for number in range(20)}
    secrets = KnownSecrets()
    secrets.remember_named(fix)
    assert set(secrets.redact(list(fix.values()))) == {"[hidden]"}


async def test_a_fixed_secret_in_an_error_is_hidden() -> None:
    async def fail(input: dict[str, Any], context: Context) -> Any:
        raise CallError("EXECUTION_ERROR", f"no card for {input['token']}", {"body": {"sent": [input["token"]]}})

    ops = OperationRegistry()
    ops.register(Shape(fix={"token": SECRET}).apply(operation().replace(handler=fail)))
    with pytest.raises(CallError) as refused:
        await ops.execute("card", {"id": 1})
    assert refused.value.message == "no card for [hidden]"
    assert refused.value.details == {"body": {"sent": ["[hidden]"]}}


async def test_operations_may_have_short_descriptions_and_default_selections() -> None:
    whole, short = OperationRegistry(), OperationRegistry()
    whole.register(operation())
    short.register(Shape(describe="short", select={"card": "name"}).apply(operation()))
    assert (await short.execute("card", {"id": 1, "token": "t"})).data == {"name": "Tea"}
    assert tool_costs(short)["card"] < tool_costs(whole)["card"]
    with pytest.raises(ValueError, match="short or full"):
        Shape(describe="long")  # type: ignore[arg-type]


def test_an_unchanged_operation_is_the_same_object() -> None:
    made = operation()
    assert Shape().apply(made) is made


DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": "Cards", "version": "1"},
    "servers": [{"url": "http://127.0.0.1:9"}],
    "paths": {
        "/cards": {
            "get": {
                "operationId": "cards",
                "parameters": [
                    {"name": "key", "in": "query", "required": True, "schema": {"type": "string"}},
                    {"name": "limit", "in": "query", "schema": {"type": "integer"}},
                ],
                "responses": {"200": {"description": "ok"}},
            }
        }
    },
}


def test_an_imported_document_has_its_fixed_arguments_hidden() -> None:
    [made] = from_openapi(DOCUMENT, shape=Shape(fix={"key": "secret"}))
    assert list(made.spec.input_schema["properties"]) == ["limit"]
    assert "required" not in made.spec.input_schema


# --- in a configuration -------------------------------------------------------------------------------------------

FILE = """
[agents]
expose = "auto"
pinned = ["shop.add"]
max_result_tokens = 500
clients = { editor = "text" }

[sources.cards]
openapi = "cards.json"
fix = { key = "${CARD_KEY}" }
describe = "short"
expose = "search"

[sources.shop]
functions = "shop.py"
select = { card = "name" }
"""
SHOP = """
from typing import TypedDict
from enfold import OperationRegistry

ops = OperationRegistry()

class Card(TypedDict):
    id: int
    name: str

@ops.query
async def card() -> Card:
    return {"id": 1, "name": "Tea"}
"""


async def test_a_configuration_says_all_of_it(tmp_path: Path) -> None:
    (tmp_path / "cards.json").write_text(json.dumps(DOCUMENT))
    (tmp_path / "shop.py").write_text(SHOP)
    file = tmp_path / "enfold.toml"
    file.write_text(FILE)
    config = read_config(file, {"CARD_KEY": "secret"})
    assert config.exposed == {"": "auto", "cards": "search"}
    assert config.agents["clients"] == {"editor": "text"}
    async with open_config(file, {"CARD_KEY": "secret"}) as registry:
        assert list(registry.get_spec("cards.cards").input_schema["properties"]) == ["limit"]
        assert registry.get_spec("cards.cards").meta["describe"] == "short"
        assert (await registry.execute("card")).data == {"name": "Tea"}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('expose = "some"', "all, search or auto"),
        ('describe = "long"', "short or full"),
        ("fix = 3", "a table of arguments"),
        ('select = "a("', "fields such as"),
    ],
)
def test_mistakes_in_a_configuration_are_reported_with_their_line(tmp_path: Path, line: str, told: str) -> None:
    file = tmp_path / "enfold.toml"
    file.write_text(f'[sources.cards]\nopenapi = "cards.json"\n{line}\n')
    with pytest.raises(CallError, match=told) as refused:
        read_config(file, {})
    assert "line 3" in refused.value.message
