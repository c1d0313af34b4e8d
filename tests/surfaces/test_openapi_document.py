import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Literal

import jsonschema_rs
import pytest
from tests.conformance import desk
from tests.serving import Client, serve

from enfold import AccessControl, Context, Identity, OperationRegistry, OperationSpec
from enfold.formats import FORMATS
from enfold.schema.json_pointer import follow
from enfold.surfaces.http import HTTPSettings, to_http
from enfold.surfaces.openapi import to_openapi

ANN = Identity("ann", frozenset({"write", "a"}))
STOCK = {"code": "SOLD_OUT", "description": "Nothing left", "schema": {"type": "object"}, "http_status": 409}
BROKEN = {"code": "BROKEN", "description": "It broke"}


@dataclass
class Tree:
    name: str
    children: "list[Tree]" = field(default_factory=list)


def shop() -> OperationRegistry:
    ops = OperationRegistry("shop")

    @ops.query
    async def add(x: int, y: int = 0) -> int:
        """Add two numbers.

        Args:
            x: First addend.
        """
        return x + y

    @ops.query(tags=["plants"])
    async def grow(
        root: Tree,
        others: list[Tree] | None = None,
        names: list[str] | None = None,
        kind: Literal["oak", "elm"] = "oak",
    ) -> Tree:
        return root

    @ops.query
    async def divide(x: int, y: int) -> tuple[int, Tree]:
        return x // y, Tree("rest")

    @ops.mutation(error_schemas=[STOCK, BROKEN])
    async def forget() -> None: ...

    @ops.mutation(access={"required_scopes": ["write"], "required_scopes_any": ["a", "b"]})
    async def create(title: str) -> str:
        return title

    @ops.subscription(resumable=True)
    async def ticks(context: Context, to: int) -> AsyncIterator[int]:
        for number in range(to):
            yield number

    return ops


def operation(path: str, method: str = "post", **options: Any) -> Any:
    return to_openapi(shop(), everything=True, **options)["paths"][f"/functions/{path}"][method]


def resolved(document: Any, schema: Any) -> dict[str, Any]:
    """A schema of the document as one that stands alone."""
    return {"components": document["components"], **schema}


def followed(document: Any, part: Any) -> Any:
    """A part of the document, or the component that it refers to."""
    while "$ref" in part:
        part = follow(document, part["$ref"][1:])
    return part


@pytest.mark.parametrize("format", FORMATS)
def test_a_validator_accepts_the_document(format: str) -> None:
    validator = pytest.importorskip("openapi_spec_validator")
    validator.validate(to_openapi(shop(), everything=True, format=format))


# --- the seed -----------------------------------------------------------------------------------------------------


def test_descriptions_and_schemas_are_those_of_the_seed() -> None:
    document = to_openapi(shop(), everything=True)
    responses = document["paths"]["/functions/shop.add"]["post"]["responses"]
    assert {status: responses[status]["description"] for status in ("200", "400", "500")} == {
        "200": "Successful execution",
        "400": "Invalid request",
        "500": "Internal server error",
    }
    for status in ("400", "500"):
        schema = followed(document, responses[status]["content"]["application/json"]["schema"])
        assert (schema["type"], schema["properties"]) == ("object", {"error": {"type": "string"}})
    schema = followed(document, responses["200"]["content"]["application/json"]["schema"])
    assert schema["properties"] == {"result": {"type": "integer"}}


# --- operations ---------------------------------------------------------------------------------------------------


def test_queries_and_subscriptions_have_a_twin_for_get() -> None:
    paths = to_openapi(shop(), everything=True)["paths"]
    ids = [item[method]["operationId"] for item in paths.values() for method in item]
    assert sorted(ids) == [
        "shop.add",
        "shop.add.get",
        "shop.create",
        "shop.divide",
        "shop.divide.get",
        "shop.forget",
        "shop.grow",
        "shop.grow.get",
        "shop.ticks",
        "shop.ticks.get",
    ]


