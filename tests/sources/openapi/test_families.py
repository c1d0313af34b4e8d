"""A base with a discriminator stands for its children, in answers and in bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from enfold.schema.compiled import compile_schema
from enfold.sources.openapi import from_openapi
from enfold.sources.openapi.schemas import MAX_CHILDREN

if TYPE_CHECKING:
    from tests.sources.openapi.conftest import Connect, Serve, Words

TEXT = {"type": "string"}


def family(version: str, *, closed: bool = False, mapping: bool = False, wrapped: bool = False) -> dict[str, Any]:
    """Clients that speak OIDC or SAML, as servers describe them: 2.0 and 3.x, open and closed."""
    root = "#/definitions/" if version == "2.0" else "#/components/schemas/"
    end = {"additionalProperties": False} if closed else {}
    named = {"mapping": {"oidc": f"{root}Oidc", "saml": f"{root}Saml"}} if mapping else {}
    tag: Any = "protocol" if version == "2.0" else {"propertyName": "protocol", **named}
    base = {"type": "object", "required": ["protocol"], "properties": {"protocol": TEXT, "name": TEXT}, **end}
    parts = [{"$ref": f"{root}Client"}]
    return {
        "Client": {**base, "discriminator": tag},
        "Oidc": {"allOf": [*parts, {"type": "object", "properties": {"redirects": {"type": "array"}}, **end}]},
        "Saml": {"allOf": parts, "properties": {"certificate": TEXT}, **end},
        "Plain": {"allOf": parts},
        "Mobile": {"allOf": [{"$ref": f"{root}Oidc"}, {"type": "object", "properties": {"device": TEXT}}]},
        "Shown": {
            "type": "object",
            "properties": {"client": {"allOf": parts, "description": "One."} if wrapped else parts[0]},
        },
    }


def with_schemas(http: Words, version: str, schemas: dict[str, Any], operation: dict[str, Any]) -> dict[str, Any]:
    place: dict[str, Any] = {"definitions": schemas} if version == "2.0" else {"components": {"schemas": schemas}}
    return http.document(operation, version=version, method="post", **place)


def taking_and_giving(http: Words, version: str, schemas: dict[str, Any], name: str) -> dict[str, Any]:
    ref = {"$ref": f"#/{'definitions' if version == '2.0' else 'components/schemas'}/{name}"}
    if version == "2.0":
        body: dict[str, Any] = {"parameters": [{"name": "b", "in": "body", "required": True, "schema": ref}]}
        return with_schemas(http, version, schemas, {**body, "responses": {"200": {"description": "", "schema": ref}}})
    return with_schemas(
        http, version, schemas, {"requestBody": http.json_body(ref), "responses": http.json_response(ref)}
    )


CHILDREN: list[dict[str, Any]] = [
    {"protocol": "oidc", "redirects": ["https://a.test"]},
    {"protocol": "saml", "certificate": "c", "name": "n"},
    {"protocol": "oidc", "redirects": [], "device": "d"},
    {"protocol": "plain"},
]


@pytest.mark.parametrize("child", CHILDREN, ids=str)
@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("mapping", [False, True])
@pytest.mark.parametrize("version", ["2.0", "3.0.3", "3.1.0"])
async def test_every_child_can_be_sent_and_comes_whole(
    serve: Serve, connect: Connect, http: Words, version: str, mapping: bool, closed: bool, child: dict[str, Any]
) -> None:
    server = await serve(lambda received: http.reply(received.body))
    schemas = family(version, closed=closed, mapping=mapping)
    for extras in ("keep", "strip"):
        registry = connect(taking_and_giving(http, version, schemas, "Client"), base_url=server.url, extras=extras)
        envelope = await registry.execute("x", child)
        assert (envelope.data, envelope.warnings) == (child, ())


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("child", CHILDREN, ids=str)
async def test_a_child_may_stand_inside(
    serve: Serve, connect: Connect, http: Words, wrapped: bool, child: dict[str, Any]
) -> None:
    server = await serve(lambda received: http.reply(received.body))
    document = taking_and_giving(http, "3.0.3", family("3.0.3", wrapped=wrapped), "Shown")
    envelope = await connect(document, base_url=server.url, extras="strip").execute("x", {"client": child})
    assert (envelope.data, envelope.warnings) == ({"client": child}, ())


def test_the_fields_of_all_children_are_arguments_and_only_those_of_the_base_are_required(http: Words) -> None:
    document = taking_and_giving(http, "3.0.3", family("3.0.3"), "Client")
    schema = next(iter(from_openapi(document))).spec.input_schema
    assert set(schema["properties"]) == {"protocol", "name", "redirects", "certificate", "device"}
    assert schema["required"] == ["protocol"]


def test_a_closed_part_of_a_composition_does_not_refuse_the_properties_of_the_others(http: Words) -> None:
    document = taking_and_giving(http, "3.0.3", family("3.0.3", closed=True), "Oidc")
    schema = next(iter(from_openapi(document))).spec.output_schema
    assert compile_schema(schema).check({"protocol": "oidc", "redirects": []})
    assert not compile_schema(schema).check({"protocol": "oidc", "redirects": 1})


def test_a_base_with_more_children_than_anybody_reads_is_open(http: Words) -> None:
    children = {f"C{n}": {"allOf": [{"$ref": "#/components/schemas/Client"}, {}]} for n in range(MAX_CHILDREN + 1)}
    schemas = {**family("3.1.0", closed=True), **children}
    spec = next(iter(from_openapi(taking_and_giving(http, "3.1.0", schemas, "Client")))).spec
    assert compile_schema(spec.input_schema).check({"protocol": "c", "anything": 1})
    assert compile_schema(spec.output_schema).check({"protocol": "c", "anything": 1})


@pytest.mark.parametrize(
    "child",
    [
        {"$ref": "#/components/schemas/Client"},
        {"anyOf": [{"$ref": "#/components/schemas/Client"}]},
        {"allOf": [{"$ref": "#/components/schemas/Client"}]},
    ],
)
def test_a_child_that_is_its_base_does_not_go_round_in_circles(http: Words, child: dict[str, Any]) -> None:
    schemas = {**family("3.1.0", mapping=True), "Oidc": child}
    spec = next(iter(from_openapi(taking_and_giving(http, "3.1.0", schemas, "Client")))).spec
    for schema in (spec.input_schema, spec.output_schema):
        assert compile_schema(schema).check({"protocol": "oidc"})
        assert not compile_schema(schema).check({"protocol": 1})
