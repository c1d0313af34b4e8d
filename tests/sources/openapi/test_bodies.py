"""Request bodies of every declared type, as they come over a real socket."""

from __future__ import annotations

import base64
from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import HTTP
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from enfold import CallError
from enfold.sources.openapi import from_openapi

if TYPE_CHECKING:
    from tests.sources.openapi.conftest import Connect, RawServer, Received, Serve, Words

PET = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["name"],
}


def content(**types: Any) -> dict[str, Any]:
    """A request body; `application_json=schema` stands for the type with its slash."""
    return {"content": {name.replace("_", "/", 1): {"schema": schema} for name, schema in types.items()}}


def parts_of(received: Received) -> dict[str, EmailMessage]:
    """The parts of a multipart body, read by the standard library."""
    head = f"Content-Type: {received.header('content-type')}\r\n\r\n".encode()
    message = BytesParser(EmailMessage, policy=HTTP).parsebytes(head + received.body)
    found = {}
    for part in message.iter_parts():
        assert isinstance(part, EmailMessage)
        found[str(part.get_param("name", header="content-disposition"))] = part
    return found


@pytest.fixture
async def server(serve: Serve, http: Words) -> RawServer:
    return await serve(lambda _: http.reply({}))


async def send(server: RawServer, connect: Connect, http: Words, body: Any, arguments: Any, **more: Any) -> Received:
    document = http.document({"requestBody": body}, method="post", **more)
    await connect(document, base_url=server.url).execute("x", arguments)
    return server.received[-1]


async def test_the_fields_of_a_plain_object_are_arguments(server: RawServer, connect: Connect, http: Words) -> None:
    received = await send(server, connect, http, http.json_body(PET), {"name": "Rex", "tags": ["a"]})
    assert received.header("content-type") == "application/json"
    assert msgspec.json.decode(received.body) == {"name": "Rex", "tags": ["a"]}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "array", "items": {"type": "integer"}}, [1, 2]),
        ({"type": "string"}, "text"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, {"a": 1}),
        ({"oneOf": [PET, {"type": "integer"}]}, 5),
        ({}, None),
    ],
    ids=["array", "string", "map", "choice", "anything"],
)
async def test_a_body_that_is_not_a_plain_object_is_one_argument(
    server: RawServer, connect: Connect, http: Words, schema: Any, value: Any
) -> None:
    received = await send(server, connect, http, http.json_body(schema), {"body": value})
    assert msgspec.json.decode(received.body) == value


@pytest.mark.parametrize(("required", "body", "type"), [(True, b"{}", "application/json"), (False, b"", None)])
async def test_a_required_body_without_fields_is_an_empty_object_and_an_optional_one_is_none(
    server: RawServer, connect: Connect, http: Words, required: bool, body: bytes, type: str | None
) -> None:
    schema = {"type": "object", "properties": {"note": {"type": "string"}}}
    received = await send(server, connect, http, http.json_body(schema, required=required), {})
    assert (received.body, received.header("content-type")) == (body, type)


async def test_an_optional_body_that_is_begun_needs_its_required_fields(
    server: RawServer, connect: Connect, http: Words
) -> None:
    with pytest.raises(CallError) as caught:
        await send(server, connect, http, http.json_body(PET, required=False), {"tags": []})
    assert caught.value.details == {"argument": "name", "reason": "missing", "expected": None}


@pytest.mark.parametrize("type", ["application/merge-patch+json", "application/vnd.api+json; charset=utf-8"])
async def test_other_json_types_are_sent_under_their_own_name(
    server: RawServer, connect: Connect, http: Words, type: str
) -> None:
    received = await send(server, connect, http, {"required": True, "content": {type: {"schema": PET}}}, {"name": "a"})
    assert (received.header("content-type"), received.body) == (type, b'{"name":"a"}')


async def test_xml_and_text_are_sent_as_given(server: RawServer, connect: Connect, http: Words) -> None:
    received = await send(server, connect, http, content(application_xml=PET), {"body": "<a>ü</a>"})
    assert (received.header("content-type"), received.body) == ("application/xml", "<a>ü</a>".encode())


