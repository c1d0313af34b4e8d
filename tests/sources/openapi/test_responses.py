"""Responses as envelopes, failures as CallErrors: status, headers, content, limits, retries, cancellation."""

from __future__ import annotations

import asyncio
import gzip
from typing import TYPE_CHECKING, Any

import pytest
from tests.waiting import PATIENCE

from enfold import CallError, Context, HTTPResponseMeta, OperationRegistry
from enfold.sources.openapi import OpenAPILimits, from_openapi

if TYPE_CHECKING:
    from tests.sources.openapi.conftest import Connect, Received, Serve, Words

ITEM = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
QUICK = OpenAPILimits(retries=0)


async def failure(call: Any) -> CallError:
    with pytest.raises(CallError) as caught:
        await call
    return caught.value


async def test_a_success_is_an_envelope_with_status_headers_and_type(
    serve: Serve, connect: Connect, http: Words
) -> None:
    answer = http.reply({"id": 1}, status="201 Created", headers={"X-A": "1", "x-a": "2", "Set-Cookie": "s=1"})
    server = await serve(lambda _: answer)
    document = http.document({"responses": http.json_response(ITEM, "201")})
    envelope = await connect(document, base_url=server.url).execute("x", {})
    assert isinstance(envelope.meta, HTTPResponseMeta)
    assert (envelope.data, envelope.meta.status_code, envelope.meta.content_type) == (
        {"id": 1},
        201,
        "application/json",
    )
    assert envelope.meta.headers["set-cookie"] == "s=1"
    assert envelope.meta.headers["x-a"] in ("1, 2", "2")
    assert "set-cookie" not in envelope.to_wire()["meta"]["headers"]


@pytest.mark.parametrize("names", ["X-Internal", ["X-Internal"]], ids=["one", "a list"])
async def test_private_headers_are_hidden_from_callers(serve: Serve, connect: Connect, http: Words, names: Any) -> None:
    server = await serve(lambda _: http.reply(1, headers={"X-Internal": "1", "X-Shown": "2"}))
    document = http.document({"responses": http.json_response({"type": "integer"})})
    envelope = await connect(document, base_url=server.url, private_headers=names).execute("x", {})
    headers = envelope.to_wire()["meta"]["headers"]
    assert ("x-internal" in headers, headers["x-shown"]) == (False, "2")


@pytest.mark.parametrize(
    ("content", "content_type", "data"),
    [
        (b'{"a": 1}', "application/json", {"a": 1}),
        (b'\xef\xbb\xbf{"a": 1}', "application/json; charset=utf-8", {"a": 1}),
        ('{"a": "ü"}'.encode("utf-16"), "application/json; charset=utf-16", {"a": "ü"}),
        ('{"a": "ü"}'.encode("utf-16"), "application/json", {"a": "ü"}),
        ('{"a": "ü"}'.encode("utf-16-le"), "application/json", {"a": "ü"}),
        (b'{"a": 1}', "application/problem+json", {"a": 1}),
        ("grün".encode("latin-1"), "text/plain; charset=latin-1", "grün"),
        (b"<a/>", "application/xml", "<a/>"),
        (b"<a/>", "application/atom+xml", "<a/>"),
        (b"a: 1", "application/yaml", "a: 1"),
        (b"a: 1", "application/vnd.oai.openapi+yaml", "a: 1"),
        (b"a=1&b=2", "application/x-www-form-urlencoded", "a=1&b=2"),
        (b"var a = 1", "application/javascript", "var a = 1"),
        (b"var a = 1", "application/x-javascript", "var a = 1"),
        (b"[1, 2]", None, [1, 2]),
        (b"\x89PNG", "image/png", b"\x89PNG"),
        (b"", "text/plain", ""),
        (b"", "application/json", None),
        (b"", None, None),
        (b'{"a": 1}', None, {"a": 1}),
        (b"words", None, "words"),
        (b"\xff\xfe", None, b"\xff\xfe"),
        (b"a", "text/plain; charset=nonsense", "a"),
    ],
    ids=str,
)
async def test_content_is_json_text_or_bytes_by_its_type(
    serve: Serve, connect: Connect, http: Words, content: bytes, content_type: str | None, data: Any
) -> None:
    server = await serve(lambda _: http.reply(content, content_type=content_type))
    document = http.document({"responses": {"200": {"description": "", "content": {"*/*": {}}}}})
    assert (await connect(document, base_url=server.url).execute("x", {})).data == data


