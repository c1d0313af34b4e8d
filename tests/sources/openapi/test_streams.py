"""Streams over a real socket: every event once, every failure a CallError, closed with their consumer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest
from tests.waiting import PATIENCE

from enfold import CallError, Context, HTTPResponseMeta
from enfold.sources.openapi import OpenAPILimits

if TYPE_CHECKING:
    from tests.sources.openapi.conftest import Connect, Received, Serve, Words

EVENTS = {"200": {"description": "", "content": {"text/event-stream": {}}}}


def streamed(content_type: str = "text/event-stream", **media: Any) -> dict[str, Any]:
    return {"responses": {"200": {"description": "", "content": {content_type: media}}}}


async def collect(stream: Any) -> list[Any]:
    return [envelope.data async for envelope in stream]


async def test_each_event_is_a_separate_envelope(serve: Serve, connect: Connect, http: Words) -> None:
    async def answer() -> AsyncIterator[bytes]:
        yield http.stream_head()
        yield http.chunk('id: 1\nevent: add\ndata: {"a": 1}\n\n')
        yield http.chunk("data: plain words\n\n")
        yield http.chunk("")

    server = await serve(lambda _: answer())
    registry = connect(http.document(streamed()), base_url=server.url)
    assert registry.get_spec("x").type == "subscription"
    found = []
    async for envelope in registry.subscribe("x", {}):
        meta = envelope.meta
        assert isinstance(meta, HTTPResponseMeta)
        found.append((envelope.data, meta.event_type, meta.last_event_id, meta.content_type))
    assert found == [
        ({"a": 1}, "add", "1", "text/event-stream"),
        ("plain words", "message", "1", "text/event-stream"),
    ]
    assert server.received[0].header("accept") == "text/event-stream"


@pytest.mark.parametrize(
    ("media", "data"),
    [
        ({}, 12),
        ({"schema": {"type": "string"}}, "12"),
        ({"itemSchema": {"type": "object", "properties": {"data": {"type": "string"}}}}, 12),
        ({"itemSchema": {"properties": {"data": {"type": "string", "contentSchema": {"type": "integer"}}}}}, 12),
        ({"itemSchema": {"type": "integer"}}, 12),
    ],
    ids=["unknown", "text", "event", "event with a schema", "payload"],
)
async def test_data_is_json_unless_the_schema_says_text(
    serve: Serve, connect: Connect, http: Words, media: Any, data: Any
) -> None:
    server = await serve(lambda _: http.reply(b"data: 12\n\n", content_type="text/event-stream"))
    registry = connect(http.document(streamed(**media)), base_url=server.url)
    assert await collect(registry.subscribe("x", {})) == [data]


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/jsonl", b'{"a":1}\n\n{"a":2}'),
        ("application/x-ndjson", b'{"a":1}\r\n{"a":2}\r\n'),
        ("application/json-seq", b'\x1e{"a":1}\n\x1e{"a":2}\n'),
    ],
)
async def test_other_framings_are_streams_too(
    serve: Serve, connect: Connect, http: Words, content_type: str, body: bytes
) -> None:
    server = await serve(lambda _: http.reply(body, content_type=content_type))
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    registry = connect(http.document(streamed(content_type, itemSchema=schema)), base_url=server.url)
    assert await collect(registry.subscribe("x", {})) == [{"a": 1}, {"a": 2}]
    assert registry.get_spec("x").output_schema == schema


async def test_a_line_that_is_not_json_is_kept_with_a_warning_and_the_stream_continues(
    serve: Serve, connect: Connect, http: Words
) -> None:
    server = await serve(lambda _: http.reply(b'{"a":1}\n{"a":\n{"a":2}\n', content_type="application/jsonl"))
    registry = connect(http.document(streamed("application/jsonl")), base_url=server.url)
    items = [envelope async for envelope in registry.subscribe("x", {})]
    assert [each.data for each in items] == [{"a": 1}, '{"a":', {"a": 2}]
    assert [[warning.code for warning in each.warnings] for each in items] == [[], ["invalid_json"], []]


@pytest.mark.parametrize("content_type", ["text/event-stream", "application/jsonl"])
async def test_a_number_that_is_too_large_is_kept_as_text_in_its_item(
    serve: Serve, connect: Connect, http: Words, content_type: str
) -> None:
    lines = [b'{"a":1e400}', b'{"a":2}']
    is_lines = content_type == "application/jsonl"
    body = b"".join(each + b"\n" if is_lines else b"data: " + each + b"\n\n" for each in lines)
    server = await serve(lambda _: http.reply(body, content_type=content_type))
    registry = connect(http.document(streamed(content_type)), base_url=server.url)
    items = [envelope async for envelope in registry.subscribe("x", {})]
    assert [each.data for each in items] == [{"a": "1e400"}, {"a": 2}]
    assert [[warning.code for warning in each.warnings] for each in items] == [["large_number"], []]


async def test_the_mark_done_ends_a_stream_and_is_not_an_item(serve: Serve, connect: Connect, http: Words) -> None:
    body = b'data: {"n":1}\n\ndata: [DONE]\n\ndata: {"n":2}\n\n'
    server = await serve(lambda _: http.reply(body, content_type="text/event-stream"))
    assert await collect(connect(http.document(streamed()), base_url=server.url).subscribe("x", {})) == [{"n": 1}]


async def test_both_an_answer_and_a_stream_are_two_operations_that_differ_in_stream(
    serve: Serve, connect: Connect, http: Words
) -> None:
    def answer(received: Received) -> bytes:
        if b'"stream":true' in received.body:
            return http.reply(b'data: "a"\n\n', content_type="text/event-stream")
        return http.reply("whole")

    server = await serve(answer)
    schema = {
        "type": "object",
        "properties": {"stream": {"type": "boolean", "default": True}, "n": {"type": "integer"}},
    }
    content: dict[str, Any] = {"application/json": {}, "text/event-stream": {}}
    operation = {"requestBody": http.json_body(schema), "responses": {"200": {"description": "", "content": content}}}
    registry = connect(http.document(operation, method="post"), base_url=server.url)
    assert [(spec.id, spec.type.value) for spec in registry.list()] == [("x", "mutation"), ("x_stream", "subscription")]
    assert (await registry.execute("x", {"n": 1})).data == "whole"
    assert await collect(registry.subscribe("x_stream", {"n": 1, "stream": True})) == ["a"]
    assert [each.header("accept") for each in server.received] == ["application/json", "text/event-stream"]
    with pytest.raises(CallError, match="stream"):
        await registry.execute("x", {"stream": True})


def test_where_stream_is_always_sent_an_optional_body_needs_what_it_requires(connect: Connect, http: Words) -> None:
    schema = {"required": ["n"], "properties": {"stream": {"type": "boolean"}, "n": {"type": "integer"}}}
    body = {**http.json_body(schema), "required": False}
    content: dict[str, Any] = {"application/json": {}, "text/event-stream": {}}
    operation = {"requestBody": body, "responses": {"200": {"description": "", "content": content}}}
    specs = connect(http.document(operation, method="post")).list()
    assert [spec.input_schema["required"] for spec in specs] == [["n"], ["n"]]


# --- failures and ends


async def test_an_error_status_is_raised_before_the_first_item(serve: Serve, connect: Connect, http: Words) -> None:
    server = await serve(lambda _: http.reply({"why": "no"}, status="403 Forbidden"))
    with pytest.raises(CallError) as caught:
        await collect(connect(http.document(streamed()), base_url=server.url).subscribe("x", {}))
    assert (caught.value.details["status"], caught.value.details["body"]) == (403, {"why": "no"})


@pytest.mark.parametrize(
    ("content_type", "opens"),
    [
        ("text/event-stream;", True),
        ("Text/Event-Stream", True),
        ("text/event-stream; charset=utf-8", True),
        ("text/x-bogus", False),
        ("x bogus", False),
    ],
)
async def test_only_a_stream_is_read_as_a_stream(
    serve: Serve, connect: Connect, http: Words, content_type: str, opens: bool
) -> None:
    server = await serve(lambda _: http.reply(b"data: a\n\n", content_type=content_type))
    stream = connect(http.document(streamed()), base_url=server.url).subscribe("x", {})
    if opens:
        assert await collect(stream) == ["a"]
    else:
        with pytest.raises(CallError, match="Not a stream"):
            await collect(stream)


async def test_one_json_value_in_place_of_a_stream_is_a_stream_of_one(
    serve: Serve, connect: Connect, http: Words
) -> None:
    server = await serve(lambda _: http.reply({"whole": True}))
    assert await collect(connect(http.document(streamed()), base_url=server.url).subscribe("x", {})) == [
        {"whole": True}
    ]


async def test_no_content_is_an_empty_stream(serve: Serve, connect: Connect, http: Words) -> None:
    server = await serve(lambda _: b"HTTP/1.1 204 No Content\r\n\r\n")
    assert await collect(connect(http.document(streamed()), base_url=server.url).subscribe("x", {})) == []


@pytest.mark.parametrize(("method", "with_ids"), [("post", True), ("get", False)], ids=["a POST", "no ids"])
async def test_a_stream_cut_where_it_cannot_be_resumed_is_data_loss(
    serve: Serve, connect: Connect, http: Words, method: str, with_ids: bool
) -> None:
    async def answer() -> AsyncIterator[bytes]:
        yield http.stream_head()
        yield http.chunk(f"{'id: 1' if with_ids else ''}\ndata: a\n\n")

    server = await serve(lambda _: answer())
    stream = connect(http.document(streamed(), method=method), base_url=server.url).subscribe("x", {})
    assert (await anext(stream)).data == "a"
    with pytest.raises(CallError) as caught:
        await anext(stream)
    assert (caught.value.code, caught.value.details) == ("DATA_LOSS", {"items": 1})
    assert len(server.received) == 1


async def test_a_cut_stream_with_ids_is_resumed_and_every_event_comes_once(
    serve: Serve, connect: Connect, http: Words
) -> None:
    async def answer(received: Received) -> AsyncIterator[bytes]:
        start = int(received.header("last-event-id") or 0)
        yield http.stream_head()
        yield http.chunk(
            f"retry: 1\nid: {start + 1}\ndata: {start + 1}\n\nid: {start + 2}\ndata: {start + 2}\n\ndata: lost"
        )
        if start >= 4:
            yield http.chunk("")

    server = await serve(answer)
    registry = connect(http.document(streamed()), base_url=server.url)
    assert registry.get_spec("x").resumable
    assert await collect(registry.subscribe("x", {})) == [1, 2, 3, 4, 5, 6]
    assert [each.header("last-event-id") for each in server.received] == [None, "2", "4"]


async def test_no_content_on_reconnection_ends_the_stream(serve: Serve, connect: Connect, http: Words) -> None:
    async def first() -> AsyncIterator[bytes]:
        yield http.stream_head()
        yield http.chunk("retry: 1\nid: 1\ndata: 1\n\n")

    server = await serve(lambda r: b"HTTP/1.1 204 No Content\r\n\r\n" if r.header("last-event-id") else first())
    assert await collect(connect(http.document(streamed()), base_url=server.url).subscribe("x", {})) == [1]


async def test_reconnecting_ends_after_the_allowed_number(serve: Serve, connect: Connect, http: Words) -> None:
    async def cut() -> AsyncIterator[bytes]:
        yield http.stream_head()
        yield http.chunk("retry: 1\nid: 1\n\n")

    server = await serve(lambda _: cut())
    registry = connect(http.document(streamed()), base_url=server.url, limits=OpenAPILimits(reconnects=2))
    with pytest.raises(CallError) as caught:
        await collect(registry.subscribe("x", {}))
    assert (caught.value.code, len(server.received)) == ("DATA_LOSS", 3)


async def test_a_caller_resumes_with_its_last_event_id(serve: Serve, connect: Connect, http: Words) -> None:
    server = await serve(lambda _: http.reply(b"id: 8\ndata: 8\n\n", content_type="text/event-stream"))
    context = Context(last_event_id="7")
    registry = connect(http.document(streamed()), base_url=server.url)
    assert await collect(registry.subscribe("x", {}, context)) == [8]
    assert (server.received[0].header("last-event-id"), context.event_id) == ("7", "8")


async def test_an_event_over_the_limit_is_refused(serve: Serve, connect: Connect, http: Words) -> None:
    server = await serve(lambda _: http.reply(b"data: " + b"x" * 100, content_type="text/event-stream"))
    registry = connect(http.document(streamed()), base_url=server.url, limits=OpenAPILimits(event_bytes=50))
    with pytest.raises(CallError) as caught:
        await collect(registry.subscribe("x", {}))
    assert caught.value.code == "PAYLOAD_TOO_LARGE"


async def test_a_consumer_that_stops_early_closes_the_connection(serve: Serve, connect: Connect, http: Words) -> None:
    ended = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            yield http.stream_head()
            while True:
                yield http.chunk("data: a\n\n")
                await asyncio.sleep(0.001)
        finally:
            ended.set()

    server = await serve(lambda _: endless())
    stream = connect(http.document(streamed()), base_url=server.url).subscribe("x", {})
    assert (await anext(stream)).data == "a"
    await stream.aclose()
    await asyncio.wait_for(server.closed.wait(), PATIENCE)