def test_an_operation_says_what_it_is() -> None:
    found = operation("shop.grow")
    assert (found["tags"], found["x-mcp-tool"]) == (["plants"], "shop_grow")
    assert operation("shop.add")["tags"] == ["shop"]
    assert operation("shop.add")["description"] == "Add two numbers."


def test_arguments_of_a_get_are_written_as_they_are_read() -> None:
    parameters = {parameter["name"]: parameter for parameter in operation("shop.grow", "get")["parameters"]}
    assert parameters["root"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Tree"}
    assert "content" in parameters["others"]
    assert (parameters["names"]["style"], parameters["names"]["explode"]) == ("form", True)
    assert (parameters["root"]["required"], parameters["names"]["required"]) == (True, False)
    (x, _) = operation("shop.add", "get")["parameters"]
    assert x == {"name": "x", "in": "query", "description": "First addend.", "required": True, "schema": x["schema"]}


def test_access_rules_become_security_and_only_there() -> None:
    assert operation("shop.create")["security"] == [{"bearer": ["write", "a"]}, {"bearer": ["write", "b"]}]
    assert "security" not in operation("shop.add")


def test_a_caller_sees_what_he_may_call() -> None:
    def paths(identity: Identity | None) -> set[str]:
        return set(to_openapi(shop(), identity=identity)["paths"])

    assert paths(ANN) - paths(None) == {"/functions/shop.create"}
    assert to_openapi(shop())["components"]["securitySchemes"] == {}


# --- answers ------------------------------------------------------------------------------------------------------


def test_every_status_is_there() -> None:
    own = ["200", "400", "401", "403", "404", "406", "409"]
    statuses = [*own, "410", "412", "413", "415", "422", "429", "499", "500", "502", "503", "504"]
    assert list(operation("shop.add")["responses"]) == statuses
    assert list(operation("shop.add", "get")["responses"]) == [
        status for status in statuses if status not in ("413", "415")
    ]


def test_declared_codes_are_listed_at_their_status() -> None:
    responses = operation("shop.forget")["responses"]
    assert [error["code"] for error in responses["409"]["x-enfold-errors"]] == ["SOLD_OUT"]
    assert [error["code"] for error in responses["500"]["x-enfold-errors"]] == ["BROKEN"]
    assert responses["500"]["description"] == "Internal server error"


def test_a_stream_has_two_forms_and_can_be_resumed() -> None:
    found = operation("shop.ticks", "get")
    assert set(found["responses"]["200"]["content"]) == {"text/event-stream", "application/x-ndjson"}
    assert [parameter["name"] for parameter in found["parameters"]] == ["to", "Last-Event-ID"]


def test_definitions_are_shared_among_operations() -> None:
    schemas = to_openapi(shop(), everything=True)["components"]["schemas"]
    assert [name for name in schemas if "Tree" in name] == ["Tree", "TreeResult"]
    assert schemas["Tree"]["properties"]["children"]["items"] == {"$ref": "#/components/schemas/Tree"}


# --- components ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_every_failure_has_the_one_error_component_as_its_body(format: str) -> None:
    document = to_openapi(shop(), everything=True, format=format)
    items = [item[method] for item in document["paths"].values() for method in item]
    failures = [
        followed(document, response)
        for item in items
        for status, response in item["responses"].items()
        if int(status) >= 400
    ]
    bodies = [each["content"][FORMATS[format].error_media_type]["schema"] for each in failures]
    assert bodies == [{"$ref": "#/components/schemas/Error"}] * len(failures)
    assert all("application/problem+json" in each["content"] for each in failures)
    assert document["components"]["schemas"]["Error"] == FORMATS[format].error_schema


@pytest.mark.parametrize("format", FORMATS)
def test_every_body_is_a_component(format: str) -> None:
    document = to_openapi(desk.ops, everything=True, format=format)
    for item in (operations[method] for operations in document["paths"].values() for method in operations):
        body = item.get("requestBody", {"content": {}})["content"]
        answer = item["responses"]["200"]["content"]
        for kind, part in (body | answer).items():
            assert list(part["schema"]) == ["$ref"] or kind == "application/x-ndjson"


def test_a_class_is_one_component_wherever_it_occurs_and_results_are_named_by_it() -> None:
    document = to_openapi(desk.ops, everything=True)
    schemas = document["components"]["schemas"]
    assert {name for name in schemas if not name.startswith("desk_")} == {
        *("Customer", "Page", "Order", "Line", "Error", "Problem"),
        *("CustomerResult", "CustomerListResult", "PageResult", "OrderResult", "OrderListResult"),
        *("IntegerResult", "BooleanResult"),
    }
    assert len(schemas) < 30
    assert schemas["CustomerResult"]["properties"]["result"] == {"$ref": "#/components/schemas/Customer"}
    titles = [schema["title"] for schema in schemas.values() if "title" in schema]
    assert len(titles) == len(set(titles))


def test_a_class_with_the_name_of_ours_or_of_another_gets_its_own_name() -> None:
    def named(title: str, kind: str) -> dict[str, Any]:
        return {"title": title, "type": "object", "properties": {"x": {"type": kind}}, "required": ["x"]}

    ops = OperationRegistry()
    outputs = {
        "error": named("Error", "string"),
        "one": named("Box", "string"),
        "other": named("Box", "integer"),
        "result": named("BoxResult", "boolean"),
        "odd": {**named("Box[int]/~", "null"), "properties": {"x": {"type": "null"}, "below": {"$ref": "#"}}},
    }
    for name, output in outputs.items():
        ops.register_spec(spec(name, output_schema=output))
    document = to_openapi(ops, everything=True)
    pytest.importorskip("openapi_spec_validator").validate(document)
    values = {"error": "a", "one": "a", "other": 1, "result": True, "odd": None}
    for name, value in values.items():
        answer = document["paths"][f"/functions/shop.{name}"]["post"]["responses"]["200"]["content"]["application/json"]
        is_valid = jsonschema_rs.validator_for(resolved(document, answer["schema"])).is_valid
        assert is_valid({"result": {"x": value}})
        others = [other for other in values.values() if type(other) is not type(value)]
        assert not any(is_valid({"result": {"x": other}}) for other in others)
    below = {"result": {"x": None, "below": {"x": 1}}}
    assert not is_valid(below)


def test_a_definition_appears_once_whatever_is_beside_it() -> None:
    author = {"type": "object", "properties": {"name": {"type": "string"}, "of": {"$ref": "#/$defs/Publisher"}}}
    publisher = {"type": "object", "properties": {"town": {"type": "string"}}}
    alone: dict[str, Any] = {"$defs": {"Author": author, "Publisher": publisher}, "$ref": "#/$defs/Author"}
    book = {
        "$defs": {**alone["$defs"], "Book": {"properties": {"by": {"$ref": "#/$defs/Author"}}}},
        "$ref": "#/$defs/Book",
    }
    other = {"$defs": {"Author": author, "Publisher": {"type": "string"}}, "$ref": "#/$defs/Author"}
    ops = OperationRegistry()
    for name, schema in {"author": alone, "book": book, "books": book, "other": other}.items():
        ops.register_spec(spec(name, output_schema=schema))
    schemas = to_openapi(ops, everything=True)["components"]["schemas"]
    named = {"shop_other_output_Author", "shop_other_output_Publisher"}
    assert {name for name in schemas if not name.endswith(("Result", "_input", "Error", "Problem"))} == {
        "Author",
        "Publisher",
        "Book",
    } | named
    assert schemas["shop_other_output_Author"]["properties"]["of"]["$ref"].endswith("shop_other_output_Publisher")


def test_the_branches_that_a_discriminator_names_are_found() -> None:
    pet = {"discriminator": {"propertyName": "kind", "mapping": {"cat": "#/$defs/Cat", "dog": "Dog"}}, "oneOf": []}
    ops = OperationRegistry()
    schema = {"$defs": {"Cat": {"type": "object"}}, "properties": {"pet": pet, "discriminator": {"mapping": {}}}}
    ops.register_spec(spec("pet", output_schema=schema))
    text = json.dumps(to_openapi(ops, everything=True))
    assert '"mapping": {"cat": "#/components/schemas/Cat", "dog": "Dog"}' in text


def test_a_name_that_is_unique_for_the_caller_is_a_path_too() -> None:
    ops = OperationRegistry()
    for namespace, name, scopes in (
        ("a", "add", ()),
        ("b", "add", ("x",)),
        ("b", "c", ()),
        ("", "c", ()),
        ("", "d", ()),
    ):
        access = AccessControl(required_scopes=scopes)
        each = OperationSpec(namespace=namespace, name=name, access_control=access)
        ops.register_spec(each)

    def short(**options: Any) -> dict[str, Any]:
        paths = to_openapi(ops, **options)["paths"]
        return {path: item["post"]["x-short-path"] for path, item in paths.items() if "x-short-path" in item["post"]}

    assert short(everything=True) == {}
    assert short() == {"/functions/a.add": "/functions/add"}


def spec(name: str, **schemas: Any) -> OperationSpec:
    return OperationSpec(namespace="shop", name=name, **schemas)


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param({"$defs": {"T": {"type": "string"}}, "$ref": "#/$defs/T"}, id="a reference at the root"),
        pytest.param({"$defs": {"a/b": {"type": "string"}}, "$ref": "#/$defs/a~1b"}, id="an escaped name"),
        pytest.param({"$defs": {"a b": {"type": "string"}}, "$ref": "#/$defs/a%20b"}, id="a quoted name"),
        pytest.param({"definitions": {"T": {"type": "string"}}, "$ref": "#/definitions/T"}, id="an older spelling"),
        pytest.param({"anyOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#"}}]}, id="itself"),
        pytest.param({"anyOf": [{"type": "string"}, {"$ref": "#/anyOf/0"}]}, id="a part of itself"),
        pytest.param(
            {"$id": "https://x.example/s", "$defs": {"T": {"type": "string"}}, "$ref": "#/$defs/T"}, id="its own id"
        ),
        pytest.param(
            {"$defs": {"T": {"properties": {"t": {"$ref": "#/$defs/U"}}}, "U": {"type": "string"}}, "type": "string"},
            id="unused definitions",
        ),
    ],
)
@pytest.mark.parametrize("format", ["result", "envelope"])
def test_references_of_any_kind_still_lead_to_their_place(schema: dict[str, Any], format: str) -> None:
    ops = OperationRegistry()
    ops.register_spec(spec("taken", output_schema={"$defs": {"T": {"type": "null"}}, "$ref": "#/$defs/T"}))
    ops.register_spec(spec("text", output_schema=schema))
    document = to_openapi(ops, format=format)
    answer = document["paths"]["/functions/shop.text"]["post"]["responses"]["200"]["content"]["application/json"]
    validator = jsonschema_rs.validator_for(resolved(document, answer["schema"]))
    meta = {"source": "local", "operationId": "shop.text", "timestamp": 1}
    good = {"result": "x"} if format == "result" else {"data": "x", "meta": meta}
    bad = {"result": 5} if format == "result" else {"data": 5, "meta": meta}
    assert (validator.is_valid(good), validator.is_valid(bad)) == (True, False)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"word": {"$ref": "#/definitions/word"}}, "definitions": {"word": {"type": "string"}}},
        {"properties": {"first": {"type": "string"}, "word": {"$ref": "#/properties/first"}}},
        {"properties": {"word": {"$ref": "#/$defs/word"}}, "$defs": {"word": {"type": "string"}}},
    ],
    ids=["definitions", "another argument", "$defs"],
)
def test_references_of_an_argument_lead_to_their_place_in_a_query_string_too(schema: dict[str, Any]) -> None:
    ops = OperationRegistry()
    ops.register_spec(spec("find", type="query", input_schema={"type": "object", **schema}))
    document = to_openapi(ops, everything=True)
    parameters = document["paths"]["/functions/shop.find"]["get"]["parameters"]
    validator = jsonschema_rs.validator_for(resolved(document, parameters[-1]["schema"]))
    assert (validator.is_valid("tea"), validator.is_valid(5)) == (True, False)