async def test_a_yaml_body_is_written_as_json_which_is_yaml(server: RawServer, connect: Connect, http: Words) -> None:
    received = await send(server, connect, http, content(application_yaml=PET), {"name": "a"})
    assert (received.header("content-type"), received.body) == ("application/yaml", b'{"name":"a"}')


@pytest.mark.parametrize("given", [b"\x00\xff", base64.b64encode(b"\x00\xff").decode(), {"data": b"\x00\xff"}], ids=str)
async def test_binary_content_comes_from_bytes_or_base64(
    server: RawServer, connect: Connect, http: Words, given: Any
) -> None:
    body = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
    received = await send(server, connect, http, body, {"body": given})
    assert (received.header("content-type"), received.body) == ("application/octet-stream", b"\x00\xff")


@pytest.mark.parametrize("given", ["not base64!", {"data": "é"}, "YQ"], ids=str)
async def test_a_file_that_is_not_base64_is_refused_by_name(
    server: RawServer, connect: Connect, http: Words, given: Any
) -> None:
    file = {"type": "string", "format": "binary"}
    alone = {"content": {"application/octet-stream": {"schema": file}}}
    in_form = {"content": {"multipart/form-data": {"schema": {"type": "object", "properties": {"photo": file}}}}}
    for body, argument in ((alone, "body"), (in_form, "photo")):
        with pytest.raises(CallError) as refused:
            await send(server, connect, http, body, {argument: given})
        assert (refused.value.code, refused.value.details["argument"]) == ("VALIDATION_ERROR", argument)


async def test_json_lines_are_written_from_a_list(server: RawServer, connect: Connect, http: Words) -> None:
    body = {"content": {"application/jsonl": {"itemSchema": {"type": "object"}}}}
    received = await send(server, connect, http, body, {"body": [{"a": 1}, {"a": 2}]})
    assert received.body == b'{"a":1}\n{"a":2}\n'


# --- forms


FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "count": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "meta": {"type": "object", "additionalProperties": True},
    },
}


@pytest.mark.parametrize(
    ("encoding", "arguments", "expected"),
    [
        ({}, {"name": "a b&c", "count": 2}, b"name=a+b%26c&count=2"),
        ({}, {"tags": ["a", "b"]}, b"tags=a&tags=b"),
        ({}, {"meta": {"k": 1}}, b"meta=%7B%22k%22%3A1%7D"),
        ({"tags": {"style": "form", "explode": False}}, {"tags": ["a", "b"]}, b"tags=a,b"),
        ({"meta": {"style": "deepObject"}}, {"meta": {"k": {"l": 1}}}, b"meta%5Bk%5D%5Bl%5D=1"),
    ],
    ids=["text", "list", "object", "joined", "deep"],
)
async def test_a_form_is_encoded_as_its_fields_say(
    server: RawServer, connect: Connect, http: Words, encoding: Any, arguments: Any, expected: bytes
) -> None:
    body = {"content": {"application/x-www-form-urlencoded": {"schema": FORM, "encoding": encoding}}}
    received = await send(server, connect, http, body, arguments)
    assert received.body == expected
    assert received.header("content-type") == "application/x-www-form-urlencoded"


async def test_form_data_of_version_2_is_one_form(server: RawServer, connect: Connect, http: Words) -> None:
    parameters = [
        {"name": "a", "in": "formData", "type": "string", "required": True},
        {"name": "b", "in": "formData", "type": "array", "items": {"type": "string"}},
    ]
    document = http.document({"parameters": parameters}, method="post", version="2.0")
    await connect(document, base_url=server.url).execute("x", {"a": "1", "b": ["x", "y"]})
    assert server.received[0].body == b"a=1&b=x,y"


UPLOAD = {
    "type": "object",
    "properties": {
        "note": {"type": "string"},
        "info": {"type": "object", "properties": {"a": {"type": "integer"}}},
        "photo": {"type": "string", "format": "binary"},
        "more": {"type": "array", "items": {"type": "string", "format": "binary"}},
    },
    "required": ["photo"],
}


