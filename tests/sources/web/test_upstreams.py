"""Servers that send too much, too little, too slowly, or something else: each ends in one clear error, and no other call."""

from __future__ import annotations

import asyncio
import gc
import gzip
import zlib
from itertools import pairwise, repeat
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.waiting import PATIENCE

from enfold.http_client import Request, WebError
from enfold.http_client.client import WebClient
from enfold.http_client.connection import ResponseReader
from enfold.http_client.messages import PIECE, decoder_for

LIMIT = 1_000_000
HEAD = b"HTTP/1.1 200 OK\r\n"


async def fetched(client: WebClient, raw: Any, method: str = "GET") -> bytes:
    response = await client.send(Request(method, raw.origin, "/"))
    try:
        return await response.body(LIMIT)
    finally:
        await response.close()


def endless(*pieces: bytes, first: bytes = b"") -> Any:
    async def talk(line: Any) -> None:
        await line.request()
        await line.write(first)
        while True:
            for piece in pieces:
                await line.write(piece)

    return talk


@pytest.mark.parametrize(
    ("talk", "kind"),
    [
        (endless(b"X-More: and more\r\n", first=HEAD), "too_large"),
        (endless(b"x" * 1000, first=HEAD + b"X: "), "too_large"),
        (endless(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"), "too_large"),
        (endless(b"HTTP/1.1 100 Continue\r\n\r\n"), "too_large"),
        (endless(b"x" * 1000, first=HEAD + b"\r\n"), "too_large"),
        (endless(b"x" * 1000, first=HEAD + b"Content-Length: 999999999999\r\n\r\n"), "too_large"),
        (endless(b"3e8\r\n" + b"x" * 1000 + b"\r\n", first=HEAD + b"Transfer-Encoding: chunked\r\n\r\n"), "too_large"),
        (endless(b";ext=" + b"y" * 500, first=HEAD + b"Transfer-Encoding: chunked\r\n\r\n1"), "too_large"),
        (endless(b"T: x\r\n", first=HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"), "too_large"),
        (endless(b"<html>"), "broken"),
    ],
    ids=["headers", "a header", "hints", "continue", "to the end", "length", "chunks", "extension", "trailers", "html"],
)
async def test_an_endless_response_is_ended(listen: Any, client: WebClient, talk: Any, kind: str) -> None:
    raw = await listen(talk)
    with pytest.raises(WebError) as caught:
        await fetched(client, raw)
    assert caught.value.kind == kind
    await asyncio.wait_for(raw.gone.wait(), PATIENCE)


async def test_many_headers_are_too_many(listen: Any, client: WebClient, words: Any) -> None:
    raw = await listen(words.once(HEAD + b"".join(b"A%d: b\r\n" % number for number in range(300)) + b"\r\n"))
    with pytest.raises(WebError, match="more than 256 headers"):
        await fetched(client, raw)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200",
        HEAD + b"Content-Length: 10\r\n\r\nhalf",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhe",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n-1\r\nx",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello!",
        HEAD + b"Transfer-Encoding: gzip\r\n\r\nx",
        HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        HEAD + b"Content-Length: -1\r\n\r\nab",
        HEAD + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
    ],
    ids=repr,
)
async def test_an_incomplete_answer_is_reported_as_broken_off(
    listen: Any, client: WebClient, words: Any, answer: bytes
) -> None:
    raw = await listen(words.once(answer))
    with pytest.raises(WebError) as caught:
        await fetched(client, raw, "POST")
    assert (caught.value.kind, caught.value.was_sent) == ("broken", True)


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"Content-Length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + HEAD + b"Content-Length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.0 200 OK\r\n\r\nto the end", b"to the end"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nto the end", b"to the end"),
        (b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", b"ok"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2;x=y\r\nok\r\n0\r\nT: v\r\n\r\n", b"ok"),
        (HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 99\r\n\r\n2\r\nok\r\n0\r\n\r\n", b"ok"),
        (HEAD + b"Upgrade: h2c\r\nConnection: Upgrade, close\r\nContent-Length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", b""),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", b""),
    ],
    ids=repr,
)
async def test_unusual_responses_are_understood(
    listen: Any, client: WebClient, words: Any, answer: bytes, body: bytes
) -> None:
    raw = await listen(words.once(*(answer[place : place + 7] for place in range(0, len(answer), 7))))
    assert await fetched(client, raw) == body


async def test_the_body_announced_to_a_head_request_is_not_awaited(listen: Any, client: WebClient, words: Any) -> None:
    raw = await listen(words.answering(HEAD + b"Content-Length: 100\r\nContent-Encoding: gzip\r\n\r\n"))
    response = await client.send(Request("HEAD", raw.origin, "/"))
    assert (response.status, [chunk async for chunk in response.chunks()]) == (200, [])


# --- one caller's answer is no other's