def test_an_argument_that_is_the_whole_input_again_is_described_as_such() -> None:
    ops = OperationRegistry()
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}}, "additionalProperties": False}
    ops.register_spec(spec("find", type="query", input_schema=tree))
    document = to_openapi(ops, everything=True)
    (parameter,) = document["paths"]["/functions/shop.find"]["get"]["parameters"]
    validator = jsonschema_rs.validator_for(resolved(document, parameter["content"]["application/json"]["schema"]))
    assert (validator.is_valid({"left": {}}), validator.is_valid({"right": {}})) == (True, False)


def test_a_reference_in_a_default_is_only_data() -> None:
    schema = {"type": "object", "properties": {"x": {"default": {"$ref": "#/nowhere"}}, "enum": {"$ref": "#/$defs/T"}}}
    ops = OperationRegistry()
    ops.register_spec(spec("keep", input_schema={**schema, "$defs": {"T": {"type": "string"}}}))
    assert to_openapi(ops)["components"]["schemas"]["shop_keep_input"]["properties"] == {
        "x": {"default": {"$ref": "#/nowhere"}},
        "enum": {"$ref": "#/components/schemas/T"},
    }


# --- what the server really answers -------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_real_answers_fit_the_document(format: str) -> None:
    tree = {"name": "a", "children": [{"name": "b", "children": []}]}
    calls: list[tuple[str, Any]] = [
        ("add", {"x": 1}),
        ("add", {"x": "one"}),
        ("add", []),
        ("grow", {"root": tree}),
        ("divide", {"x": 7, "y": 2}),
        ("divide", {"x": 7, "y": 0}),
        ("forget", {}),
        ("create", {"title": "x"}),
    ]
    with serve(to_http(shop(), HTTPSettings(format=format))) as client:
        document = to_openapi(shop(), format=format, everything=True)
        assert [_misfit(client, document, name, given) for name, given in calls] == [None] * len(calls)


def _misfit(client: Client, document: Any, name: str, given: Any) -> str | None:
    answer = client.post(f"/functions/shop.{name}", given)
    response = document["paths"][f"/functions/shop.{name}"]["post"]["responses"][str(answer.status)]
    if "$ref" in response:
        response = document["components"]["responses"][response["$ref"].rpartition("/")[2]]
    schema = response["content"][answer.headers["content-type"]]["schema"]
    missing = [name for name in response["headers"] if name.lower() not in answer.headers and name == "Enfold-Code"]
    fits = jsonschema_rs.is_valid(resolved(document, schema), answer.json)
    return None if fits and not missing else f"{answer.status} {answer.json} {missing}"


def test_the_served_document_is_that_of_the_format_in_use() -> None:
    with serve(to_http(shop(), HTTPSettings(title="Shop", version="2.0"))) as client:
        found = client.get("/openapi.json").json
        assert (found["openapi"], found["info"]) == ("3.1.0", {"title": "Shop", "version": "2.0"})
        assert found == to_openapi(shop(), title="Shop", version="2.0")
        other = client.get("/openapi.json", Enfold_Format="envelope").json
        assert other == to_openapi(shop(), title="Shop", version="2.0", format="envelope")
