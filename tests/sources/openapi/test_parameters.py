"""What parameters put on the wire, read from a real socket."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.sources.openapi import styles

from enfold import CallError

if TYPE_CHECKING:
    from tests.sources.openapi.conftest import Connect, Received, Serve, Words

SHARED = Path(__file__).parents[4] / "shared" / "data" / "openapi" / "param-style-vectors.json"
VECTORS: list[dict[str, Any]] = json.loads(SHARED.read_text())["vectors"] if SHARED.exists() else []

ARRAY = {"type": "array", "items": {"type": "string"}}
OBJECT = {"type": "object", "additionalProperties": True}
COLORS = ["blue", "black", "brown"]
RGB = {"R": 100, "G": 200, "B": 150}

# location, how it is written, value, what the wire has
TABLE: list[tuple[str, dict[str, Any], Any, str]] = [
    ("path", {"style": "matrix"}, "", ";color"),
    ("path", {"style": "matrix"}, COLORS, ";color=blue,black,brown"),
    ("path", {"style": "matrix", "explode": True}, RGB, ";R=100;G=200;B=150"),
    ("path", {"style": "label"}, "", "."),
    ("path", {"style": "label"}, COLORS, ".blue,black,brown"),
    ("path", {"style": "label", "explode": True}, COLORS, ".blue.black.brown"),
    ("path", {"style": "label", "explode": True}, RGB, ".R=100.G=200.B=150"),
    ("path", {"style": "simple"}, "a b/c", "a%20b%2Fc"),
    ("path", {"style": "simple", "explode": True}, COLORS, "blue,black,brown"),
    ("path", {"allowReserved": True}, "a:b@c/d", "a:b@c%2Fd"),
    ("path", {}, 2.0, "2"),
    ("path", {}, -0.5, "-0.5"),
    ("query", {}, "", "color="),
    ("query", {"explode": False}, RGB, "color=R,100,G,200,B,150"),
    ("query", {"explode": False}, ["a,b", "c"], "color=a%2Cb,c"),
    ("query", {"style": "spaceDelimited"}, COLORS, "color=blue%20black%20brown"),
    ("query", {"style": "spaceDelimited", "explode": True}, COLORS, "color=blue&color=black&color=brown"),
    ("query", {"style": "pipeDelimited", "explode": True}, COLORS, "color=blue&color=black&color=brown"),
    ("query", {"style": "deepObject"}, {"a": {"b": 1}, "c": True}, "color%5Ba%5D%5Bb%5D=1&color%5Bc%5D=true"),
    ("query", {"style": "deepObject"}, {"a": [1, {"b": 2}]}, "color%5Ba%5D%5B0%5D=1&color%5Ba%5D%5B1%5D%5Bb%5D=2"),
    ("query", {}, [1, None, False], "color=1&color=false"),
    ("query", {}, [], ""),
    ("query", {"allowEmptyValue": True}, [], "color="),
    ("query", {}, {"a": {"b": [1]}}, "a=%7B%22b%22%3A%5B1%5D%7D"),
    ("query", {"allowReserved": True}, "a/b?c=d&e%20f#g", "color=a/b?c=d%26e%20f%23g"),
    ("query", {"allowReserved": True}, "1+1;admin=1", "color=1%2B1;admin=1"),
    ("query", {"allowReserved": True}, ["a&b", "c#d"], "color=a%26b&color=c%23d"),
    ("query", {"allowReserved": True, "explode": False}, ["a&b", "c"], "color=a%26b,c"),
    ("query", {"allowReserved": True}, {"a=1&b": "c&d=e"}, "a%3D1%26b=c%26d=e"),
    ("query", {"allowReserved": True, "style": "deepObject"}, {"a": "b&c"}, "color%5Ba%5D=b%26c"),
    ("query", {"allowReserved": True, "content": {"text/plain": {}}}, "a&b#c", "color=a%26b%23c"),
    ("cookie", {"allowReserved": True}, "a/b&c;d", "color=a/b%26c%3Bd"),
    ("query", {"content": {"application/json": {}}}, {"a": [1, None]}, "color=%7B%22a%22%3A%5B1%2Cnull%5D%7D"),
    ("header", {}, COLORS, "blue,black,brown"),
    ("header", {"explode": True}, RGB, "R=100,G=200,B=150"),
    ("header", {}, 1.5, "1.5"),
    ("cookie", {}, COLORS, "color=blue&color=black&color=brown"),
    ("cookie", {}, "a b;c", "color=a%20b%3Bc"),
    ("cookie", {"explode": False}, COLORS, "color=blue,black,brown"),
    ("cookie", {"style": "cookie"}, "a b", "color=a b"),
    ("cookie", {"style": "cookie"}, COLORS, "color=blue; color=black; color=brown"),
]  # fmt: skip

OLD_TABLE: list[tuple[str, dict[str, Any], str]] = [
    ("query", {"collectionFormat": "pipes"}, "color=blue%7Cblack%7Cbrown"),
    ("query", {"collectionFormat": "multi"}, "color=blue&color=black&color=brown"),
    ("query", {}, "color=blue,black,brown"),
    ("path", {"collectionFormat": "pipes"}, "blue%7Cblack%7Cbrown"),
    ("path", {}, "blue,black,brown"),
    ("query", {"collectionFormat": "csv"}, "color=blue,black,brown"),
    ("query", {"collectionFormat": "ssv"}, "color=blue%20black%20brown"),
    ("query", {"collectionFormat": "tsv"}, "color=blue%09black%09brown"),
    ("header", {"collectionFormat": "tsv"}, "blue\tblack\tbrown"),
]


def on_the_wire(received: Received, location: str) -> str | None:
    parts = {"path": received.path.removeprefix("/x/"), "query": received.query}
    return parts.get(location) if location in parts else received.header("cookie" if location == "cookie" else "color")


@pytest.mark.parametrize(("location", "written", "value", "expected"), TABLE, ids=str)
async def test_a_parameter_is_written_by_the_tables_of_the_specification(
    serve: Serve, connect: Connect, http: Words, location: str, written: dict[str, Any], value: Any, expected: str
) -> None:
    server = await serve(lambda _: http.reply({}))
    parameter = {"name": "color", "in": location, "required": location == "path", "schema": {}, **written}
    path = "/x/{color}" if location == "path" else "/x"
    registry = connect(http.document({"parameters": [parameter]}, path=path), base_url=server.url)
    await registry.execute("x", {"color": value})
    assert on_the_wire(server.received[0], location) == expected


@pytest.mark.parametrize(("location", "written", "expected"), OLD_TABLE, ids=str)
async def test_a_list_of_version_2_is_written_by_its_collection_format(
    serve: Serve, connect: Connect, http: Words, location: str, written: dict[str, Any], expected: str
) -> None:
    server = await serve(lambda _: http.reply({}))
    parameter = {"name": "color", "in": location, "required": location == "path", **ARRAY, **written}
    path = "/x/{color}" if location == "path" else "/x"
    registry = connect(http.document({"parameters": [parameter]}, path=path, version="2.0"), base_url=server.url)
    await registry.execute("x", {"color": COLORS})
    assert on_the_wire(server.received[0], location) == expected


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("query", "color=1,2%7C3%7C"),
        ("path", "1,2%7C3%7C"),
        ("header", "1,2|3|"),
        ("formData", "color=1%2C2%7C3%7C"),
    ],
)
async def test_lists_in_a_list_of_version_2_are_written_by_their_own_collection_format(
    serve: Serve, connect: Connect, http: Words, location: str, expected: str
) -> None:
    server = await serve(lambda _: http.reply({}))
    inner = {"type": "array", "collectionFormat": "csv", "items": {"type": "integer"}}
    rows = {"type": "array", "collectionFormat": "pipes", "items": inner}
    parameter = {"name": "color", "in": location, "required": True, **rows}
    path, method = ("/x/{color}" if location == "path" else "/x"), ("post" if location == "formData" else "get")
    document = http.document({"parameters": [parameter]}, path=path, method=method, version="2.0")
    await connect(document, base_url=server.url).execute("x", {"color": [[1, 2], [3], []]})
    [received] = server.received
    written = received.body.decode() if location == "formData" else on_the_wire(received, location)
    assert written is not None
    assert written.replace("%2C", ",") == expected.replace("%2C", ",")


@pytest.mark.parametrize("row", list(styles.rows()), ids=lambda row: row.id)
async def test_every_style_is_written_by_the_rules_of_the_specification(
    serve: Serve, connect: Connect, http: Words, row: styles.Row
) -> None:
    server = await serve(lambda _: http.reply({}))
    written = {"style": row.style, "explode": row.explode, "required": row.location == "path", "schema": {}}
    path = f"/x/{{{styles.NAME}}}" if row.location == "path" else "/x"
    document = http.document({"parameters": [{"name": styles.NAME, "in": row.location, **written}]}, path=path)
    await connect(document, base_url=server.url).execute("x", {styles.NAME: row.value})
    assert on_the_wire(server.received[0], row.location) == row.expected


@pytest.mark.parametrize(
    ("name", "media_type", "value", "expected"),
    [
        ("q", "application/x-www-form-urlencoded", {"a": "x + y", "b": True}, "a=x+%2B+y&b=true"),
        ("q", "application/json", {"n": [1, 2], "f": None}, "%7B%22n%22%3A%5B1%2C2%5D%2C%22f%22%3Anull%7D"),
        ("q", "application/jsonpath", "$.a[1:2]", "%24.a%5B1%3A2%5D"),
    ],
)
async def test_a_parameter_can_be_the_whole_query_string(
    serve: Serve, connect: Connect, http: Words, name: str, media_type: str, value: Any, expected: str
) -> None:
    server = await serve(lambda _: http.reply({}))
    parameter = {"name": name, "in": "querystring", "content": {media_type: {"schema": {}}}}
    registry = connect(http.document({"parameters": [parameter]}, version="3.2.0"), base_url=server.url)
    await registry.execute("x", {name: value})
    assert server.received[0].query == expected


@pytest.mark.parametrize(
    ("name", "expected"), [("filter[name]", "filter%5Bname%5D=x"), ("❤️", "%E2%9D%A4%EF%B8%8F=x"), ("a b", "a%20b=x")]
)
async def test_the_name_of_a_query_parameter_is_percent_encoded(
    serve: Serve, connect: Connect, http: Words, name: str, expected: str
) -> None:
    server = await serve(lambda _: http.reply({}))
    parameter = {"name": name, "in": "query", "schema": {"type": "string"}}
    await connect(http.document({"parameters": [parameter]}), base_url=server.url).execute("x", {name: "x"})
    assert server.received[0].query == expected


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["id"])
async def test_the_published_vectors_hold_on_the_wire(
    serve: Serve, connect: Connect, http: Words, vector: dict[str, Any]
) -> None:
    server = await serve(lambda _: http.reply({}))
    operation = {"parameters": vector["parameters"]}
    document = http.document(operation, path=vector["path"], version=vector["openapi"])
    arguments = {_argument(name): value for name, value in vector["args"].items()}
    await connect(document, base_url=server.url).execute("x", arguments)
    received, expected = server.received[0], vector["expect"]
    assert received.path == expected.get("path", received.path)
    assert received.query == expected.get("query", "")
    assert received.header("cookie") == expected.get("cookie")
    assert {name: received.header(name) for name in expected.get("headers", {})} == expected.get("headers", {})


def _argument(name: str) -> str:
    location, colon, rest = name.partition(":")
    return f"{rest}_{location}" if colon else name


@pytest.mark.parametrize(
    ("path", "arguments", "target"),
    [
        ("/a/{b}:{verb}", {"b": "1", "verb": "go"}, "/a/1:go"),
        ("/a?kind=x", {}, "/a?kind=x"),
        ("/a?kind={b}", {"b": "1&2"}, "/a?kind=1%262"),
        ("/a#second", {}, "/a"),
        ("/a/{+rest}", {"rest": "b/c d"}, "/a/b/c%20d"),
        ("/ä b", {}, "/%C3%A4%20b"),
        ("a", {}, "/a"),
    ],
)
async def test_an_undeclared_placeholder_is_a_required_argument(
    serve: Serve, connect: Connect, http: Words, path: str, arguments: dict[str, str], target: str
) -> None:
    server = await serve(lambda _: http.reply({}))
    registry = connect(http.document({}, path=path), base_url=server.url)
    assert registry.get_spec("x").input_schema.get("required", []) == list(arguments)
    await registry.execute("x", arguments)
    assert server.received[0].target == target


async def test_the_base_path_and_a_query_that_stands_in_the_path_come_first(
    serve: Serve, connect: Connect, http: Words
) -> None:
    server = await serve(lambda _: http.reply({}))
    operation = {"parameters": [{"name": "q", "in": "query", "schema": {"type": "integer"}}]}
    registry = connect(http.document(operation, path="/a?b=c"), base_url=f"{server.url}/base/")
    await registry.execute("x", {"q": 1})
    assert server.received[0].target == "/base/a?b=c&q=1"


@pytest.mark.parametrize("path", ["/a", "/a?b=c"])
@pytest.mark.parametrize("servers", [{}, {"servers": [{"url": "/base"}]}], ids=["of the document", "of the operation"])
async def test_a_query_of_the_base_url_is_sent_with_every_request_and_is_not_an_argument(
    serve: Serve, connect: Connect, http: Words, path: str, servers: dict[str, Any]
) -> None:
    server = await serve(lambda _: http.reply({}))
    names = ("q", "api-version")
    listed = [{"name": name, "in": "query", "required": True, "schema": {"type": "string"}} for name in names]
    document = http.document({"parameters": listed, **servers}, path=path)
    registry = connect(document, base_url=f"{server.url}/base/?api-version=2026-01-01&tenant=7%2B")
    assert list(registry.get_spec("x").input_schema["properties"]) == ["q"]
    await registry.execute("x", {"q": "1"})
    own = "b=c&" if "?" in path else ""
    assert server.received[0].target == f"/base/a?api-version=2026-01-01&tenant=7%2B&{own}q=1"


async def test_a_key_in_the_query_of_the_base_url_is_hidden_where_the_service_repeats_it(
    serve: Serve, connect: Connect, http: Words
) -> None:
    server = await serve(lambda received: http.reply({"next": received.target}))
    registry = connect(http.document({}), base_url=f"{server.url}?api_key=s3cret-of-ann")
    assert (await registry.execute("x", {})).data == {"next": "/x?api_key=[hidden]"}


@pytest.mark.parametrize(
    ("parameter", "value", "expected"),
    [
        ({"in": "header"}, "a\r\nX-Evil: 1", "text without control characters"),
        ({"in": "header"}, "a\x7f", "text without control characters"),
        ({"in": "cookie", "style": "cookie"}, "a; evil=1", "text without control characters and semicolons"),
        ({"in": "cookie", "style": "cookie"}, "a;evil=1", "text without control characters and semicolons"),
        ({"in": "cookie", "style": "cookie"}, "a\nb", "text without control characters and semicolons"),
    ],
    ids=["header", "header-delete", "cookie", "cookie-tight", "cookie-line"],
)
@pytest.mark.parametrize("beside", [[], [{"name": "h", "in": "query"}]], ids=["alone", "renamed"])
async def test_a_value_that_would_end_its_header_is_refused(
    serve: Serve,
    connect: Connect,
    http: Words,
    parameter: dict[str, str],
    beside: list[dict[str, str]],
    value: str,
    expected: str,
) -> None:
    server = await serve(lambda _: http.reply({}))
    parameters = [{**each, "schema": {"type": "string"}} for each in (*beside, {"name": "h", **parameter})]
    registry = connect(http.document({"parameters": parameters}), base_url=server.url)
    argument = f"h_{parameter['in']}" if beside else "h"
    with pytest.raises(CallError) as caught:
        await registry.execute("x", {argument: value})
    assert (caught.value.code, str(caught.value)) == ("VALIDATION_ERROR", f'Argument "{argument}" must be {expected}')
    assert caught.value.details == {"argument": argument, "reason": "constraint", "expected": expected}
    assert server.received == []


async def test_headers_that_steer_the_request_are_not_arguments(connect: Connect, http: Words) -> None:
    names = ["Accept", "Content-Type", "Authorization", "Host", "Content-Length", "Transfer-Encoding", "X-A"]
    parameters = [{"name": name, "in": "header", "schema": {"type": "string"}} for name in names]
    registry = connect(http.document({"parameters": parameters}), base_url="http://127.0.0.1:9")
    assert list(registry.get_spec("x").input_schema["properties"]) == ["X-A"]
