"""Schemas of every version as JSON Schema 2020-12, and references of every form."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import msgspec
import pytest

from enfold.schema.compiled import compile_schema
from enfold.sources.openapi import from_openapi

if TYPE_CHECKING:
    from tests.sources.openapi.conftest import Words


def output(http: Words, schema: Any, version: str = "3.0.3", **components: Any) -> Any:
    responses = http.json_response(schema)
    document = http.document({"responses": responses}, version=version, components={"schemas": components})
    (operation,) = from_openapi(document)
    return operation.spec.output_schema


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "string", "enum": ["a"], "nullable": True}, {"type": ["string", "null"], "enum": ["a", None]}),
        ({"allOf": [{"type": "string"}], "nullable": True}, {"anyOf": [{"allOf": [{"type": "string"}]}, {"type": "null"}]}),
        ({"type": "integer", "minimum": 1, "exclusiveMinimum": True}, {"type": "integer", "exclusiveMinimum": 1}),
        ({"type": "integer", "maximum": 1, "exclusiveMaximum": False}, {"type": "integer", "maximum": 1}),
        ({"type": "integer", "exclusiveMinimum": 3}, {"type": "integer", "exclusiveMinimum": 3}),
        ({"type": ["string", "null"]}, {"type": ["string", "null"]}),
        ({"type": "array", "items": [{"type": "string"}]}, {"type": "array", "prefixItems": [{"type": "string"}]}),
        ({"type": "string", "format": "byte"}, {"type": "string", "format": "byte", "contentEncoding": "base64"}),
        ({"type": "string", "xml": {}, "x-a": None, "externalDocs": {}, "discriminator": {}}, {"type": "string"}),
        ({"type": "string", "example": "a"}, {"type": "string"}),
        ({"type": "text"}, {}),
        ({"type": "string", "minLength": "3", "pattern": None}, {"type": "string"}),
        ({"type": "object", "required": True}, {"type": "object"}),
        ({"items": True}, {"items": True}),
        (True, {}),
        (False, {"not": {}}),
    ],
    ids=str,
)  # fmt: skip
def test_older_ways_are_written_in_today_s(http: Words, schema: Any, expected: Any) -> None:
    assert output(http, schema) == expected


def test_keywords_beside_a_reference_apply_since_3_1_and_only_describe_before(http: Words) -> None:
    schema = {"properties": {"a": {"$ref": "#/components/schemas/T", "maxLength": 3, "description": "d"}}}
    text = {"type": "string"}
    old, new = output(http, schema, "3.0.3", T=text), output(http, schema, "3.1.0", T=text)
    assert old["properties"]["a"] == {"$ref": "#/$defs/T", "description": "d"}
    assert new["properties"]["a"] == {"$ref": "#/$defs/T", "maxLength": 3, "description": "d"}


def test_a_nullable_reference_may_be_null(http: Words) -> None:
    schema = {"properties": {"a": {"$ref": "#/components/schemas/T", "nullable": True}}}
    found = output(http, schema, T={"type": "object"})
    assert found["properties"]["a"] == {"anyOf": [{"$ref": "#/$defs/T"}, {"type": "null"}]}


def test_only_what_is_reached_is_carried_along(http: Words) -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/components/schemas/Node"}}}
    found = output(http, {"$ref": "#/components/schemas/Node"}, Node=node, Other={"type": "string"})
    assert (found["type"], set(found["$defs"])) == ("object", {"Node"})


@pytest.mark.parametrize(
    ("components", "ref"),
    [
        ({"A": {"$ref": "#/components/schemas/A"}}, "#/components/schemas/A"),
        ({"A": {"$ref": "#/components/schemas/B"}, "B": {"$ref": "#/components/schemas/A"}}, "#/components/schemas/A"),
        ({}, "#/components/schemas/Missing"),
        ({}, "#nowhere"),
        ({"A": 5}, "#/components/schemas/A"),
    ],
    ids=["itself", "circle", "missing", "anchor", "number"],
)
def test_a_reference_that_means_nothing_counts_as_anything_and_is_reported(
    http: Words, components: Any, ref: str
) -> None:
    document = http.document({"responses": http.json_response({"$ref": ref})}, components={"schemas": components})
    imported = from_openapi(document)
    (operation,) = imported
    assert operation.spec.output_schema == {}
    assert imported.report.degraded


@pytest.mark.parametrize(
    "ref",
    [
        "#/components/schemas/a~1b",
        "#/components/schemas/a~1b%20c/properties/%7Bx%7D",
        "#/components/schemas/Alias/properties/{x}",
        "#/paths/~1x/get/responses/200/content/application~1json/schema/properties/inner",
        "#here",
        "https://schemas.test/thing",
        "https://schemas.test/thing#/$defs/deep",
        "https://schemas.test/thing#there",
    ],
)
def test_a_reference_may_point_anywhere_in_the_document(http: Words, ref: str) -> None:
    target = {"type": "integer", "title": "found"}
    components = {
        "a/b": target,
        "a/b c": {"properties": {"{x}": target}},
        "Alias": {"$ref": "#/components/schemas/a~1b c"},
        "Anchored": {"$anchor": "here", **target},
        "Own": {"$id": "https://schemas.test/thing", **target, "$defs": {"deep": {**target, "$anchor": "there"}}},
    }
    schema = {"properties": {"inner": target, "a": {"$ref": ref}}}
    document = http.document({"responses": http.json_response(schema)}, components={"schemas": components})
    (operation,) = from_openapi(document)
    found = operation.spec.output_schema
    name = found["properties"]["a"]["$ref"].removeprefix("#/$defs/")
    assert (found["$defs"][name]["type"], found["$defs"][name]["title"]) == ("integer", "found")


def test_inside_a_schema_with_an_id_references_are_relative_to_it(http: Words) -> None:
    own = {
        "$id": "https://schemas.test/own",
        "properties": {"a": {"$ref": "#/$defs/T"}},
        "$defs": {"T": {"type": "null"}},
    }
    found = output(http, {"$ref": "#/components/schemas/Own"}, "3.1.0", Own=own, T={"type": "string"})
    (definition,) = found["$defs"].values()
    assert definition == {"type": "null"}


def test_components_may_be_in_another_file(tmp_path: Path, http: Words) -> None:
    (tmp_path / "schemas.yaml").write_text("Pet: {type: object, properties: {name: {type: string}}}\n")
    document = http.document(
        {"responses": http.json_response({"$ref": "#/components/schemas/Pet"})},
        components={"schemas": {"$ref": "schemas.yaml"}},
    )
    main = tmp_path / "openapi.json"
    main.write_bytes(msgspec.json.encode(document))
    (operation,) = from_openapi(main)
    assert list(operation.spec.output_schema["properties"]) == ["name"]


def test_a_document_with_its_own_address_still_finds_its_neighbours(tmp_path: Path, http: Words) -> None:
    (tmp_path / "pet.json").write_text('{"type": "integer"}')
    document = http.document({"responses": http.json_response({"$ref": "pet.json"})}, **{"$self": "https://a.test/api"})
    main = tmp_path / "openapi.json"
    main.write_bytes(msgspec.json.encode({**document, "openapi": "3.2.0"}))
    (operation,) = from_openapi(main)
    assert operation.spec.output_schema == {"type": "integer"}


def test_success_responses_are_the_output(http: Words) -> None:
    def schema(responses: Any, method: str = "get") -> Any:
        (operation,) = from_openapi(http.document({"responses": responses}, method=method))
        return operation.spec.output_schema

    text, number = {"type": "string"}, {"type": "number"}
    assert schema(http.json_response(text, "2XX")) == text
    assert schema(http.json_response(text, "default")) == text
    assert schema({**http.json_response(text), **http.json_response(number, "default")}) == text
    assert schema({**http.json_response(text), **http.json_response(number, "201")}) == {"anyOf": [text, number]}
    assert schema({**http.json_response(text), "204": {"description": ""}}) == {"anyOf": [text, {"type": "null"}]}
    assert schema({"204": {"description": ""}}) == {"type": "null"}
    assert schema(http.json_response(text), "head") == {"type": "null"}
    assert schema({"200": {"content": {"text/csv": {}}}}) == text
    picture = {"type": "string", "contentEncoding": "base64", "contentMediaType": "image/png"}
    assert schema({"200": {"content": {"image/png": {}}}}) == picture
    assert schema({"200": {"content": {"application/json": {}}}}) == {}
    assert schema({}) == {}


# --- invalid JSON Schemas


@pytest.mark.parametrize(
    ("written", "version", "converted"),
    [
        ({"type": "object", "required": ["a", "b", "a"]}, "3.1.0", {"type": "object", "required": ["a", "b"]}),
        ({"type": None}, "3.1.0", {"type": "null"}),
        ({"type": None}, "3.0.0", {}),
        ({"type": None, "format": None, "description": "d"}, "3.1.0", {"description": "d"}),
        ({"type": ["string", None]}, "3.1.0", {"type": ["string", "null"]}),
        ({"type": ["string", "string"]}, "3.1.0", {"type": ["string"]}),
        ({"type": []}, "3.1.0", {}),
        ({"type": [{}]}, "3.1.0", {}),
        ({"anyOf": [{"type": "string"}, {"type": None}]}, "3.1.0", {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ({"type": "array", "items": []}, "3.1.0", {"type": "array"}),
        ({"type": "array", "items": [], "additionalItems": False}, "3.1.0", {"type": "array", "items": False}),
        ({"type": "array", "prefixItems": []}, "3.1.0", {"type": "array"}),
        ({"allOf": [], "anyOf": [], "oneOf": []}, "3.1.0", {}),
        ({"enum": []}, "3.1.0", {}),
    ],
    ids=str,
)
def test_an_invalid_json_schema_is_corrected(
    http: Words, written: dict[str, Any], version: str, converted: dict[str, Any]
) -> None:
    document = http.document({"responses": http.json_response(written)}, version=version)
    schema = next(iter(from_openapi(document))).spec.output_schema
    assert schema == converted
    jsonschema_rs.meta.validate(schema)


ENUM_OR_TIME = [{"type": "string", "format": "date-time"}, {"type": "string", "enum": ["now", "never"]}]


@pytest.mark.parametrize(
    ("branches", "good", "bad"),
    [
        ([{"type": "integer"}, {"type": "number"}], [1, 1.5], ["x"]),
        ([{"type": "number"}, {"type": "integer"}], [1, 1.5], [None]),
        (ENUM_OR_TIME, ["now", "2026-01-01T00:00:00Z"], [1]),
        ([{"type": "string", "format": "uuid"}, {"type": "string", "format": "email"}], ["a@b.c"], [1]),
        ([{"type": "object", "properties": {"a": {}}}, {"type": "object", "properties": {"b": {}}}], [{"a": 1}], [[]]),
        ([{"type": "string"}, {"type": "string", "maxLength": 3}], ["ab", "abcd"], [1]),
        ([{}, {"type": "string"}], ["a", 1], []),
    ],
    ids=str,
)
@pytest.mark.parametrize("nested", [False, True])
def test_for_input_the_first_branch_that_fits_will_do(
    http: Words, branches: list[Any], good: list[Any], bad: list[Any], nested: bool
) -> None:
    written = {"type": "array", "items": {"oneOf": branches}} if nested else {"oneOf": branches}
    parameter = {"name": "v", "in": "query", "schema": written}
    schema = compile_schema(next(iter(from_openapi(http.document({"parameters": [parameter]})))).spec.input_schema)
    assert all(schema.check({"v": [each] if nested else each}) for each in good)
    assert not any(schema.check({"v": [each] if nested else each}) for each in bad)


def test_definitions_of_one_name_are_named_alike_in_every_process(http: Words) -> None:
    alike = ["A B", "A_B", "A+B", "A*B", "A~B", "A=B", "A&B", "A,B"]
    parts = [f"Part{index}" for index in range(len(alike))]
    components: dict[str, Any] = {name: {"type": "string", "description": name} for name in alike}
    for part, name in zip(parts, alike, strict=True):
        pointer = name.replace("~", "~0")
        components[part] = {"type": "object", "properties": {"x": {"$ref": f"#/components/schemas/{pointer}"}}}
    properties = {part: {"$ref": f"#/components/schemas/{part}"} for part in parts}
    found = output(http, {"type": "object", "properties": properties}, **components)["$defs"]
    assert found["A_B"]["description"] == "A B"
    assert [found[part]["properties"]["x"]["$ref"].startswith("#/$defs/A_B_") for part in parts] == [False] + [True] * 7


def test_one_of_beside_any_of_asks_for_both_and_inside_not_means_what_it_says(http: Words) -> None:
    one_of = [{"type": "integer"}, {"type": "number"}]
    body = {
        "type": "object",
        "properties": {
            "both": {"oneOf": one_of, "anyOf": [{"minimum": 3}], "allOf": [{"maximum": 9}]},
            "neither": {"not": {"oneOf": one_of}},
        },
    }
    spec = next(iter(from_openapi(http.document({"requestBody": http.json_body(body)}, method="post")))).spec
    schema = compile_schema(spec.input_schema)
    assert schema.check({"both": 4})
    assert not any(schema.check({"both": value}) for value in (1, 10, "a"))
    assert schema.check({"neither": 1})
    assert not schema.check({"neither": 1.5})