@pytest.mark.parametrize("status", ["204 No Content", "205 Reset Content", "304 Not Modified"])
async def test_a_status_without_a_body_gives_nothing(serve: Serve, connect: Connect, http: Words, status: str) -> None:
    server = await serve(
        lambda _: f"HTTP/1.1 {status}\r\n\r\n".encode() if "205" not in status else http.reply(b"", status=status)
    )
    document = http.document({"responses": {status[:3]: {"description": ""}}})
    envelope = await connect(document, base_url=server.url).execute("x", {})
    assert (envelope.data, envelope.warnings) == (None, ())


async def test_json_called_text_is_still_read_where_json_was_promised(
    serve: Serve, connect: Connect, http: Words
) -> None:
    server = await serve(lambda _: http.reply({"id": 1}, content_type="text/plain"))
    document = http.document({"responses": http.json_response(ITEM)})
    assert (await connect(document, base_url=server.url).execute("x", {})).data == {"id": 1}


@pytest.mark.parametrize("content_type", ["application/json", "text/html"])
async def test_something_else_than_the_promised_json_is_kept_with_a_warning(
    serve: Serve, connect: Connect, http: Words, content_type: str
) -> None:
    server = await serve(lambda _: http.reply(b"<html>down</html>", content_type=content_type))
    document = http.document({"responses": http.json_response(ITEM)})
    envelope = await connect(document, base_url=server.url).execute("x", {})
    assert envelope.data == "<html>down</html>"
    assert envelope.warnings


async def test_the_schema_of_the_actual_status_counts(serve: Serve, connect: Connect, http: Words) -> None:
    other = {"type": "object", "properties": {"task": {"type": "string"}}}
    responses = {**http.json_response(ITEM), **http.json_response(other, "202")}
    status = ["200 OK"]
    server = await serve(lambda _: http.reply({"id": 1, "task": "t"}, status=status[0]))
    registry = connect(http.document({"responses": responses}), base_url=server.url, extras="strip")
    assert (await registry.execute("x", {})).data == {"id": 1}
    status[0] = "202 Accepted"
    envelope = await registry.execute("x", {})
    assert (envelope.data, [each.path for each in envelope.warnings]) == ({"task": "t"}, ["/id"])


# --- what is unknown, open or one of several

OBJECT = {"type": "object"}
ANY_OF_TWO = {"anyOf": [ITEM, {"type": "string"}]}


@pytest.mark.parametrize(
    ("responses", "version", "schema"),
    [
        ({"200": {"description": "OK"}}, "3.0.3", {}),
        ({"200": {"description": "OK"}}, "2.0", {}),
        ({"200": {"description": "OK", "content": {}}}, "3.1.0", {}),
        ({"2XX": {"description": "OK"}}, "3.1.0", {}),
        ({"default": {"description": "OK"}}, "3.1.0", {}),
        ({}, "3.1.0", {}),
        ({"200": {"description": "OK"}, "204": {"description": "none"}}, "3.1.0", {}),
        ({"204": {"description": "none"}}, "3.1.0", {"type": "null"}),
        ({"200": {"content": {"application/json": {"schema": ITEM}, "text/csv": {}}}}, "3.1.0", ANY_OF_TWO),
        (
            {"200": {"content": {"application/json": {"schema": ITEM}, "application/x+json": {"schema": ITEM}}}},
            "3.1.0",
            ITEM,
        ),
        ({"200": {"schema": ITEM}}, "2.0", ANY_OF_TWO),
        ({"200": {"content": {"application/xml": {"schema": ITEM}}}}, "3.1.0", {"type": "string"}),
        ({"200": {"content": {"*/*": {"schema": ITEM}}}}, "3.1.0", ITEM),
        (
            {"200": {"content": {"image/*": {}}}},
            "3.1.0",
            {"type": "string", "contentEncoding": "base64", "contentMediaType": "image/*"},
        ),
        ({"200": {"content": {"text/*": {}}}}, "3.1.0", {"type": "string"}),
    ],
    ids=str,
)
def test_the_output_schema_holds_every_declared_answer(
    http: Words, responses: dict[str, Any], version: str, schema: dict[str, Any]
) -> None:
    produces = {"produces": ["application/xml", "application/json"]} if "schema" in responses.get("200", {}) else {}
    document = http.document({"responses": responses, **produces}, version=version)
    assert next(iter(from_openapi(document))).spec.output_schema == schema