@pytest.mark.parametrize("kind", ["bytes", "path", "base64", "object"])
async def test_a_file_is_a_real_part_with_name_and_type(
    server: RawServer, connect: Connect, http: Words, tmp_path: Path, kind: str
) -> None:
    file = tmp_path / "cat.png"
    file.write_bytes(b"\x89PNG")
    given: dict[str, Any] = {
        "bytes": b"\x89PNG",
        "path": file,
        "base64": base64.b64encode(b"\x89PNG").decode(),
        "object": {"data": base64.b64encode(b"\x89PNG").decode(), "filename": "cat.png", "content_type": "image/x"},
    }
    media = {"schema": UPLOAD, "encoding": {"photo": {"contentType": "image/png, image/jpeg"}}}
    body = {"required": True, "content": {"multipart/form-data": media}}
    received = await send(server, connect, http, body, {"photo": given[kind], "note": "hi", "info": {"a": 1}})
    parts = parts_of(received)
    assert parts["photo"].get_payload(decode=True) == b"\x89PNG"
    assert parts["photo"].get_filename() == ("photo" if kind in ("bytes", "base64") else "cat.png")
    assert parts["photo"].get_content_type() == ("image/x" if kind == "object" else "image/png")
    assert (parts["note"].get_payload(), parts["note"].get_filename()) == ("hi", None)
    assert (parts["info"].get_content_type(), parts["info"].get_payload()) == ("application/json", '{"a":1}')


async def test_each_file_of_a_list_is_a_part_and_no_name_can_break_out_of_its_header(
    server: RawServer, connect: Connect, http: Words
) -> None:
    body = {"content": {"multipart/form-data": {"schema": UPLOAD}}}
    files = [{"data": b"1", "filename": 'a"\r\nX-Evil: 1'}, b"2"]
    received = await send(server, connect, http, body, {"photo": b"0", "more": files})
    assert received.body.count(b'name="more"; filename=') == 2
    assert b'filename="a%22%0D%0AX-Evil: 1"' in received.body


async def test_a_file_of_version_2_makes_the_form_multipart(server: RawServer, connect: Connect, http: Words) -> None:
    parameters = [{"name": "f", "in": "formData", "type": "file", "required": True}]
    document = http.document({"parameters": parameters}, method="post", version="2.0")
    await connect(document, base_url=server.url).execute("x", {"f": b"data"})
    assert parts_of(server.received[0])["f"].get_payload(decode=True) == b"data"


