"""The arguments of an operation: names, clashes, and bodies as one argument or several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from enfold import CallError
from enfold.sources.openapi import from_openapi

if TYPE_CHECKING:
    from tests.sources.openapi.conftest import Connect, Serve, Words

TEXT = {"type": "string"}


def parameter(location: str, name: str = "id") -> dict[str, Any]:
    return {"name": name, "in": location, "required": location == "path", "schema": TEXT}


def properties(document: Any) -> list[str]:
    (operation,) = from_openapi(document)
    return list(operation.spec.input_schema["properties"])


@pytest.mark.parametrize(
    ("locations", "expected"),
    [
        (["query", "path"], ["id", "id_query"]),
        (["header", "query"], ["id", "id_header"]),
        (["cookie", "header"], ["id", "id_cookie"]),
        (["path", "query", "header", "cookie"], ["id", "id_query", "id_header", "id_cookie"]),
    ],
    ids=str,
)
def test_where_a_name_repeats_the_first_location_keeps_it(
    http: Words, locations: list[str], expected: list[str]
) -> None:
    path = "/x/{id}" if "path" in locations else "/x"
    body = http.json_body({"type": "object", "properties": {"id": TEXT}})
    parameters = [parameter(location) for location in locations]
    assert properties(http.document({"parameters": parameters}, path=path)) == expected
    with_body = http.document({"parameters": parameters, "requestBody": body}, path=path, method="post")
    assert properties(with_body) == [*expected, "id_body"]


def test_a_suffix_does_not_take_an_existing_name(http: Words) -> None:
    parameters = [parameter("path"), parameter("query"), parameter("query", "id_query")]
    assert properties(http.document({"parameters": parameters}, path="/x/{id}")) == ["id", "id_query_", "id_query"]


async def test_each_of_equal_names_goes_to_its_own_place(serve: Serve, connect: Connect, http: Words) -> None:
    server = await serve(lambda _: http.reply({}))
    operation = {
        "parameters": [parameter(each) for each in ("path", "query", "header", "cookie")],
        "requestBody": http.json_body({"type": "object", "properties": {"id": TEXT}}),
    }
    registry = connect(http.document(operation, path="/x/{id}", method="post"), base_url=server.url)
    arguments = {"id": "p", "id_query": "q", "id_header": "h", "id_cookie": "c", "id_body": "b"}
    await registry.execute("x", arguments)
    received = server.received[0]
    assert (received.target, received.header("id"), received.header("cookie"), received.body) == (
        "/x/p?id=q",
        "h",
        "id=c",
        b'{"id":"b"}',
    )


def test_a_parameter_of_the_operation_replaces_that_of_its_path(http: Words) -> None:
    document = http.document({"parameters": [{**parameter("query"), "schema": {"type": "integer"}}]})
    document["paths"]["/x"]["parameters"] = [parameter("query"), parameter("header", "H")]
    (operation,) = from_openapi(document)
    assert operation.spec.input_schema["properties"] == {"id": {"type": "integer"}, "H": TEXT}


def test_a_path_parameter_without_a_place_in_the_path_is_not_an_argument(http: Words) -> None:
    assert properties(http.document({"parameters": [parameter("path", "nowhere")]})) == []


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"properties": {"a": TEXT}}, ["a"]),
        ({"allOf": [{"$ref": "#/components/schemas/A"}, {"properties": {"b": TEXT}}]}, ["a", "b"]),
        ({"$ref": "#/components/schemas/A", "description": "d"}, ["a"]),
        ({"type": ["object", "null"], "properties": {"a": TEXT}}, ["a"]),
        ({"properties": {"a": TEXT, "b": TEXT}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, ["a", "b"]),
        ({"type": "object"}, ["body"]),
        ({"type": "object", "additionalProperties": TEXT}, ["body"]),
        ({"oneOf": [{"$ref": "#/components/schemas/A"}]}, ["body"]),
        ({"allOf": [{"$ref": "#/components/schemas/A"}, {"oneOf": [{"properties": {"b": TEXT}}]}]}, ["body"]),
        ({"type": "array", "items": TEXT}, ["body"]),
        (True, ["body"]),
        ({"allOf": [{"$ref": "#/components/schemas/Circle"}]}, ["body"]),
        ({"properties": {"r": {**TEXT, "readOnly": True}, "a": TEXT}, "required": ["r"]}, ["a"]),
        ({"properties": {"a": TEXT}, "required": ["a", "undeclared"]}, ["a", "undeclared"]),
    ],
    ids=str,
)
def test_only_a_plain_object_is_spread_into_arguments(http: Words, schema: Any, expected: list[str]) -> None:
    circle = {"allOf": [{"$ref": "#/components/schemas/Circle"}], "properties": {"a": TEXT}}
    components = {"schemas": {"A": {"type": "object", "properties": {"a": TEXT}}, "Circle": circle}}
    document = http.document({"requestBody": http.json_body(schema)}, method="post", components=components)
    assert properties(document) == expected


def test_required_fields_are_required_only_with_a_required_body(http: Words) -> None:
    schema = {"type": "object", "properties": {"a": TEXT, "b": TEXT}, "required": ["a"]}

    def required(is_required: bool) -> Any:
        body = http.json_body(schema, required=is_required)
        (operation,) = from_openapi(http.document({"requestBody": body}, method="post"))
        return operation.spec.input_schema.get("required")

    assert (required(True), required(False)) == (["a"], None)


@pytest.mark.parametrize("version", ["2.0", "3.0.3", "3.1.0"])
@pytest.mark.parametrize("format", ["int32", "int64", "uint8"])
async def test_a_number_whose_format_is_that_of_integers_is_sent_whole(
    serve: Serve, connect: Connect, http: Words, version: str, format: str
) -> None:
    server = await serve(lambda _: http.reply({}))
    number = {"type": "number", "format": format}
    parameter = {"name": "n", "in": "query", **(number if version == "2.0" else {"schema": number})}
    registry = connect(http.document({"parameters": [parameter]}, version=version), base_url=server.url)
    with pytest.raises(CallError) as caught:
        await registry.execute("x", {"n": 1.5})
    assert caught.value.details == {"argument": "n", "reason": "type", "expected": "integer"}
    await registry.execute("x", {"n": 2.0})
    assert [each.query for each in server.received] == ["n=2"]


def test_only_the_input_is_taken_at_its_format(http: Words) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": ["number", "null"], "format": "int32"}, "m": {"type": "number"}},
    }
    document = http.document(
        {"requestBody": http.json_body(schema), "responses": http.json_response(schema)}, method="put"
    )
    (operation,) = from_openapi(document, base_url="http://127.0.0.1")
    shown = operation.spec.input_schema["properties"]
    assert (shown["n"]["type"], shown["m"]["type"]) == (["integer", "null"], "number")
    assert operation.spec.output_schema == schema


@pytest.mark.parametrize(("version", "description"), [("3.1.0", "Own."), ("3.2.0", "Own."), ("3.0.3", "Shared.")])
def test_a_reference_has_its_own_description_since_3_1(http: Words, version: str, description: str) -> None:
    words = {"description": "Shared."}
    components = {
        "parameters": {"P": {"name": "p", "in": "query", "schema": {"type": "string"}, **words}},
        "requestBodies": {"B": {"content": {"application/json": {"schema": {"type": "array"}}}, **words}},
        "responses": {"R": words},
    }

    def ref(kind: str, name: str) -> dict[str, str]:
        return {"$ref": f"#/components/{kind}/{name}", "description": "Own."}

    operation = {
        "parameters": [ref("parameters", "P")],
        "requestBody": ref("requestBodies", "B"),
        "responses": {"404": ref("responses", "R")},
    }
    document = http.document(operation, method="post", version=version, components=components)
    spec = next(iter(from_openapi(document))).spec
    shown = [spec.input_schema["properties"][name]["description"] for name in ("p", "body")]
    assert [*shown, spec.error_schemas[0].description] == [description] * 3


@pytest.mark.parametrize(
    ("body", "examples"),
    [
        ({"example": {"id": "b", "name": "tea"}}, [{"id": "p", "id_body": "b", "name": "tea"}]),
        (
            {"examples": {"one": {"value": {"name": "tea"}}, "two": {"$ref": "#/components/examples/two"}}},
            [{"id": "p", "name": "tea"}, {"id": "p", "name": "coffee"}],
        ),
        ({"schema": {"type": "array", "items": TEXT}, "example": ["tea"]}, [{"id": "p", "body": ["tea"]}]),
        ({"example": {"unknown": 1}}, None),
        ({"example": {"name": {"$ref": "#/x"}}}, None),
        ({"examples": {"broken": {"$ref": "#/nowhere"}, "none": 7}}, None),
    ],
    ids=["one", "several", "whole", "unknown fields", "a reference", "broken"],
)
def test_the_examples_of_a_body_are_examples_of_the_input(
    http: Words, body: dict[str, Any], examples: list[Any] | None
) -> None:
    content = {"schema": {"type": "object", "properties": {"id": TEXT, "name": TEXT}}, **body}
    operation = {
        "parameters": [{**parameter("path"), "example": "p"}],
        "requestBody": {"content": {"application/json": content}},
    }
    document = http.document(operation, path="/x/{id}", method="post")
    document["components"] = {"examples": {"two": {"value": {"name": "coffee"}}}}
    (found,) = from_openapi(document)
    assert found.spec.input_schema.get("examples") == examples
