"""Limits of a connection before authentication: headers, time, waiting requests, other connections."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from select import select
from typing import Any, Final

import pytest
from tests.serving import Client, serve

from enfold import OperationRegistry
from enfold.surfaces.http import to_http
from enfold.surfaces.limits import Limits

ops: Final = OperationRegistry("shop")


@ops.query(inline=True)
def greet(name: str) -> str:
    return f"Hello {name}"


SMALL: Final = Limits(header_bytes=4_000, headers=20, pipelined=4, connections=8, connections_per_address=6)
HEALTH: Final = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture
def client() -> Iterator[Client]:
    with serve(to_http(ops), SMALL) as client:
        yield client


def everything(connection: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    text = b""
    try:
        while piece := connection.recv(65536):
            text += piece
    except ConnectionResetError:
        pass
    return text


def answers(connection: socket.socket, count: int) -> bytes:
    """What comes until there are so many answers."""
    text = b""
    while text.count(b'{"status":"ok"}') < count:
        piece = connection.recv(65536)
        assert piece, f"the connection ended after {text.count(b'HTTP/1.1')} answers"
        text += piece
    return text


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-long: " + b"a" * 8_000,
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-long: " + b"a" * 8_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 8_000,
        b"GET /" + b"a" * 8_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + b"x-many: 1\r\n" * 40 + b"\r\n",
        b"\r\n" * 4_000,
    ],
    ids=["a value without end", "a long value", "a path without end", "a long path", "many headers", "empty lines"],
)
def test_a_head_over_the_limit_is_a_431_and_ends_the_connection(client: Client, head: bytes) -> None:
    with client.connect() as connection:
        connection.sendall(head)
        answer = everything(connection)
    assert answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
    assert b"enfold-code: PAYLOAD_TOO_LARGE" in answer
    assert answer.endswith(b'{"error":"The head of a request is at most 4000 bytes in 20 headers"}')


def test_a_head_that_comes_in_single_bytes_is_counted_together(client: Client) -> None:
    with client.connect() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(b"GET /healthz HTTP/1.1\r\nx: ")
        try:
            for _ in range(8_000):
                connection.send(b"a")
        except OSError:
            pass  # the server has had enough
        answer = everything(connection)
    assert answer.startswith(b"HTTP/1.1 431 ") or answer == b""
    assert client.get("/healthz").status == 200


def test_a_large_body_is_not_a_large_head(client: Client) -> None:
    assert client.post("/functions/shop.greet", {"name": "x" * 300_000}).status == 200


def test_a_large_body_and_the_next_head_in_one_piece_are_two_requests(client: Client) -> None:
    body = b'{"name":"' + b"x" * 20_000 + b'"}'
    call = b"POST /functions/shop.greet HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with client.connect() as connection:
        connection.sendall(call + b"content-length: %d\r\n\r\n" % len(body) + body + HEALTH[:30])
        connection.sendall(HEALTH[30:])
        assert b"Hello xxx" in answers(connection, 1)


def test_a_head_that_does_not_arrive_in_time_is_a_408() -> None:
    limits = Limits(header_seconds=0.2)
    with serve(to_http(ops), limits) as client, client.connect() as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: local")
        assert everything(connection).startswith(b"HTTP/1.1 408 Request Timeout\r\n")


def test_a_connection_that_says_nothing_is_closed() -> None:
    with serve(to_http(ops), Limits(header_seconds=0.2)) as client, client.connect() as connection:
        assert everything(connection) == b""


def test_an_unread_body_does_not_keep_the_connection_open() -> None:
    with serve(to_http(ops), Limits(header_seconds=0.2)) as client, client.connect() as connection:
        connection.sendall(b"POST /nowhere HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9000\r\n\r\nabc")
        assert everything(connection).startswith(b"HTTP/1.1 404 ")


def test_a_large_unread_body_is_skipped_before_the_next_request(client: Client) -> None:
    with client.connect() as connection:
        connection.sendall(b"POST /nowhere HTTP/1.1\r\nhost: localhost\r\ncontent-length: 900000\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 404 ")
        connection.sendall(b"x" * 900_000 + HEALTH)
        answers(connection, 1)


def test_requests_that_wait_are_all_answered_in_their_order(client: Client) -> None:
    with client.connect() as connection:
        sender = threading.Thread(target=connection.sendall, args=(HEALTH * 2_000,))
        sender.start()
        assert answers(connection, 2_000).count(b"HTTP/1.1 200 OK") == 2_000
        sender.join(30)


def test_the_server_stops_reading_from_a_client_that_reads_no_answers() -> None:
    sent, begun, app = 0, 0, to_http(ops)

    async def counted(scope: Any, receive: Any, send: Any) -> None:
        nonlocal begun
        begun += scope["type"] == "http"
        await app(scope, receive, send)

    with serve(counted, SMALL) as client, client.connect() as connection:
        connection.setblocking(False)
        stalled = 0
        while stalled < 20:
            try:
                sent += connection.send(HEALTH * 1_000)
                stalled = 0
            except BlockingIOError:
                stalled += 1
                client.server.run_there(lambda: None)  # the server has looked at its connections once more
            assert sent < 64_000_000, "the server takes all there is"
        (protocol,) = client.server.run_there(lambda: list(client.server.server_state.connections))
        theirs = protocol.transport.get_extra_info("socket")
        unread = queued_bytes(connection, termios.TIOCOUTQ) + queued_bytes(theirs, termios.FIONREAD)
        assert sent - unread - begun * len(HEALTH) < 2_000_000, "the server keeps what it does not answer"
        assert client.get("/healthz").status == 200


def queued_bytes(connection: Any, direction: int) -> int:
    """The bytes that the kernel holds for a socket: sent and not received, or received and not read."""
    return int(struct.unpack("i", fcntl.ioctl(connection.fileno(), direction, b"\0" * 4))[0])


def test_bodies_of_waiting_requests_arrive_whole(client: Client) -> None:
    body = b'{"name":"%b"}'
    call = b"POST /functions/shop.greet HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    calls = b""
    for number in range(200):
        text = body % (b"HTTP/1.1 " * 40 + b"%d" % number)
        calls += call + b"content-length: %d\r\n\r\n" % len(text) + text
    with client.connect() as connection:
        connection.sendall(calls + HEALTH)
        text = answers(connection, 1)
    assert text.count(b"Hello HTTP/1.1") == 200
    assert b'HTTP/1.1 199"' in text


def test_a_new_connection_takes_the_place_of_one_that_says_nothing(client: Client) -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(client.connect()) for _ in range(30)]
        assert client.get("/healthz").status == 200
        assert everything(silent[0]) == b""  # the first had to go


def test_a_connection_over_the_limit_is_a_503_while_all_others_are_answered() -> None:
    begun, release = threading.Semaphore(0), asyncio.Event()
    slow = OperationRegistry("slow")

    @slow.query
    async def wait() -> str:
        begun.release()
        await release.wait()
        return "done"

    with serve(to_http(slow), Limits(connections_per_address=3)) as client, ExitStack() as stack:
        waiting = [stack.enter_context(client.connect()) for _ in range(3)]
        for connection in waiting:
            connection.sendall(b"GET /functions/slow.wait HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        assert all(begun.acquire(timeout=30) for _ in waiting)
        with client.connect() as another:
            answer = everything(another)
        client.server.run_there(release.set)
        assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b"retry-after: 1" in answer
        assert b"enfold-code: RESOURCE_EXHAUSTED" in answer
        assert all(everything(connection).startswith(b"HTTP/1.1 200 ") for connection in waiting)


def test_a_client_that_reads_nothing_of_a_large_answer_is_abandoned() -> None:
    large, begun = OperationRegistry("large"), threading.Event()

    @large.query(inline=True)
    def text() -> str:
        begun.set()
        return "x" * 20_000_000

    with serve(to_http(large), Limits(stalled_seconds=0.2)) as client, client.connect() as connection:
        connection.sendall(b"GET /functions/large.text HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert begun.wait(30)
        while client.server.run_there(lambda: len(client.server.server_state.connections)):
            pass
        assert len(everything(connection)) < 20_000_000


def test_anything_but_http_gets_a_400_in_json(client: Client) -> None:
    with client.connect() as connection:
        connection.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
        answer = everything(connection)
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n")
    assert b"enfold-code: VALIDATION_ERROR" in answer


CALL: Final = b"POST /functions/shop.greet HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
ANN: Final = CALL + b'content-length: 14\r\n\r\n{"name":"Ann"}'


@pytest.mark.parametrize(
    "rest",
    [b"xx\r\n\r\n", b" }", b"GET / HTTP/1.1\r\n" + b"x: 1\r\n" * 40 + b"\r\n", b"GET /\xff HTTP/1.1\r\n\r\n"],
    ids=["stray bytes", "a length that is too small", "a head that is too large", "a path that is no text"],
)
@pytest.mark.parametrize("count", [1, 2])
def test_garbage_after_a_complete_request_does_not_prevent_its_response(
    client: Client, count: int, rest: bytes
) -> None:
    with client.connect() as connection:
        connection.sendall(ANN * count + rest)
        answer = everything(connection)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert (answer.count(b"HTTP/1.1 "), answer.count(b'{"result":"Hello Ann"}')) == (count, count)


BAD_CHUNK: Final = CALL + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n"


@pytest.mark.parametrize("before", [b"", ANN], ids=["alone", "behind another"])
def test_a_body_that_is_broken_is_a_400(client: Client, before: bytes) -> None:
    with client.connect() as connection:
        connection.sendall(before + BAD_CHUNK)
        answer = everything(connection)
    assert answer.count(b"Hello Ann") == (1 if before else 0)
    answer = answer[answer.index(b"HTTP/1.1 400 Bad Request\r\n") :]
    assert b"enfold-code: VALIDATION_ERROR\r\n" in answer
    assert answer.endswith(b'{"error":"This is not HTTP"}')


def test_a_body_that_breaks_while_it_is_awaited_is_a_400(client: Client) -> None:
    with client.connect() as connection:
        connection.sendall(CALL + b"transfer-encoding: chunked\r\nexpect: 100-continue\r\n\r\n")
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"  # the app waits for the body now
        connection.sendall(b"zz\r\n")
        assert everything(connection).startswith(b"HTTP/1.1 400 Bad Request\r\n")


def test_a_body_that_breaks_after_its_answer_gets_no_second_one(client: Client) -> None:
    with client.connect() as connection:
        connection.sendall(b"POST /nowhere HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n")
        answer = connection.recv(65536)
        connection.sendall(b"zz\r\n")
        answer += everything(connection)
    assert (answer[:13], answer.count(b"HTTP/1.1 ")) == (b"HTTP/1.1 404 ", 1)


ticks: Final = OperationRegistry("ticks")


@ticks.subscription
async def count(to: int) -> AsyncIterator[int]:
    for number in range(to):
        yield number


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("ticks.count?to=2", b'{"result":0}\n{"result":1}\n{"complete":true}\n'),
        ("nothing", b'{"error":"Operation not found: nothing"}'),
    ],
    ids=["a stream", "an answer"],
)
def test_a_client_of_http_1_0_gets_no_chunks(path: str, body: bytes) -> None:
    with serve(to_http(ticks)) as client, client.connect() as connection:
        accept = "accept: application/x-ndjson, application/json"
        connection.sendall(f"GET /functions/{path} HTTP/1.0\r\nhost: localhost\r\n{accept}\r\n\r\n".encode())
        head, _, got = everything(connection).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert got == body


# --- what no decent client sends ----------------------------------------------------------------------------------

POST: Final = b"POST /functions/shop.greet HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
CHUNKED: Final = POST + b'transfer-encoding: chunked\r\n\r\ne\r\n{"name":"Ann"}\r\n'


@pytest.mark.parametrize("target", [b"CONNECT localhost:80", b"GET http://[::1", b"GET http://localhost"])
def test_a_target_that_is_not_a_path_is_a_400_and_leaves_no_stack_in_the_log(
    client: Client, target: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with client.connect() as connection:
        connection.sendall(target + b" HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert everything(connection).startswith(b"HTTP/1.1 400 ")
    assert caplog.messages == []


def test_trailers_are_not_headers(client: Client) -> None:
    with client.connect() as connection:
        connection.sendall(CHUNKED + b"0\r\nhost: evil.example\r\n\r\n" + HEALTH)
        assert b"Hello Ann" in answers(connection, 1)


@pytest.mark.parametrize(
    ("start", "more"),
    [(b"0\r\n", b"x-many: 1\r\n" * 200), (b"0\r\nx-long: ", b"a" * 2_000), (b"e;", b"a" * 2_000)],
    ids=["many trailers", "a trailer without end", "an extension without end"],
)
def test_trailers_have_the_limits_of_headers(client: Client, start: bytes, more: bytes) -> None:
    with client.connect() as connection:
        connection.sendall(CHUNKED + start)
        try:
            while not select([connection], [], [], 0)[0]:
                connection.sendall(more)
        except OSError:
            pass  # the server has had enough
        answer = everything(connection)
    assert answer.startswith(b"HTTP/1.1 400 ") or answer == b""
    assert client.get("/healthz").status == 200


def test_a_request_after_one_that_wanted_another_protocol_is_answered(client: Client) -> None:
    upgrade = HEALTH.replace(b"\r\n\r\n", b"\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n")
    with client.connect() as connection:
        connection.sendall(upgrade * 2 + HEALTH)
        answers(connection, 3)


def test_a_client_of_http_1_0_gets_no_interim_response(client: Client) -> None:
    with client.connect() as connection:
        whole = POST.replace(b"1.1", b"1.0") + b"expect: 100-continue\r\ncontent-length: 14\r\n\r\n"
        connection.sendall(whole + b'{"name":"Ann"}')
        assert everything(connection).startswith(b"HTTP/1.1 200 ")
