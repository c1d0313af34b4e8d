"""What goes over the wire, byte by byte: targets, headers, bodies; and what is never sent."""

from __future__ import annotations

import asyncio
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from enfold.http_client import Request, WebError
from enfold.http_client.client import WebClient
from enfold.http_client.urls import read_endpoint, split_url


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/a/../b/./c",
        "/%2e%2E/%2F/x",
        "//double//slash",
        "/a?x=%20+&y=[1]&z={}|^`",
        "/q?a=1&&b=%zz&c=",
        "/with;p=1,2/'quoted'\"",
        "/?",
        "/a?b?c",
        "/%C3%A4%",
    ],
)
async def test_a_target_goes_over_the_wire_as_it_was_computed(
    listen: Any, client: WebClient, words: Any, target: str
) -> None:
    raw = await listen(words.answering(words.reply()))
    await (await client.send(Request("GET", raw.origin, target))).close()
    assert raw.requests[0].split(b"\r\n")[0] == f"GET {target} HTTP/1.1".encode()


async def test_headers_and_body_go_over_the_wire_exactly(listen: Any, client: WebClient, words: Any) -> None:
    raw = await listen(words.answering(words.reply()))
    headers = [("X-One", "1"), ("x-two", "ü, two"), ("X-One", "again"), ("Accept", "a/b"), ("Content-Length", "9")]
    await (await client.send(Request("POST", raw.origin, "/x", headers, b"body"))).close()
    assert raw.requests[0] == (
        b"POST /x HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nX-One: 1\r\nx-two: \xc3\xbc, two\r\nX-One: again\r\nAccept: a/b\r\n"
        b"user-agent: enfold\r\naccept-encoding: gzip, deflate\r\nContent-Length: 4\r\n\r\nbody" % raw.port
    )


@pytest.mark.parametrize(
    ("method", "content", "length"),
    [("GET", None, None), ("POST", None, b"0"), ("DELETE", None, None), ("DELETE", b"x", b"1"), ("GET", b"", b"0")],
)
async def test_a_length_is_said_where_there_is_a_body_or_could_be(
    listen: Any, client: WebClient, words: Any, method: str, content: bytes | None, length: bytes | None
) -> None:
    raw = await listen(words.answering(words.reply()))
    await (await client.send(Request(method, raw.origin, "/", [], content))).close()
    _, found, rest = raw.requests[0].partition(b"Content-Length: ")
    assert (rest.split(b"\r\n")[0] if found else None) == length


@pytest.mark.parametrize(
    "request_",
    [
        Request("GET", "http://h", "/a b"),
        Request("GET", "http://h", "/a\r\nX: 1"),
        Request("GET", "http://h", "/a\tb"),
        Request("GET", "http://h", "/ä"),
        Request("GET", "http://h", "http://other/"),
        Request("GET / HTTP/1.1\r\nX:", "http://h", "/"),
        Request("", "http://h", "/"),
        Request("GET", "http://h", "/", [("X", "a\r\nY: b")]),
        Request("GET", "http://h", "/", [("X", "a\nb")]),
        Request("GET", "http://h", "/", [("X", "a\0b")]),
        Request("GET", "http://h", "/", [("X: 1\r\nY", "b")]),
        Request("GET", "http://h", "/", [("X Y", "b")]),
        Request("GET", "http://h", "/", [("", "b")]),
        Request("GET", "http://h", "/", [("Transfer-Encoding", "chunked")]),
        Request("GET", "http://h", "/", [("Connection", "upgrade")]),
        Request("GET", "http://h", "/", [("Expect", "100-continue")]),
        Request("GET", "http://h", "/", [("Host", "a"), ("host", "b")]),
        Request("GET", "ftp://h", "/"),
        Request("GET", "http://", "/"),
        Request("GET", "http://h:99999", "/"),
        Request("GET", "http://a b", "/"),
        Request("GET", "http://h\r\nX: 1", "/"),
    ],
    ids=repr,
)
async def test_an_unsendable_request_is_not_sent(client: WebClient, request_: Request) -> None:
    with pytest.raises(WebError) as caught:
        await client.send(request_)
    assert (caught.value.kind, caught.value.was_sent) == ("unsendable", False)


