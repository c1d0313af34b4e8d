"""Whole documents: a small one in detail, and that each document is imported completely."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from tests.sources.openapi.documents import Document, documents

from enfold import OperationRegistry, OperationSpec
from enfold.sources.openapi import from_openapi

DATA = Path(__file__).parent / "data"
DOCUMENTS = documents()


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def schemas_of(spec: OperationSpec) -> Iterator[dict[str, Any]]:
    yield spec.input_schema
    yield spec.output_schema
    yield from (error.schema for error in spec.error_schemas)


def assert_stands_alone(schema: dict[str, Any]) -> None:
    known = {f"#/$defs/{name}" for name in schema.get("$defs", {})}
    assert set(references(schema)) <= known


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.path.name)
def test_a_document_is_imported_completely_and_no_reference_dangles(document: Document) -> None:
    imported = from_openapi(document.path)
    found = {(operation.spec.meta["method"], operation.spec.meta["path"]) for operation in imported}
    if document.operations is not None:
        assert (len(found), imported.report.skipped) == (document.operations, [])
    for operation in imported:
        for schema in schemas_of(operation.spec):
            assert_stands_alone(schema)
    registry = OperationRegistry()
    registry.register_all(imported)
    assert len(registry) == len(imported.report.imported)
    assert str(imported.report).startswith(f"{len(imported)} imported")


@pytest.mark.parametrize("document", [*DOCUMENTS[:4], *DOCUMENTS[4::6]], ids=lambda document: document.path.name)
def test_the_schemas_of_a_document_are_json_schema(document: Document) -> None:
    checked = 0
    for operation in list(from_openapi(document.path))[:10]:
        for schema in schemas_of(operation.spec):
            jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
            checked += 1
    assert checked > 0 or document.operations == 0


# --- one document in detail


@pytest.fixture(scope="module")
def library() -> OperationRegistry:
    registry = OperationRegistry()
    registry.register_all(from_openapi(DATA / "library.yaml", namespace="library"))
    return registry


def test_a_bad_operation_is_skipped_and_named_and_the_others_are_there() -> None:
    report = from_openapi(DATA / "library.yaml").report
    assert report.imported == [
        "listBooks",
        "addBook",
        "getBook",
        "removeBook",
        "books_cover_put",
        "get_news",
    ]
    assert [(each.where, "Nowhere" in each.why) for each in report.skipped] == [("GET /broken", True)]
    assert report.to_dict()["skipped"][0]["where"] == "GET /broken"
    assert "skipped GET /broken: " in str(report)


def test_types_and_traits_follow_the_method(library: OperationRegistry) -> None:
    traits = {
        spec.name: (spec.type.value, spec.idempotent, spec.destructive) for spec in library.list(namespace="library")
    }
    assert traits == {
        "listBooks": ("query", True, False),
        "addBook": ("mutation", False, False),
        "getBook": ("query", True, False),
        "removeBook": ("mutation", True, True),
        "books_cover_put": ("mutation", True, False),
        "get_news": ("subscription", True, False),
    }


def test_an_input_has_the_documents_words_examples_and_defaults(library: OperationRegistry) -> None:
    spec = library.get_spec("library.listBooks")
    assert (spec.title, spec.description, spec.tags) == ("List the books.", "List the books.", ("books",))
    assert spec.input_schema == {
        "type": "object",
        "properties": {
            "limit": {"type": "integer", "default": 20, "description": "How many.", "deprecated": True},
            "country": {"type": "string", "enum": ["NO", "SE", "DK"], "examples": ["NO"]},
            "Accept-Language": {"type": "string"},
        },
        "additionalProperties": False,
    }


def test_read_only_properties_are_not_input_and_write_only_ones_not_output(library: OperationRegistry) -> None:
    given = library.get_spec("library.addBook").input_schema
    assert (list(given["properties"]), given["required"]) == (["Accept-Language", "title", "note", "sequel"], ["title"])
    got = library.get_spec("library.addBook").output_schema
    assert (list(got["properties"]), got["required"]) == (["id", "title", "sequel"], ["id", "title"])


def test_a_recursive_schema_is_shared_and_self_contained(library: OperationRegistry) -> None:
    one, other = (library.get_spec(f"library.{name}").output_schema for name in ("addBook", "getBook"))
    assert_stands_alone(one)
    assert one["$defs"]["Book"] is other["$defs"]["Book"]


def test_declared_failures_are_error_schemas(library: OperationRegistry) -> None:
    (error,) = library.get_spec("library.addBook").error_schemas
    assert (error.code, error.http_status, error.description) == ("EXECUTION_ERROR", 409, "A problem.")
    assert error.schema == {"type": "object", "properties": {"title": {"type": "string"}}}


def test_an_event_stream_is_described_by_the_payload_of_its_events(library: OperationRegistry) -> None:
    assert list(library.get_spec("library.get_news").output_schema["properties"]) == ["id", "title", "sequel"]


def test_an_original_name_stays_in_meta(library: OperationRegistry) -> None:
    meta = library.get_spec("library.books_cover_put").meta
    assert meta == {"method": "PUT", "path": "/books/{id}/cover", "original_name": "books/cover.put"}


def test_version_2_has_its_own_ways() -> None:
    imported = from_openapi(DATA / "shop-2.0.json")
    hashes = [hashlib.sha256(title.encode()).hexdigest()[:8] for title in ("GET /orders", "POST /orders")]
    assert imported.report.imported == [f"list_orders_{each}" for each in hashes]
    order = next(iter(imported)).spec.output_schema["$defs"]["Order"]
    assert order["properties"]["id"] == {"type": "integer", "exclusiveMinimum": 0}