@pytest.mark.parametrize(("method", "schema"), [("get", {}), ("delete", {}), ("head", {"type": "null"})])
async def test_an_undeclared_response_is_accepted_unchanged(
    serve: Serve, connect: Connect, http: Words, method: str, schema: dict[str, Any]
) -> None:
    server = await serve(lambda _: http.reply(b"" if method == "head" else {"id": 1}))
    registry = connect(http.document({}, method=method), base_url=server.url)
    assert registry.get_spec("x").output_schema == schema
    envelope = await registry.execute("x", {})
    assert (envelope.data, envelope.warnings) == (None if method == "head" else {"id": 1}, ())


SEVERAL = {"application/json": {"schema": ITEM}, "text/csv": {"schema": {"type": "string"}}, "image/*": {}}


@pytest.mark.parametrize(
    ("content", "content_type", "data", "codes"),
    [
        (b'{"id": "1"}', "application/json", {"id": 1}, ["convert"]),
        (b'{"id": 1, "next_cursor": "abc"}', "application/json", {"id": 1, "next_cursor": "abc"}, []),
        (b'{"id": 1}', "application/vnd.shop+json", {"id": 1}, []),
        (b"a,b\n", "text/csv", "a,b\n", []),
        (b"\x89PNG", "image/png", b"\x89PNG", []),
        (b"<html>login</html>", "text/html", "<html>login</html>", ["root_mismatch"]),
        (b"\x00\x01", "application/zip", b"\x00\x01", ["root_mismatch"]),
        (b'{"id": 1', "application/json", '{"id": 1', ["invalid_json", "root_mismatch"]),
        (
            b'{"id": NaN, "a": "\\u00e9"}',
            "application/json",
            '{"id": NaN, "a": "\\u00e9"}',
            ["invalid_json", "root_mismatch"],
        ),
        (b'{"id": 1, "a": "\\ud83d cut"}', "application/json", {"id": 1, "a": "\ufffd cut"}, ["half_character"]),
        (b"[1]", "application/json", [1], ["root_mismatch"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_the_schema_of_the_received_media_type_applies(
    serve: Serve, connect: Connect, http: Words, content: bytes, content_type: str, data: Any, codes: list[str]
) -> None:
    server = await serve(lambda _: http.reply(content, content_type=content_type))
    document = http.document({"responses": {"200": {"description": "", "content": SEVERAL}}})
    envelope = await connect(document, base_url=server.url).execute("x", {})
    assert (envelope.data, [each.code for each in envelope.warnings]) == (data, codes)


NUMBERS = b'{"id": 1, "a": [1e400, -1E+999, 1e-400, 1.5], "n": %s}' % (b"7" * 5000)


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "application/octet-stream", None], ids=str)
async def test_a_number_that_is_too_large_is_kept_as_text_and_the_rest_is_data(
    serve: Serve, connect: Connect, http: Words, content_type: str | None
) -> None:
    server = await serve(lambda _: http.reply(NUMBERS, content_type=content_type))
    registry = connect(http.document({"responses": http.json_response(ITEM)}), base_url=server.url)
    envelope = await registry.execute("x", {})
    assert envelope.data == {"id": 1, "a": ["1e400", "-1E+999", 0.0, 1.5], "n": "7" * 5000}
    told = [(each.code, each.path) for each in envelope.warnings]
    assert told == [("large_number", "/a/0"), ("large_number", "/a/1"), ("large_number", "/n")]
    assert not envelope.is_error


async def test_a_number_too_large_for_a_float_is_a_small_misfit(serve: Serve, connect: Connect, http: Words) -> None:
    server = await serve(lambda _: http.reply(b'{"id": 1e400, "name": "a"}'))
    schema = {"type": "object", "required": ["id", "name"], "properties": {"id": {"type": "number"}, "name": {}}}
    registry = connect(http.document({"responses": http.json_response(schema)}), base_url=server.url)
    envelope = await registry.execute("x", {})
    assert (envelope.data, envelope.is_error) == ({"id": "1e400", "name": "a"}, False)
    assert [each.code for each in envelope.warnings] == ["large_number", "type_mismatch"]


PAGE = b"<html><title>Log in</title></html>"


@pytest.mark.parametrize("schema", [ITEM, {}, {"type": "string"}, {"type": "array"}, {"type": "null"}], ids=str)
@pytest.mark.parametrize(
    ("content", "content_type"), [(PAGE, "text/html; charset=utf-8"), (b'{"id": 1', "application/json")]
)
async def test_a_page_or_half_a_document_is_not_the_json_that_was_promised(
    serve: Serve, connect: Connect, http: Words, schema: dict[str, Any], content: bytes, content_type: str
) -> None:
    server = await serve(lambda _: http.reply(content, content_type=content_type))
    envelope = await connect(http.document({"responses": http.json_response(schema)}), base_url=server.url).execute(
        "x", {}
    )
    codes = [each.code for each in envelope.warnings]
    is_text_by_right = schema == {"type": "string"} and content is not PAGE  # servers forget quotes
    assert envelope.data == content.decode()
    assert codes.count("root_mismatch") == (0 if is_text_by_right else 1)
    assert ("invalid_json" in codes) == (content is not PAGE)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(("extras", "is_kept"), [({}, True), ({"extras": "strip"}, False)], ids=["keep", "strip"])
async def test_fields_that_an_open_schema_does_not_name_are_kept_unless_asked_otherwise(
    serve: Serve, connect: Connect, http: Words, nested: bool, extras: dict[str, Any], is_kept: bool
) -> None:
    page, schema = {"id": 1, "next_cursor": "abc"}, ITEM
    given: Any = [page] if nested else page
    document = http.document(
        {"responses": http.json_response({"type": "array", "items": schema} if nested else schema)}
    )
    server = await serve(lambda _: http.reply(given))
    envelope = await connect(document, base_url=server.url, **extras).execute("x", {})
    kept = page if is_kept else {"id": 1}
    assert envelope.data == ([kept] if nested else kept)
    assert [each.code for each in envelope.warnings] == ([] if is_kept else ["strip"])


# --- failures


async def test_an_error_status_is_an_error_with_its_facts(serve: Serve, connect: Connect, http: Words) -> None:
    problem = {"title": "gone", "detail": "no such pet"}
    server = await serve(lambda _: http.reply(problem, status="404 Not Found", content_type="application/problem+json"))
    error = await failure(connect(http.document({}), base_url=server.url).execute("x", {}))
    assert (error.code, error.message, error.retryable) == ("EXECUTION_ERROR", "HTTP 404: no such pet", False)
    assert error.details == {
        "status": 404,
        "reason": "Not Found",
        "content_type": "application/problem+json",
        "body": problem,
    }


@pytest.mark.parametrize(
    ("status", "code"), [("429 Too Many Requests", "RESOURCE_EXHAUSTED"), ("503 Service Unavailable", "UNAVAILABLE")]
)
async def test_retry_after_of_a_server_is_reported(
    serve: Serve, connect: Connect, http: Words, status: str, code: str
) -> None:
    server = await serve(lambda _: http.reply({}, status=status, headers={"Retry-After": "7"}))
    error = await failure(connect(http.document({}), base_url=server.url).execute("x", {}))
    assert (error.code, error.details["retry_after"], error.retryable) == (code, 7.0, True)
    assert len(server.received) == 1


async def test_a_large_error_page_is_cut(serve: Serve, connect: Connect, http: Words) -> None:
    server = await serve(lambda _: http.reply(b"x" * 100_000, status="500 Oops", content_type="text/html"))
    error = await failure(connect(http.document({}), base_url=server.url, limits=QUICK).execute("x", {}))
    assert len(error.details["body"]) == 16_384


@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "decompressed"])
async def test_a_response_over_the_limit_is_refused(
    serve: Serve, connect: Connect, http: Words, is_packed: bool
) -> None:
    content = b" " * 50_000
    packed = http.reply(gzip.compress(content), headers={"Content-Encoding": "gzip"})
    server = await serve(lambda _: packed if is_packed else http.reply(content))
    limits = OpenAPILimits(response_bytes=10_000)
    error = await failure(connect(http.document({}), base_url=server.url, limits=limits).execute("x", {}))
    assert error.code == "PAYLOAD_TOO_LARGE"