async def test_a_user_in_the_url_is_sent_as_a_login_and_not_in_the_target(
    listen: Any, client: WebClient, words: Any
) -> None:
    raw = await listen(words.answering(words.reply()))
    origin = raw.origin.replace("://", "://me:p%40ss@")
    await (await client.send(Request("GET", origin, "/x"))).close()
    assert b"Authorization: Basic bWU6cEBzcw==" in raw.requests[0]
    assert b"me:" not in raw.requests[0]


async def test_an_ipv6_address_stands_in_brackets(listen: Any, client: WebClient, words: Any) -> None:
    try:
        raw = await listen(words.answering(words.reply(b"six")), "::1")
    except OSError:
        pytest.skip("this machine has no IPv6")
    response = await client.send(Request("GET", raw.origin, "/"))
    assert (await response.body(10), response.peer) == (b"six", "::1")
    assert b"Host: [::1]:%d" % raw.port in raw.requests[0]


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("https://BÜCHER.example", "xn--bcher-kva.example"),
        ("https://127。0。0。1", "127.0.0.1"),
        ("https://straße.de", "xn--strae-oqa.de"),
        ("https://ｅｘample.org:444", "example.org"),
    ],
)
def test_a_host_has_one_spelling(origin: str, host: str) -> None:
    assert read_endpoint(origin).host == host


def test_a_url_keeps_its_spelling_but_for_what_cannot_be_sent() -> None:
    assert split_url("http://h/a/%2e/b?x=[1]#f") == ("http://h", "/a/%2e/b?x=[1]")
    assert split_url("http://h/ä b?ü") == ("http://h", "/%C3%A4%20b?%C3%BC")
    assert split_url("http://h") == ("http://h", "/")


async def test_a_connection_is_used_again_and_nothing_of_an_answer_is_kept(
    listen: Any, client: WebClient, words: Any
) -> None:
    raw = await listen(words.answering(words.reply(b"x", Set_Cookie="sid=1")))
    for _ in range(3):
        response = await client.send(Request("GET", raw.origin, "/"))
        assert await response.body(10) == b"x"
        await response.close()
    assert raw.connections == 1
    assert all(b"ookie" not in each for each in raw.requests)


@pytest.mark.parametrize(
    ("hint", "connections"),
    [("timeout=1", 2), ("max=9, Timeout=1", 2), ("timeout=0", 2), ("timeout=3600", 1), ("timeout=x", 1), ("max=9", 1)],
)
async def test_a_connection_is_abandoned_before_the_server_says_that_it_ends_it(
    listen: Any, client: WebClient, words: Any, hint: str, connections: int
) -> None:
    raw = await listen(words.answering(words.reply(b"x", Keep_Alive=hint)))
    for _ in range(2):
        await (await client.send(Request("POST", raw.origin, "/"))).body(10)
    assert raw.connections == connections


class Stepping(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1")
        self.end_headers()
        self.wfile.write(b"x")

    def log_message(self, *_: Any) -> None:
        """Tests are silent."""


def test_one_client_serves_several_loops_at_once() -> None:
    """A source may be called from a program's loop, and from threads with loops of their own."""
    client, bodies = WebClient(), []
    everybody = threading.Barrier(3)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Stepping)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()

    async def work() -> None:
        try:
            for _ in range(50):
                response = await client.send(Request("GET", f"http://127.0.0.1:{server.server_port}", "/"))
                bodies.append(await response.body(10))
        finally:
            await asyncio.to_thread(everybody.wait, 30)
            await client.aclose()
            await asyncio.to_thread(everybody.wait, 30)  # whose loops close their connections

    threads = [threading.Thread(target=lambda: asyncio.run(work())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    server.shutdown()
    serving.join()
    server.server_close()
    assert bodies == [b"x"] * 150
