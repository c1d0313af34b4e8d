"""Names, filters and renames of operations, and a malformed operation among valid ones."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest
from tests.openapi_options import openapi_options

from enfold.errors import FormatError
from enfold.sources.openapi import from_openapi
from enfold.sources.options import Selection

if TYPE_CHECKING:
    from tests.sources.openapi.conftest import Words

OK = {"responses": {"200": {"description": "ok"}}}


def whole(paths: Any, version: str = "3.2.0", **root: Any) -> dict[str, Any]:
    return {"openapi": version, "info": {"title": "t", "version": "1"}, "paths": paths, **root}


def named(path_to_id: dict[str, str]) -> dict[str, Any]:
    return whole({path: {"get": {"operationId": name, **OK}} for path, name in path_to_id.items()})


def hashed(name: str, title: str) -> str:
    return f"{name}_{hashlib.sha256(title.encode()).hexdigest()[:8]}"


def names_of(document: Any, **options: Any) -> list[str]:
    return from_openapi(document, **openapi_options(**options)).report.imported


# --- names


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ({"/a": "getPets"}, ["getPets"]),
        ({"/a": "pets/list all"}, ["pets_list_all"]),
        ({"/a": "a.b", "/b": "a_b"}, [hashed("a_b", "GET /a"), "a_b"]),
        ({"/a": "a.b", "/b": "a/b"}, [hashed("a_b", "GET /a"), hashed("a_b", "GET /b")]),
        ({"/a": "same", "/b": "same"}, [hashed("same", "GET /a"), hashed("same", "GET /b")]),
        ({"/a": "x" * 70}, ["x" * 64]),
        ({"/a": "x" * 70, "/b": "x" * 71}, [hashed("x" * 55, "GET /a"), hashed("x" * 55, "GET /b")]),
        ({"/a/{id}": ""}, ["get_a_id"]),
        ({"/": ""}, ["get"]),
        ({"/a/b": "", "/a-b": ""}, [hashed("get_a_b", "GET /a/b"), hashed("get_a_b", "GET /a-b")]),
        ({"/a/b": "", "/c": "get_a_b"}, [hashed("get_a_b", "GET /a/b"), "get_a_b"]),
        ({"/a#one": "", "/a#two": ""}, ["get_a_one", "get_a_two"]),
        ({"/ä": ""}, ["get"]),
        ({"/a": "créerÉlément"}, ["creerElement"]),
        ({"/a": "ｆｕｌｌ"}, ["full"]),
        ({"/a": "🚀", "/b": "--", "/c": "…"}, ["get_a", "get_b", "get_c"]),
        ({"/a": "_1"}, ["_1"]),
        ({"/users/{编号}": "获取用户"}, ["get_users"]),
        (
            {"/users": "获取用户", "/orders": "注文一覧", "/pets/{id}": "список"},
            ["get_users", "get_orders", "get_pets_id"],
        ),
        ({"/a/b": "甲", "/a-b": "乙"}, [hashed("get_a_b", "GET /a/b"), hashed("get_a_b", "GET /a-b")]),
        ({"/用户": "甲", "/订单": "乙"}, [hashed("get", "GET /用户"), hashed("get", "GET /订单")]),
    ],
    ids=lambda value: "" if isinstance(value, list) else ", ".join(map(str, value.values())),
)
def test_names_are_legal_unique_and_the_documents_own_where_they_can_be(
    paths: dict[str, str], expected: list[str]
) -> None:
    assert names_of(named(paths)) == expected


def test_names_do_not_depend_on_the_order_of_the_document() -> None:
    paths = {"/a": "same", "/b": "same", "/c": "a.b", "/d": "a/b", "/e": "a_b"}
    turned = dict(reversed(paths.items()))
    assert sorted(names_of(named(paths))) == sorted(names_of(named(turned)))


def test_an_operation_id_of_another_script_stays_in_meta_and_can_be_chosen_and_renamed() -> None:
    document = named({"/users": "获取用户", "/orders": "获取订单"})
    (operation,) = from_openapi(document, selection=Selection("获取用户"))
    assert (operation.spec.id, operation.spec.meta["original_name"]) == ("get_users", "获取用户")
    assert names_of(document, rename={"获取用户": "users"}) == ["users", "get_orders"]


# --- filters and renames


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"include": "get*"}, ["getPets", "getShop"]),
        ({"include": ["#pets"]}, ["getPets", "addPet"]),
        ({"include": ["POST *"]}, ["addPet"]),
        ({"exclude": ["* /shop"]}, ["getPets", "addPet"]),
        ({"include": ["#pets"], "exclude": "getPets"}, ["addPet"]),
        ({"include": lambda spec: spec.type == "mutation"}, ["addPet"]),
        ({"rename": {"getPets": "pets", "POST /pets": "add"}}, ["pets", "add", "getShop"]),
        ({"namespace": "zoo", "include": "zoo.getP*"}, ["zoo.getPets"]),
    ],
    ids=["pattern", "tag", "method", "path", "both", "function", "rename", "namespace"],
)
def test_operations_are_chosen_and_renamed(options: dict[str, Any], expected: list[str]) -> None:
    pets = {"get": {"operationId": "getPets", "tags": ["pets"]}, "post": {"operationId": "addPet", "tags": ["pets"]}}
    document = whole({"/pets": pets, "/shop": {"get": {"operationId": "getShop"}}})
    assert names_of(document, **options) == expected


def test_two_operations_renamed_alike_are_refused() -> None:
    with pytest.raises(ValueError, match="Two operations would be called same"):
        names_of(named({"/a": "a", "/b": "b"}), rename={"a": "same", "b": "same"})


# --- what is an operation


def test_every_method_is_an_operation_and_nothing_else_is() -> None:
    item = dict.fromkeys(("get", "put", "post", "delete", "options", "head", "patch", "trace", "query"), OK)
    others: dict[str, Any] = {"summary": "s", "x-get": OK, "parameters": [], "additionalOperations": {"LOCK": OK}}
    imported = from_openapi(whole({"/a": {**item, **others}, "x-b": {"get": OK}, "/null": None}))
    assert [operation.spec.meta["method"] for operation in imported] == [
        *(method.upper() for method in item),
        "LOCK",
    ]
    types = {operation.spec.meta["method"]: operation.spec.type.value for operation in imported}
    assert [method for method, kind in types.items() if kind == "query"] == ["GET", "HEAD", "QUERY"]


@pytest.mark.parametrize(
    "bad",
    [
        "text",
        [],
        {"parameters": {}},
        {"parameters": [1]},
        {"parameters": [{"in": "query"}]},
        {"parameters": [{"name": "a"}]},
        {"parameters": [{"name": "a", "in": "moon"}]},
        {"parameters": [{"$ref": "#/nowhere"}]},
        {"parameters": [{"$ref": "missing.json"}]},
        {"requestBody": "text"},
        {"requestBody": {"$ref": "#/nowhere"}},
        {"$ref": "#/paths/~1bad/get"},
    ],
    ids=str,
)
def test_a_malformed_operation_is_skipped_with_where_and_why(bad: Any) -> None:
    report = from_openapi(whole({"/bad": {"get": bad}, "/good": {"get": {"operationId": "good"}}})).report
    assert report.imported == ["good"]
    assert "bad" in report.skipped[0].where
    assert report.skipped[0].why


@pytest.mark.parametrize(
    "odd",
    [
        {"tags": None, "summary": 3, "security": None, "operationId": None},
        {"security": [None, {"key": None}]},
        {"responses": None},
        {"responses": {200: {"description": "integer key"}, "x-a": None}},
        {"responses": {"200": None, "default": {"$ref": "#/nowhere"}}},
        {"responses": {"200": {"content": {"application/json": None}}}},
        {"responses": {"200": {"content": {"application/json": {"schema": {"$ref": "#/nowhere"}}}}}},
        {"requestBody": {}},
        {"requestBody": {"content": {"application/json": {"schema": None}}}},
        {"requestBody": {"content": {"application/json": {"schema": {"properties": None, "required": True}}}}},
        {"servers": [None, {"url": 3}]},
        {"parameters": None},
    ],
    ids=str,
)
def test_an_odd_operation_is_imported_and_described_anyway(odd: Any) -> None:
    imported = from_openapi(whole({"/odd": {"get": {"operationId": "odd", **odd}}}))
    (operation,) = imported
    assert operation.spec.input_schema["type"] == "object"
    assert isinstance(operation.spec.output_schema, dict)
    assert str(imported.report)


@pytest.mark.parametrize(
    "document",
    [{"openapi": "3.1.0"}, {"openapi": "3.1.0", "paths": None}, {"openapi": 3.1, "webhooks": {"a": {"post": OK}}}, {"swagger": 2.0}],
    ids=["bare", "null", "webhooks", "number"],
)  # fmt: skip
def test_a_document_without_paths_has_no_operations_and_no_error(document: Any) -> None:
    assert names_of(document) == []


@pytest.mark.parametrize("text", ["[1, 2]", "{}", "a: [", '{"a": 1}', "\x00\x01\n"])
def test_anything_but_a_document_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(FormatError):
        from_openapi(text.encode())


def test_paths_that_are_not_an_object_are_reported() -> None:
    assert [each.why for each in from_openapi(whole([1])).report.skipped] == ["paths is not an object"]


def test_a_description_has_summary_and_text_once(http: Words) -> None:
    def description(**words: str) -> str:
        (operation,) = from_openapi(http.document(words))
        return operation.spec.description

    assert description(summary="Get it.", description="Get it. And more.") == "Get it. And more."
    assert description(summary="Get it", description="More.") == "Get it\n\nMore."
    assert description(summary="Get it") == "Get it"