async def test_a_request_over_the_limit_is_never_sent(serve: Serve, connect: Connect, http: Words) -> None:
    server = await serve(lambda _: http.reply({}))
    document = http.document({"requestBody": http.json_body({"type": "string"})}, method="post")
    registry = connect(document, base_url=server.url, limits=OpenAPILimits(request_bytes=10))
    assert (await failure(registry.execute("x", {"body": "x" * 20}))).code == "PAYLOAD_TOO_LARGE"
    assert server.received == []


async def test_compressed_content_that_is_broken_is_an_error(serve: Serve, connect: Connect, http: Words) -> None:
    server = await serve(lambda _: http.reply(b"nonsense", headers={"Content-Encoding": "gzip"}))
    error = await failure(connect(http.document({}), base_url=server.url).execute("x", {}))
    assert (error.code, "decompressed" in error.message) == ("EXECUTION_ERROR", True)


@pytest.mark.parametrize("is_given", [False, True], ids=["our client", "a user's client"])
@pytest.mark.parametrize(
    ("encoding", "content", "words"),
    [
        ("gzip", gzip.compress(b"a long text, " * 500)[:60], "it is incomplete"),
        ("gzip", gzip.compress(b'{"id": 1}')[:-4], "it is incomplete"),
        ("deflate", b"\x78\x9c", "it is incomplete"),
        ("br", b"\x0b\x02\x80hello\x03", "unsupported encoding"),
        ("zstd", b"\x28\xb5\x2f\xfd", "unsupported encoding"),
    ],
    ids=["half a gzip", "gzip without its end", "the start of a deflate", "br", "zstd"],
)
async def test_a_truncated_compressed_body_and_an_unrequested_encoding_are_failures(
    serve: Serve, connect: Connect, http: Words, encoding: str, content: bytes, words: str, is_given: bool
) -> None:
    import httpx2

    server = await serve(
        lambda _: http.reply(content, content_type="text/plain", headers={"Content-Encoding": encoding})
    )
    async with httpx2.AsyncClient() as client:
        registry = connect(http.document({}), base_url=server.url, client=client if is_given else None)
        error = await failure(registry.execute("x", {}))
    assert (error.code, words in error.message) == ("EXECUTION_ERROR", True)