@pytest.mark.parametrize(
    "extra",
    [b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged", b"garbage", b"0"],
    ids=["a second answer", "garbage", "a digit"],
)
async def test_bytes_after_an_answer_are_discarded(listen: Any, client: WebClient, words: Any, extra: bytes) -> None:
    raw = await listen(words.answering(words.reply(b"mine") + extra, words.reply(b"yours")))
    assert await fetched(client, raw) == b"mine"
    assert await fetched(client, raw) == b"yours"
    assert raw.connections == 2


async def test_unsolicited_bytes_on_an_idle_connection_are_discarded(
    listen: Any, client: WebClient, words: Any
) -> None:
    sent = asyncio.Event()

    async def talk(line: Any) -> None:
        is_first = raw.connections == 1
        await line.request()
        await line.write(words.reply(b"mine" if is_first else b"yours"))
        if is_first:
            await asyncio.sleep(0)
            await line.write(words.reply(b"forged"))
            sent.set()
        await line.gone()

    raw = await listen(talk)
    assert await fetched(client, raw) == b"mine"
    await sent.wait()
    assert await fetched(client, raw) == b"yours"


async def test_answers_under_load_are_each_callers_own(listen: Any, client: WebClient, words: Any) -> None:
    async def talk(line: Any) -> None:
        while request := await line.request():
            await asyncio.sleep(0)
            await line.write(words.reply(request.rpartition(b"\r\n\r\n")[2]))

    raw = await listen(talk)

    async def ask(number: int) -> bool:
        response = await client.send(Request("POST", raw.origin, "/", [], b"%d" % number))
        return await response.body(LIMIT) == b"%d" % number

    for _ in range(5):
        assert all(await asyncio.gather(*map(ask, range(60))))
    assert raw.connections <= 60


# --- connections that end


async def test_a_connection_closed_between_calls_is_not_used_for_the_next(
    listen: Any, client: WebClient, words: Any
) -> None:
    raw = await listen(words.once(words.reply(b"x")))
    assert [await fetched(client, raw, "POST") for _ in range(3)] == [b"x"] * 3
    assert len(raw.requests) == 3


@pytest.mark.parametrize(("method", "is_repeated"), [("GET", True), ("PUT", True), ("POST", False), ("PATCH", False)])
async def test_a_request_that_may_have_been_read_is_repeated_only_where_that_is_safe(
    listen: Any, client: WebClient, words: Any, method: str, is_repeated: bool
) -> None:
    async def talk(line: Any) -> None:
        await line.request()
        await line.write(words.reply(b"x"))
        if raw.connections == 1:
            await line.request()  # taken, and hung up on

    raw = await listen(talk)
    assert await fetched(client, raw) == b"x"
    if is_repeated:
        assert await fetched(client, raw, method) == b"x"
    else:
        with pytest.raises(WebError) as caught:
            await fetched(client, raw, method)
        assert (caught.value.kind, caught.value.was_sent) == ("broken", True)
    assert len(raw.requests) == 2 + is_repeated


async def test_a_cancelled_caller_leaves_no_connection_behind(listen: Any, client: WebClient) -> None:
    began = asyncio.Event()

    async def talk(line: Any) -> None:
        await line.request()
        began.set()
        await line.gone()
        raw.gone.set()

    raw = await listen(talk)
    call = asyncio.create_task(fetched(client, raw))
    await began.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.wait_for(raw.gone.wait(), PATIENCE)


@pytest.mark.parametrize("begins", [False, True], ids=["before the head", "in the body"])
async def test_a_caller_who_waits_learns_that_the_client_is_closed(
    listen: Any, client: WebClient, begins: bool
) -> None:
    began = asyncio.Event()

    async def talk(line: Any) -> None:
        await line.request()
        if begins:
            await line.write(HEAD + b"Content-Length: 5\r\n\r\nd")
        began.set()
        await line.gone()

    raw = await listen(talk)
    call = asyncio.create_task(fetched(client, raw))
    await began.wait()
    await client.aclose()
    with pytest.raises(WebError) as caught:
        await asyncio.wait_for(call, PATIENCE)
    assert caught.value.kind == "broken"


async def test_answers_leave_nothing_for_the_garbage_collector(listen: Any, client: WebClient, words: Any) -> None:
    raw = await listen(words.answering(words.reply(b"x" * 100)))
    await fetched(client, raw)
    gc.collect()
    gc.disable()
    try:
        for _ in range(50):
            await fetched(client, raw)
        left = [each for each in gc.get_objects() if isinstance(each, ResponseReader)]
    finally:
        gc.enable()
    assert len(left) <= 1


async def test_a_slow_body_is_given_as_it_comes_and_left_when_its_reader_goes(listen: Any, client: WebClient) -> None:
    async def talk(line: Any) -> None:
        await line.request()
        await line.write(HEAD + b"Content-Type: text/plain\r\n\r\nd")
        await line.gone()
        raw.gone.set()

    raw = await listen(talk)
    response = await client.send(Request("GET", raw.origin, "/"))
    assert await anext(response.chunks()) == b"d"
    await response.close()
    await asyncio.wait_for(raw.gone.wait(), PATIENCE)


async def test_a_reader_that_pauses_slows_the_server_down(listen: Any, client: WebClient) -> None:
    written = 0

    async def talk(line: Any) -> None:
        nonlocal written
        await line.request()
        await line.write(HEAD + b"\r\n")
        for piece in repeat(b"x" * 65_536, 800):  # more than any buffer on the way holds
            await line.write(piece)
            written += len(piece)

    raw = await listen(talk)
    response = await client.send(Request("GET", raw.origin, "/"))
    for _ in range(200):
        await asyncio.sleep(0)
    assert written < 800 * 65_536
    assert sum([len(chunk) async for chunk in response.chunks()]) == 800 * 65_536


# --- compression


def compressed(data: bytes, wbits: int) -> bytes:
    packer = zlib.compressobj(wbits=wbits)
    return packer.compress(data) + packer.flush()


TEXT = b"some text, and more of it. " * 5_000
CODINGS = {
    "gzip": ("gzip", gzip.compress(TEXT)),
    "x-gzip": ("X-GZip", gzip.compress(TEXT)),
    "two members": ("gzip", gzip.compress(TEXT[:70_000]) + gzip.compress(TEXT[70_000:])),
    "padded": ("gzip", gzip.compress(TEXT) + b"\0" * 20),
    "zlib": ("deflate", compressed(TEXT, 15)),
    "raw deflate": ("deflate", compressed(TEXT, -15)),
    "twice": ("gzip, deflate", compressed(gzip.compress(TEXT), 15)),
    "identity": ("identity", TEXT),
}


@pytest.mark.parametrize(("encoding", "packed"), CODINGS.values(), ids=CODINGS)
async def test_a_packed_body_is_unpacked(
    listen: Any, client: WebClient, words: Any, encoding: str, packed: bytes
) -> None:
    raw = await listen(words.once(words.reply(packed, Content_Encoding=encoding)))
    assert await fetched(client, raw) == TEXT


@pytest.mark.parametrize("name", [name for name in CODINGS if name != "identity"])
@given(cut=st.floats(0.01, 0.99))
def test_a_truncated_compressed_body_is_never_a_success(name: str, cut: float) -> None:
    encoding, packed = CODINGS[name]
    half = packed.rstrip(b"\0")[: max(1, int(len(packed.rstrip(b"\0")) * cut))]
    whole_members = {len(gzip.compress(TEXT[:70_000]))} if name == "two members" else set()
    decoder = decoder_for(encoding)
    assert decoder is not None
    got = b"".join(decoder.feed(half))
    if len(half) not in whole_members:
        with pytest.raises(WebError, match="it is incomplete"):
            decoder.end()
    assert TEXT.startswith(got)


@given(cuts=st.lists(st.integers(0, 2_000), max_size=8), name=st.sampled_from([*CODINGS][:-1]))
def test_where_chunks_end_does_not_matter(cuts: list[int], name: str) -> None:
    encoding, packed = CODINGS[name]
    decoder = decoder_for(encoding)
    assert decoder is not None
    places = [0, *sorted(cuts), len(packed)]
    chunks = [packed[start:end] for start, end in pairwise(places)]
    assert b"".join(piece for chunk in chunks for piece in decoder.feed(chunk)) == TEXT
    decoder.end()


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, br", "gzip, gzip, gzip", "nonsense"])
async def test_an_encoding_that_was_not_requested_is_refused(
    listen: Any, client: WebClient, words: Any, encoding: str
) -> None:
    raw = await listen(words.once(words.reply(b"\x0b\x02\x80hello\x03", Content_Encoding=encoding)))
    with pytest.raises(WebError, match="unsupported encoding") as caught:
        await fetched(client, raw)
    assert caught.value.kind == "unreadable"


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "gzip, gzip"])
async def test_a_bomb_is_refused_before_it_goes_off(listen: Any, client: WebClient, words: Any, encoding: str) -> None:
    bomb = compressed(b"\0" * 50_000_000, 15 if encoding == "deflate" else 31)
    packed = gzip.compress(bomb) if "," in encoding else bomb
    raw = await listen(words.once(words.reply(packed, Content_Encoding=encoding)))
    with pytest.raises(WebError) as caught:
        await fetched(client, raw)
    assert caught.value.kind == "too_large"
    decoder = decoder_for(encoding)
    assert decoder is not None
    assert max(map(len, decoder.feed(packed))) <= PIECE


async def test_a_response_that_never_has_content_is_refused(listen: Any, client: WebClient) -> None:
    nothing = gzip.compress(b"") * 1000

    async def endless(line: Any) -> None:
        await line.request()
        await line.write(HEAD + b"Content-Encoding: gzip\r\n\r\n")
        while True:
            await line.write(nothing)

    raw = await listen(endless)
    with pytest.raises(WebError, match="it has no content") as caught:
        await asyncio.wait_for(fetched(client, raw), PATIENCE)
    assert caught.value.kind == "unreadable"
