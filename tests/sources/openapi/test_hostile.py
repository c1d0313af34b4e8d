"""The hostile table, row by row: one document with everything that breaks importers, against a real server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from enfold import CallError, OperationRegistry
from enfold.sources.openapi import ImportReport, from_openapi

if TYPE_CHECKING:
    from tests.sources.openapi.conftest import RawServer, Received, Serve, Words

PNG = b"\x89PNG\r\n\x1a\n\xff"
TEXT = {"type": "string"}
LIST = {"type": "array", "items": TEXT}
FREE = {"type": "object", "additionalProperties": True}
OK = {"200": {"description": "ok", "content": {"application/json": {}}}}

UPLOAD = {"type": "object", "properties": {"file": {"type": "string", "format": "binary"}, "note": TEXT}}
ITEM = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}


def parameter(name: str, location: str, schema: Any, **written: Any) -> dict[str, Any]:
    return {"name": name, "in": location, "required": location == "path", "schema": schema, **written}


PATHS: dict[str, Any] = {
    "/search": {"query": {"operationId": "search", "requestBody": {"content": {"application/json": {"schema": ITEM}}}, "responses": OK}},
    "/events": {"get": {"operationId": "events", "responses": {"200": {"description": "", "content": {"text/event-stream": {"itemSchema": {"type": "object", "properties": {"data": {"contentSchema": ITEM}}}}}}}}},
    "/malformed": {"get": {"operationId": "malformed", "parameters": [{"in": "query"}]}},
    "/outside": {"get": {"operationId": "outside", "responses": {"200": {"description": "", "content": {"application/json": {"schema": {"$ref": "parts.yaml#/Item"}}}}}}},
    "/item": {"$ref": "parts.yaml#/PathItem"},
    "/styles/{m}/{l}/{a}/{o}": {"get": {"operationId": "styles", "responses": OK, "parameters": [
        parameter("m", "path", LIST, style="matrix"), parameter("l", "path", LIST, style="label"),
        parameter("a", "path", LIST), parameter("o", "path", FREE, explode=True)]}},
    "/query": {"get": {"operationId": "query", "responses": OK, "parameters": [
        parameter("deep", "query", FREE, style="deepObject"),
        {"name": "filter", "in": "query", "content": {"application/json": {"schema": FREE}}}]}},
    "/headers": {"get": {"operationId": "headers", "responses": OK, "parameters": [
        parameter("X-List", "header", LIST), parameter("X-Int", "header", {"type": "integer"}),
        parameter("X-Bool", "header", {"type": "boolean"}), parameter("sid", "cookie", TEXT)]}},
    "/upload": {"post": {"operationId": "upload", "responses": OK, "requestBody": {"content": {"multipart/form-data": {"schema": UPLOAD, "encoding": {"file": {"contentType": "image/png"}}}}}}},
    "/xml": {"post": {"operationId": "xml", "responses": OK, "requestBody": {"content": {"application/xml": {"schema": ITEM}}}}},
    "/patch": {"patch": {"operationId": "patch", "responses": OK, "requestBody": {"content": {"application/merge-patch+json": {"schema": ITEM}}}}},
    "/image": {"get": {"operationId": "image", "responses": {"200": {"description": "", "content": {"image/png": {}}}}}},
    "/moved": {"post": {"operationId": "moved", "responses": OK, "requestBody": {"content": {"application/json": {"schema": ITEM}}}}},
    "/mismatch": {"get": {"operationId": "mismatch", "responses": {"200": {"description": "", "content": {"application/json": {"schema": ITEM}}}}}},
    "/problem": {"get": {"operationId": "problem", "responses": OK}},
    "/busy": {"post": {"operationId": "busy", "responses": OK}},
    "/secured": {"get": {"operationId": "secured", "responses": OK, "security": [{"h": [], "q": [], "c": [], "b": []}]}},
}  # fmt: skip
SCHEMES = {
    "h": {"type": "apiKey", "in": "header", "name": "X-Key"},
    "q": {"type": "apiKey", "in": "query", "name": "key"},
    "c": {"type": "apiKey", "in": "cookie", "name": "sid"},
    "b": {"type": "http", "scheme": "bearer"},
}
PARTS = """
Item: {type: object, properties: {id: {type: integer}}}
PathItem: {get: {operationId: item, responses: {"200": {description: ok}}}}
"""


def answers(http: Words) -> Any:
    fixed = {
        "/events": http.reply(b'data: {"id": 1}\n\ndata: {"id": 2}\n\n', content_type="text/event-stream"),
        "/image": http.reply(PNG, content_type="image/png"),
        "/moved": http.reply(b"", status="307 Temporary Redirect", headers={"Location": "/target"}),
        "/mismatch": http.reply({"id": "not a number", "kept": True}),
        "/problem": http.reply({"title": "x"}, status="404 Not Found", content_type="application/problem+json"),
        "/busy": http.reply({}, status="429 Too Many Requests", headers={"Retry-After": "3"}),
    }

    def answer(received: Received) -> bytes:
        return fixed.get(received.path) or http.reply({"id": 1})

    return answer


class Hostile(msgspec.Struct):
    server: RawServer
    registry: OperationRegistry
    report: ImportReport

    async def call(self, name: str, arguments: dict[str, Any] | None = None) -> Any:
        return await self.registry.execute(name, arguments or {})

    @property
    def received(self) -> Received:
        return self.server.received[-1]


@pytest.fixture
async def hostile(serve: Serve, http: Words, tmp_path: Path) -> Any:
    server = await serve(answers(http))
    document = {
        "openapi": "3.2.0",
        "info": {"title": "Hostile", "version": "1"},
        "servers": [{"url": server.url}],
        "paths": PATHS,
        "components": {"securitySchemes": SCHEMES},
    }
    (tmp_path / "hostile.json").write_bytes(msgspec.json.encode(document))
    (tmp_path / "parts.yaml").write_text(PARTS)
    credentials = {"h": "1", "q": "2", "c": "3", "b": "4"}
    async with from_openapi(tmp_path / "hostile.json", credentials=credentials) as imported:
        registry = OperationRegistry()
        registry.register_all(imported)
        yield Hostile(server, registry, imported.report)


async def test_version_3_2_is_imported_with_its_query_method(hostile: Hostile) -> None:
    await hostile.call("search", {"id": 1})
    assert (hostile.received.method, hostile.received.body) == ("QUERY", b'{"id":1}')
    assert hostile.registry.get_spec("search").type == "query"


async def test_an_item_schema_describes_the_events_of_a_subscription(hostile: Hostile) -> None:
    assert hostile.registry.get_spec("events").output_schema == ITEM
    assert [each.data async for each in hostile.registry.subscribe("events", {})] == [{"id": 1}, {"id": 2}]


async def test_version_2_is_imported_with_types_base_path_and_collection_format(serve: Serve, http: Words) -> None:
    server = await serve(lambda _: http.reply({}))
    operation = {"parameters": [{"name": "ids", "in": "query", "type": "array", "items": {"type": "integer"}}]}
    host = server.url.removeprefix("http://")
    document = http.document(operation, version="2.0", host=host, basePath="/v1", schemes=["http"])
    async with from_openapi(document) as imported:
        registry = OperationRegistry()
        registry.register_all(imported)
        assert registry.get_spec("x").input_schema["properties"]["ids"]["items"] == {"type": "integer"}
        await registry.execute("x", {"ids": [1, 2]})
    assert server.received[0].target == "/v1/x?ids=1,2"


def test_a_reference_to_another_file_is_followed_and_a_malformed_operation_skipped(hostile: Hostile) -> None:
    assert hostile.registry.get_spec("outside").output_schema["properties"] == {"id": {"type": "integer"}}
    assert [each.where for each in hostile.report.skipped] == ["GET /malformed"]
    assert len(hostile.report.imported) == len(PATHS) - 1


async def test_a_path_item_in_another_file_is_imported(hostile: Hostile) -> None:
    await hostile.call("item")
    assert hostile.received.target == "/item"


async def test_path_styles_follow_the_tables(hostile: Hostile) -> None:
    await hostile.call("styles", {"m": ["a", "b"], "l": ["a", "b"], "a": ["a", "b"], "o": {"x": 1, "y": True}})
    assert hostile.received.target == "/styles/;m=a,b/.a,b/a,b/x=1,y=true"


async def test_deep_objects_and_json_in_a_query_are_written_right(hostile: Hostile) -> None:
    await hostile.call("query", {"deep": {"a": {"b": 1}}, "filter": {"c": [True]}})
    assert hostile.received.query == "deep%5Ba%5D%5Bb%5D=1&filter=%7B%22c%22%3A%5Btrue%5D%7D"


async def test_header_lists_numbers_booleans_and_cookies_are_text(hostile: Hostile) -> None:
    await hostile.call("headers", {"X-List": ["a", "b"], "X-Int": 5, "X-Bool": False, "sid": "s"})
    found = [hostile.received.header(name) for name in ("x-list", "x-int", "x-bool", "cookie")]
    assert found == ["a,b", "5", "false", "sid=s"]


async def test_a_file_is_a_part_with_name_and_type(hostile: Hostile) -> None:
    await hostile.call("upload", {"file": {"data": PNG, "filename": "a.png"}, "note": "hi"})
    body = hostile.received.body
    assert b'name="file"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n' + PNG in body
    assert b'name="note"\r\n\r\nhi\r\n' in body


async def test_xml_and_other_json_go_under_their_declared_type(hostile: Hostile) -> None:
    await hostile.call("xml", {"body": "<item id='1'/>"})
    assert (hostile.received.header("content-type"), hostile.received.body) == ("application/xml", b"<item id='1'/>")
    await hostile.call("patch", {"id": 2})
    assert hostile.received.header("content-type") == "application/merge-patch+json"


async def test_an_image_is_bytes(hostile: Hostile) -> None:
    assert (await hostile.call("image")).data == PNG


async def test_a_307_is_followed_with_method_and_body(hostile: Hostile) -> None:
    await hostile.call("moved", {"id": 3})
    assert (hostile.received.method, hostile.received.path, hostile.received.body) == ("POST", "/target", b'{"id":3}')


async def test_a_response_that_does_not_fit_is_kept_with_a_warning(hostile: Hostile) -> None:
    envelope = await hostile.call("mismatch")
    assert envelope.data["id"] == "not a number"
    assert "/id" in [warning.path for warning in envelope.warnings]


@pytest.mark.parametrize(
    ("name", "code", "facts"),
    [
        ("problem", "EXECUTION_ERROR", {"status": 404, "body": {"title": "x"}}),
        ("busy", "RESOURCE_EXHAUSTED", {"status": 429, "retry_after": 3.0}),
    ],
)
async def test_a_failure_keeps_status_body_and_wait(
    hostile: Hostile, name: str, code: str, facts: dict[str, Any]
) -> None:
    with pytest.raises(CallError) as caught:
        await hostile.call(name)
    assert caught.value.code == code
    assert caught.value.details.items() >= facts.items()


async def test_every_kind_of_credential_is_sent_where_it_belongs(hostile: Hostile) -> None:
    await hostile.call("secured")
    received = hostile.received
    found = [received.header("x-key"), received.query, received.header("cookie"), received.header("authorization")]
    assert found == ["1", "key=2", "sid=3", "Bearer 4"]