async def test_x_gzip_is_gzip(serve: Serve, connect: Connect, http: Words) -> None:
    packed = gzip.compress(b'{"id": 1}')
    server = await serve(lambda _: http.reply(packed, headers={"Content-Encoding": "x-gzip"}))
    assert (await connect(http.document({}), base_url=server.url).execute("x", {})).data == {"id": 1}


@pytest.mark.parametrize(
    "answer", [b"", b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"], ids=["none", "garbage", "cut"]
)  # fmt: skip
async def test_a_connection_that_breaks_off_is_unavailable(
    serve: Serve, connect: Connect, http: Words, answer: bytes
) -> None:
    async def broken() -> Any:
        if answer:
            yield answer

    server = await serve(lambda _: broken())
    registry = connect(http.document({}, method="post"), base_url=server.url)
    error = await failure(registry.execute("x", {}))
    assert (error.code, error.retryable) == ("UNAVAILABLE", False)
    assert len(server.received) == 1


async def test_a_host_that_cannot_be_reached_is_unavailable(connect: Connect, http: Words) -> None:
    error = await failure(connect(http.document({}), base_url="http://127.0.0.1:9", limits=QUICK).execute("x", {}))
    assert (error.code, error.retryable) == ("UNAVAILABLE", True)


# --- retries, time


@pytest.mark.parametrize(("method", "calls"), [("get", 3), ("put", 3), ("delete", 3), ("post", 1), ("patch", 1)])
async def test_only_idempotent_methods_are_tried_again(
    serve: Serve, connect: Connect, http: Words, method: str, calls: int
) -> None:
    server = await serve(lambda _: http.reply({}, status="502 Bad Gateway"))
    error = await failure(connect(http.document({}, method=method), base_url=server.url).execute("x", {}))
    assert (error.details["status"], len(server.received)) == (502, calls)


async def test_a_retry_that_succeeds_is_a_success(serve: Serve, connect: Connect, http: Words) -> None:
    answers = [http.reply({}, status="503 Busy", headers={"Retry-After": "0"}), http.reply({"a": 1})]
    server = await serve(lambda _: answers.pop(0))
    document = http.document({"responses": http.json_response({})})
    assert (await connect(document, base_url=server.url).execute("x", {})).data == {"a": 1}


@pytest.mark.parametrize(("method", "retryable"), [("get", True), ("post", False)])
async def test_a_call_that_takes_too_long_times_out_and_closes_its_connection(
    serve: Serve, connect: Connect, http: Words, method: str, retryable: bool
) -> None:
    async def never(_: Received) -> bytes:
        await asyncio.Event().wait()
        return b""

    server = await serve(never)
    registry = connect(http.document({}, method=method), base_url=server.url, timeout=0.1)
    error = await failure(registry.execute("x", {}))
    assert (error.code, error.retryable) == ("TIMEOUT", retryable)
    await asyncio.wait_for(server.closed.wait(), PATIENCE)


async def test_a_cancelled_call_closes_its_connection(serve: Serve, connect: Connect, http: Words) -> None:
    asked = asyncio.Event()

    async def never(_: Received) -> bytes:
        asked.set()
        await asyncio.Event().wait()
        return b""

    server = await serve(never)
    call = asyncio.create_task(connect(http.document({}), base_url=server.url).execute("x", {}, Context()))
    await asked.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.wait_for(server.closed.wait(), PATIENCE)


def test_each_loop_gets_its_own_connections(http: Words) -> None:
    async def once() -> int:
        server = http.Server(lambda _: http.reply({}))
        await server.start()
        async with from_openapi(http.document({}), base_url=server.url) as imported:
            registry = OperationRegistry()
            registry.register_all(imported)
            await registry.execute("x", {})
        await server.stop()
        return len(server.received)

    assert [asyncio.run(once()), asyncio.run(once())] == [1, 1]


# --- what is asked for


async def test_the_accept_header_names_what_the_responses_declare_json_first(
    serve: Serve, connect: Connect, http: Words
) -> None:
    server = await serve(lambda _: http.reply({}))
    content: dict[str, Any] = {"text/csv": {}, "application/json": {}}
    responses = {
        "200": {"description": "", "content": content},
        "400": {"description": "", "content": {"application/problem+json": {}}},
    }
    await connect(http.document({"responses": responses}), base_url=server.url).execute("x", {})
    assert server.received[0].header("accept") == "application/json, text/csv;q=0.9, application/problem+json;q=0.8"


async def test_no_cookie_of_an_answer_is_sent_with_the_next_call(serve: Serve, connect: Connect, http: Words) -> None:
    server = await serve(lambda _: http.reply({}, headers={"Set-Cookie": "session=alice; Path=/"}))
    registry = connect(http.document({}), base_url=server.url)
    await registry.execute("x", {})
    await registry.execute("x", {})
    assert [each.header("cookie") for each in server.received] == [None, None]


async def test_a_client_of_the_user_keeps_its_own_headers(serve: Serve, connect: Connect, http: Words) -> None:
    import httpx2

    server = await serve(lambda _: http.reply({}))
    async with httpx2.AsyncClient(headers={"X-Mine": "1"}) as client:
        await connect(http.document({}), base_url=server.url, client=client).execute("x", {})
    assert server.received[0].header("x-mine") == "1"


async def test_no_cookie_of_an_answer_stays_in_a_client_of_the_user(
    serve: Serve, connect: Connect, http: Words
) -> None:
    import httpx2

    server = await serve(lambda _: http.reply({}, headers={"Set-Cookie": "session=alice; Path=/"}))
    async with httpx2.AsyncClient(cookies={"mine": "1"}) as client:
        registry = connect(http.document({}), base_url=server.url, client=client)
        await registry.execute("x", {})
        await registry.execute("x", {})
    assert [each.header("cookie") for each in server.received] == ["mine=1", "mine=1"]