async def test_text_is_never_taken_for_a_path_of_this_machine(
    server: RawServer, connect: Connect, http: Words, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hidden")
    body = {"content": {"multipart/form-data": {"schema": UPLOAD}}}
    with pytest.raises(CallError, match="base64"):
        await send(server, connect, http, body, {"photo": str(secret)})
    assert server.received == []


# --- several types


async def test_json_is_preferred_and_another_media_type_can_be_selected(
    server: RawServer, connect: Connect, http: Words
) -> None:
    body = {"required": True, **content(**{"application_x-www-form-urlencoded": PET, "application_json": PET})}
    assert (await send(server, connect, http, body, {"name": "a"})).body == b'{"name":"a"}'
    asked = {"name": "a", "content_type": "application/x-www-form-urlencoded"}
    assert (await send(server, connect, http, body, asked)).body == b"name=a"


async def test_the_argument_decides_between_fields_and_raw_content(
    server: RawServer, connect: Connect, http: Words
) -> None:
    body = {"required": True, **content(application_json=PET, text_csv={"type": "string"})}
    assert (await send(server, connect, http, body, {"name": "a"})).header("content-type") == "application/json"
    assert (await send(server, connect, http, body, {"body": "a,b"})).header("content-type") == "text/csv"


async def test_an_object_that_may_be_json_is_not_asked_for_as_xml(
    server: RawServer, connect: Connect, http: Words
) -> None:
    body = {"required": True, **content(application_xml=PET, application_json=PET)}
    registry = connect(http.document({"requestBody": body}, method="post"), base_url=server.url)
    assert list(registry.get_spec("x").input_schema["properties"]) == ["name", "tags"]


async def test_a_file_chooses_the_type_that_has_files(server: RawServer, connect: Connect, http: Words) -> None:
    body = {"required": True, **content(**{"application_json": UPLOAD, "multipart_form-data": UPLOAD})}
    received = await send(server, connect, http, body, {"photo": b"1"})
    assert str(received.header("content-type")).startswith("multipart/form-data; boundary=")


async def test_undeclared_fields_are_sent_if_the_document_allows_them(
    server: RawServer, connect: Connect, http: Words
) -> None:
    schema = {**PET, "additionalProperties": {"type": "integer"}}
    received = await send(server, connect, http, http.json_body(schema), {"name": "a", "age": 3})
    assert msgspec.json.decode(received.body) == {"name": "a", "age": 3}
    with pytest.raises(CallError, match="Unknown argument"):
        await send(server, connect, http, http.json_body(PET), {"name": "a", "age": 3})


# --- media ranges

PNG = b"\x89PNG\r\n\x1a\n\x00"
PNG_TEXT = base64.b64encode(PNG).decode()
BINARY = {"type": "string", "format": "binary"}


@pytest.mark.parametrize(
    ("declared", "schema", "value", "sent", "content_type"),
    [
        ("image/*", BINARY, PNG, PNG, "image/png"),
        ("image/*", BINARY, PNG_TEXT, PNG, "image/png"),
        ("image/*", {}, PNG_TEXT, PNG, "image/png"),
        ("image/*", BINARY, b"\xff\xd8\xff\xe0", b"\xff\xd8\xff\xe0", "image/jpeg"),
        ("image/*", BINARY, b"??", b"??", "image/png"),
        ("image/*", BINARY, {"data": PNG_TEXT}, PNG, "image/png"),
        ("image/*", BINARY, {"data": PNG_TEXT, "filename": "a.gif"}, PNG, "image/gif"),
        ("image/*", BINARY, {"data": PNG_TEXT, "content_type": "image/tiff"}, PNG, "image/tiff"),
        ("*/*", BINARY, PNG, PNG, "image/png"),
        ("*/*", BINARY, b"??", b"??", "application/octet-stream"),
        ("*/*", BINARY, base64.b64encode(b"??").decode(), b"??", "application/octet-stream"),
        ("*/*", BINARY, {"data": PNG_TEXT, "content_type": "a/b"}, PNG, "a/b"),
        ("*/*", None, PNG, PNG, "image/png"),
        ("*/*", None, "words", b"words", "text/plain; charset=utf-8"),
        ("*/*", None, {"a": 1}, b'{"a":1}', "application/json"),
        ("*/*", {"type": "object"}, {"a": 1}, b'{"a":1}', "application/json"),
        ("*/*", {"type": "string"}, "d29yZHM=", b"d29yZHM=", "text/plain; charset=utf-8"),
        ("text/*", {"type": "string"}, "words", b"words", "text/plain; charset=utf-8"),
        ("application/*", BINARY, b"%PDF-1", b"%PDF-1", "application/pdf"),
        ("application/*", BINARY, b"??", b"??", "application/octet-stream"),
        ("audio/*", BINARY, b"??", b"??", "audio/mpeg"),
    ],
    ids=str,
)
async def test_a_body_under_a_media_range_has_its_own_type_or_the_plainest(
    serve: Serve, connect: Connect, http: Words, declared: str, schema: Any, value: Any, sent: bytes, content_type: str
) -> None:
    server = await serve(lambda _: http.reply({}))
    kind = {} if schema is None else {"schema": schema}
    document = http.document({"requestBody": {"required": True, "content": {declared: kind}}}, method="post")
    await connect(document, base_url=server.url).execute("x", {"body": value})
    received = server.received[0]
    assert (received.body, received.header("content-type")) == (sent, content_type)


@pytest.mark.parametrize("value", [PNG, PNG_TEXT, {"data": PNG_TEXT, "content_type": "image/png"}], ids=str)
async def test_the_callers_media_type_is_sent_for_a_range(
    serve: Serve, connect: Connect, http: Words, value: Any
) -> None:
    server = await serve(lambda _: http.reply({}))
    document = http.document({"requestBody": {"content": {"image/*": {"schema": BINARY}}}}, method="post")
    await connect(document, base_url=server.url).execute("x", {"body": value, "content_type": "image/webp"})
    assert (server.received[0].body, server.received[0].header("content-type")) == (PNG, "image/webp")


@pytest.mark.parametrize(
    ("said", "given", "content_type"),
    [
        ("image/*", {"data": PNG_TEXT, "filename": "a.gif"}, "image/gif"),
        ("image/*", {"data": PNG_TEXT}, "image/png"),
        ("image/jpeg, image/gif", {"data": PNG_TEXT, "filename": "a.gif"}, "image/gif"),
        ("image/jpeg, image/gif", {"data": PNG_TEXT}, "image/jpeg"),
        ("image/*", {"data": PNG_TEXT, "content_type": "image/tiff"}, "image/tiff"),
    ],
    ids=str,
)
async def test_a_part_under_a_media_range_has_a_type_of_the_range(
    serve: Serve, connect: Connect, http: Words, said: str, given: Any, content_type: str
) -> None:
    server = await serve(lambda _: http.reply({}))
    kind = {"schema": {"type": "object", "properties": {"f": BINARY}}, "encoding": {"f": {"contentType": said}}}
    document = http.document({"requestBody": {"content": {"multipart/form-data": kind}}}, method="post")
    await connect(document, base_url=server.url).execute("x", {"f": given})
    assert f"Content-Type: {content_type}\r\n".encode() in server.received[0].body


@pytest.mark.parametrize(
    ("schema", "encoding", "given", "expected"),
    [
        ({"contentMediaType": "image/png"}, {}, PNG_TEXT, ("image/png", PNG)),
        ({"type": "string", "contentMediaType": "image/png"}, {}, {"data": PNG_TEXT}, ("image/png", PNG)),
        ({"contentMediaType": "image/png"}, {"contentType": "image/gif"}, PNG_TEXT, ("image/gif", PNG)),
        ({"contentMediaType": "image/png"}, {}, {"data": PNG_TEXT, "content_type": "image/x"}, ("image/x", PNG)),
        (
            {"contentMediaType": "image/png", "contentEncoding": "base64"},
            {},
            PNG_TEXT,
            ("image/png", PNG_TEXT.encode()),
        ),
        ({"type": "array", "items": {"contentMediaType": "image/png"}}, {}, [PNG_TEXT], ("image/png", PNG)),
        ({"$ref": "#/components/schemas/Icon"}, {}, PNG_TEXT, ("image/svg+xml", PNG_TEXT.encode())),
        ({"type": "string", "contentMediaType": "text/csv"}, {}, "a,b", ("text/csv", b"a,b")),
        ({"type": "string", "contentMediaType": "application/json"}, {}, '{"a": 1}', ("application/json", b'{"a": 1}')),
    ],
    ids=str,
)
async def test_a_part_has_the_content_type_that_its_schema_names(
    serve: Serve, connect: Connect, http: Words, schema: Any, encoding: Any, given: Any, expected: tuple[str, bytes]
) -> None:
    server = await serve(lambda _: http.reply({}))
    kind = {"schema": {"type": "object", "properties": {"f": schema}}, "encoding": {"f": encoding}}
    icon = {"type": "string", "contentMediaType": "image/svg+xml"}
    document = http.document(
        {"requestBody": {"content": {"multipart/form-data": kind}}},
        method="post",
        components={"schemas": {"Icon": icon}},
    )
    await connect(document, base_url=server.url).execute("x", {"f": given})
    part = parts_of(server.received[0])["f"]
    assert (part.get_content_type(), part.get_payload(decode=True)) == expected


# --- JSON and multipart under one name

EITHER = {
    "application/json": {
        "schema": {"type": "object", "properties": {"image": {"type": "string", "format": "uri"}, "n": {}}}
    },
    "multipart/form-data": {"schema": {"type": "object", "properties": {"image": BINARY, "n": {}}}},
}


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"image": "https://a.test/i.png"}, "application/json"),
        ({"image": {"data": PNG_TEXT}}, "multipart/form-data"),
        ({"image": {"data": PNG_TEXT, "filename": "i.png"}, "n": 1}, "multipart/form-data"),
        ({"image": PNG}, "multipart/form-data"),
        ({"image": PNG_TEXT, "content_type": "multipart/form-data"}, "multipart/form-data"),
        ({"n": 1}, "application/json"),
    ],
    ids=str,
)
async def test_json_and_multipart_under_one_name_can_both_be_called(
    serve: Serve, connect: Connect, http: Words, arguments: dict[str, Any], kind: str
) -> None:
    server = await serve(lambda _: http.reply({}))
    document = http.document({"requestBody": {"required": True, "content": EITHER}}, method="post")
    registry = connect(document, base_url=server.url)
    shown = registry.get_spec("x").input_schema["properties"]["image"]["anyOf"]
    assert shown[0] == {"type": "string", "format": "uri"}
    assert "A file" in shown[1]["description"]
    await registry.execute("x", arguments)
    received = server.received[0]
    assert str(received.header("content-type")).startswith(kind)
    assert (PNG in received.body) == (kind == "multipart/form-data")


async def test_an_object_that_happens_to_have_data_is_not_a_file(serve: Serve, connect: Connect, http: Words) -> None:
    server = await serve(lambda _: http.reply({}))
    content = {"application/json": {"schema": {"type": "array"}}, "application/octet-stream": {}}
    document = http.document({"requestBody": {"content": content}}, method="post")
    await connect(document, base_url=server.url).execute("x", {"body": {"data": {"type": "articles"}}})
    assert server.received[0].header("content-type") == "application/json"


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        ({}, ["a", "b"]),
        ({"style": "form"}, ["a", "b"]),
        ({"style": "form", "explode": False}, ["a,b"]),
        ({"style": "spaceDelimited"}, ["a%20b"]),
        ({"style": "pipeDelimited", "explode": False}, ["a%7Cb"]),
    ],
    ids=str,
)
async def test_a_list_is_one_part_where_its_style_joins_it(
    server: RawServer, connect: Connect, http: Words, encoding: Any, expected: list[str]
) -> None:
    names = {"type": "array", "items": {"type": "string"}}
    kind = {"schema": {"type": "object", "properties": {"names": names}}, "encoding": {"names": encoding}}
    body = {"content": {"multipart/form-data": kind}}
    received = await send(server, connect, http, body, {"names": ["a", "b"]})
    content = received.body.decode().split("\r\n")
    assert [line for line in content if line[:1] in ("a", "b")] == expected


# --- headers of parts


async def test_a_part_has_the_headers_of_its_encoding_and_those_the_caller_gives(
    server: RawServer, connect: Connect, http: Words
) -> None:
    headers = {
        "X-Fixed": {"schema": {"const": "a"}},
        "X-Only": {"schema": {"enum": [7]}},
        "X-Usual": {"schema": {"type": "string", "default": "u"}},
        "X-Named": {"$ref": "#/components/headers/Named"},
        "X-Free": {"schema": {"type": "string"}},
        "Content-Type": {"schema": {"const": "never"}},
    }
    kind = {
        "schema": {"type": "object", "properties": {"f": BINARY, "note": {"type": "string"}}},
        "encoding": {"f": {"headers": headers}, "note": {"headers": {"X-Fixed": {"schema": {"const": "n"}}}}},
    }
    components = {"headers": {"Named": {"schema": {"const": "r"}}}}
    body = {"content": {"multipart/form-data": kind}}
    given = {"data": PNG_TEXT, "headers": {"X-Free": "x\r\nEvil: 1", "x-usual": "mine", "Content-Type": "no"}}
    received = await send(server, connect, http, body, {"f": given, "note": "hi"}, components=components)
    parts = parts_of(received)
    found = [parts["f"][f"X-{name}"] for name in ("Fixed", "Only", "Usual", "Named", "Free")]
    assert found == ["a", "7", "mine", "r", "x Evil: 1"]
    assert (parts["f"]["Evil"], parts["f"].get_content_type(), parts["note"]["X-Fixed"]) == (
        None,
        "application/octet-stream",
        "n",
    )
    document = http.document({"requestBody": body}, method="post", components=components)
    told = [each.why for each in from_openapi(document, base_url=server.url).report.degraded]
    assert told == ["the header X-Free of the part f is only sent if its `headers` contain it"]
