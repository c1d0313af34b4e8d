"""Where one request ends and the next begins: bytes hidden in a body are never a request, with and without a reverse proxy."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest
from tests.serving import Client, is_listening, serve
from tests.waiting import wait_for

from enfold import OperationRegistry
from enfold.surfaces.http import to_http

PATH: Final = "/functions/shop.pay"
HIDDEN: Final = b"POST /functions/shop.pay HTTP/1.1\r\nhost: localhost\r\nx-hidden: 1\r\ncontent-length: 2\r\n\r\n{}"
HEALTH: Final = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"

START: Final = b"POST /functions/shop.greet HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
LENGTH: Final = b"content-length: %d\r\n" % len(HIDDEN)
CHUNKED: Final = b"transfer-encoding: chunked\r\n"
CHUNKS: Final = b"%x\r\n%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)
UPGRADE: Final = b"connection: upgrade\r\nupgrade: h2c\r\n"
CONNECT: Final = b"CONNECT /functions/shop.greet HTTP/1.1\r\nhost: localhost\r\n"


def _post(headers: bytes, body: bytes = HIDDEN) -> bytes:
    return START + headers + b"\r\n" + body


# Each holds a request where a careful server sees a body or an error.
FAMILY: Final = {
    "an upgrade with a length": _post(UPGRADE + LENGTH),
    "an upgrade with chunks": _post(UPGRADE + CHUNKED, CHUNKS),
    "an upgrade to a WebSocket": _post(b"connection: keep-alive, Upgrade\r\nupgrade: websocket\r\n" + LENGTH),
    "an upgrade of OPTIONS": _post(UPGRADE + LENGTH).replace(b"POST /functions/shop.greet", b"OPTIONS /healthz", 1),
    "an upgrade of GET": _post(UPGRADE + LENGTH).replace(b"POST /functions/shop.greet", b"GET /healthz", 1),
    "an upgrade by HTTP/1.0": _post(UPGRADE + LENGTH).replace(b"HTTP/1.1", b"HTTP/1.0", 1),
    "an upgrade with many zeros": _post(UPGRADE + b"content-length: 000%d\r\n" % len(HIDDEN)),
    "Connection: upgrade alone": _post(b"connection: upgrade\r\n" + LENGTH),
    "Upgrade alone": _post(b"upgrade: h2c\r\n" + LENGTH),
    "CONNECT": CONNECT + b"\r\n" + HIDDEN,
    "CONNECT with a length": CONNECT + LENGTH + b"\r\n" + HIDDEN,
    "CONNECT with chunks": CONNECT + CHUNKED + b"\r\n" + CHUNKS,
    "CONNECT to a URL": CONNECT.replace(b" /", b" http://localhost/") + LENGTH + b"\r\n" + HIDDEN,
    "CONNECT to an authority": CONNECT.replace(b"/functions/shop.greet", b"localhost:80") + LENGTH + b"\r\n" + HIDDEN,
    "HTTP/2 without an upgrade": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + HIDDEN,
    "GET with a length": b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + LENGTH + b"\r\n" + HIDDEN,
    "HEAD with a length": b"HEAD /healthz HTTP/1.1\r\nhost: localhost\r\n" + LENGTH + b"\r\n" + HIDDEN,
    "GET with chunks": b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + CHUNKED + b"\r\n" + CHUNKS,
    "an expectation": _post(b"expect: 100-continue\r\n" + LENGTH),
    "the length twice": _post(LENGTH * 2),
    "two lengths": _post(b"content-length: 0\r\n" + LENGTH),
    "two lengths, the longer first": _post(LENGTH + b"content-length: 0\r\n"),
    "a list of lengths": _post(b"content-length: 0, %d\r\n" % len(HIDDEN)),
    "a length with a sign": _post(b"content-length: +0\r\n"),
    "a negative length": _post(b"content-length: -1\r\n"),
    "a hexadecimal length": _post(b"content-length: 0x0\r\n"),
    "an empty length": _post(b"content-length:\r\n"),
    "a length beyond 64 bits": _post(b"content-length: 18446744073709551616\r\n"),
    "a space before the colon of the length": _post(b"content-length : 0\r\n"),
    "a length with an underscore": _post(b"content_length: 0\r\n" + LENGTH),
    "a folded length": _post(b"content-length:\r\n 0\r\n"),
    "a length, then chunks": _post(LENGTH + CHUNKED, b"0\r\n\r\n" + HIDDEN),
    "chunks, then a length": _post(CHUNKED + b"content-length: 0\r\n", CHUNKS),
    "chunks twice": _post(CHUNKED * 2, CHUNKS),
    "chunks, then identity": _post(CHUNKED + b"transfer-encoding: identity\r\n", CHUNKS),
    "identity with a length": _post(b"transfer-encoding: identity\r\n" + LENGTH),
    "gzip after chunks": _post(b"transfer-encoding: chunked, gzip\r\n", CHUNKS),
    "gzip before chunks": _post(b"transfer-encoding: gzip, chunked\r\n", CHUNKS),
    "an unknown coding": _post(b"transfer-encoding: xchunked\r\n" + LENGTH),
    "a quoted coding": _post(b'transfer-encoding: "chunked"\r\n' + LENGTH),
    "a coding after a tab": _post(b"transfer-encoding:\tchunked\r\n", CHUNKS),
    "a coding after a vertical tab": _post(b"transfer-encoding:\x0bchunked\r\n" + LENGTH),
    "a coding in capitals": _post(b"Transfer-Encoding: ChUnKeD\r\n", CHUNKS),
    "a folded coding": _post(b"transfer-encoding:\r\n chunked\r\n" + LENGTH),
    "a space before the colon of the coding": _post(b"transfer-encoding : chunked\r\n" + LENGTH),
    "a space before the coding": _post(b"x: y\r\n transfer-encoding: chunked\r\n" + LENGTH),
    "chunks by HTTP/1.0": _post(CHUNKED, CHUNKS).replace(b"HTTP/1.1", b"HTTP/1.0", 1),
    "lines that end with LF": (START + LENGTH + b"\r\n").replace(b"\r\n", b"\n") + HIDDEN,
    "a bare CR in a value": _post(b"x: y\rcontent-length: 0\r\n" + LENGTH),
    "a bare LF in a value": _post(b"x: y\ncontent-length: 0\r\n" + LENGTH),
    "a NUL in a value": _post(b"x: y\0z\r\n" + LENGTH),
    "an extension of a chunk": _post(CHUNKED, b"%x;a=b\r\n%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)),
    "an extension that ends with LF": _post(CHUNKED, b"2;\n{}\r\n0\r\n\r\n" + HIDDEN),
    "an extension with a CR": _post(CHUNKED, b"%x;a\rb\r\n%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)),
    "chunks that end with LF": _post(CHUNKED, b"%x\n%b\n0\n\n" % (len(HIDDEN), HIDDEN)),
    "a chunk size with 0x": _post(CHUNKED, b"0x0\r\n\r\n" + HIDDEN),
    "a chunk size with a sign": _post(CHUNKED, b"-1\r\n{}\r\n0\r\n\r\n" + HIDDEN),
    "a chunk size with a space": _post(CHUNKED, b"%x \r\n%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)),
    "a chunk size beyond 64 bits": _post(CHUNKED, b"10000000000000000\r\n\r\n0\r\n\r\n" + HIDDEN),
    "a chunk longer than its size": _post(CHUNKED, b"2\r\n{}XX0\r\n\r\n" + HIDDEN),
    "a chunk without its end": _post(CHUNKED, b"2\r\n{}0\r\n\r\n" + HIDDEN),
    "trailers that frame": _post(CHUNKED, b"2\r\n{}\r\n0\r\ncontent-length: %d\r\n\r\n" % len(HIDDEN)),
    "a URL as target": _post(LENGTH).replace(b"/functions", b"http://localhost/functions", 1),
    "a URL of another host as target": _post(LENGTH).replace(b"/functions", b"http://evil.example/functions", 1),
    "HTTP/0.9": b"GET /healthz\r\n\r\n" + HIDDEN,
    "HTTP/1.2": _post(LENGTH).replace(b"HTTP/1.1", b"HTTP/1.2", 1),
    "after Connection: close": b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n" + HIDDEN,
}

ops: Final = OperationRegistry("shop")


@ops.query(inline=True)
def greet(name: str = "") -> str:
    return f"Hello {name}"


@ops.mutation(inline=True)
def pay() -> str:
    return "paid"


Seen: TypeAlias = list[dict[bytes, bytes]]  # the headers of requests that were not what a proxy has forwarded


@pytest.fixture(scope="module")
def seen() -> Seen:
    return []


@pytest.fixture(scope="module")
def server(seen: Seen) -> Iterator[Client]:
    app = to_http(ops)

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == PATH:
            seen.append(dict(scope["headers"]))
        await app(scope, receive, send)

    with serve(watched) as client:
        yield client


def _said(port: int, *pieces: bytes, until: bytes = b"") -> bytes:
    """What a server says to bytes, until that word, or until it closes the connection."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        try:
            for piece in pieces:
                connection.sendall(piece)
            while (piece := connection.recv(65536)) and (answer := answer + piece):
                answer = answer.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
                if until and until in answer:
                    break
        except ConnectionError:
            pass  # it has closed the connection before all was sent
    return answer


@pytest.mark.parametrize("request_bytes", FAMILY.values(), ids=FAMILY.keys())
@pytest.mark.parametrize("is_split", [False, True], ids=["at once", "the body later"])
def test_a_request_hidden_in_a_body_is_not_run(
    server: Client, seen: Seen, request_bytes: bytes, is_split: bool
) -> None:
    seen.clear()
    head, mark, body = request_bytes.partition(b"\r\n\r\n")
    _said(server.port, *([head + mark, body] if is_split else [request_bytes]), until=b"HTTP/1.1 ")
    assert seen == []
    assert server.get("/healthz").status == 200
    assert seen == []


@pytest.mark.parametrize("name", [name for name in FAMILY if name.startswith(("an upgrade", "CONNECT"))])
def test_a_body_that_cannot_be_framed_is_a_400_and_ends_the_connection(server: Client, name: str) -> None:
    answer = _said(server.port, FAMILY[name] + HEALTH)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1


def test_a_target_that_names_another_host_than_the_host_header_is_a_400(server: Client) -> None:
    assert _said(server.port, FAMILY["a URL of another host as target"]).startswith(b"HTTP/1.1 400 ")
    same = HEALTH.replace(b"/healthz", b"http://LOCALHOST/healthz")
    assert _said(server.port, same).startswith(b"HTTP/1.1 200 ")


# --- through a proxy: it marks what it forwards, and what arrives without that mark was smuggled --------------------

NGINX: Final = """
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/errors;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_header_timeout 2s;
    client_body_timeout 2s;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream enfold {{ server 127.0.0.1:{upstream}; keepalive 1; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://enfold;
            proxy_http_version 1.1;
            proxy_request_buffering {buffering};
            proxy_set_header Host localhost;
            proxy_set_header X-Forwarded-By proxy;
            proxy_set_header Upgrade {upgrade};
            proxy_set_header Connection {connection};
        }}
    }}
}}
"""
HAPROXY: Final = """
global
    maxconn 64
defaults
    mode http
    timeout connect 10s
    timeout client 2s
    timeout server 10s
    http-reuse always
frontend front
    bind 127.0.0.1:{port}
    http-request add-header x-forwarded-by proxy
    default_backend enfold
backend enfold
    server one 127.0.0.1:{upstream}
"""
PROXIES: Final = {
    "nginx": ("nginx", NGINX, {"buffering": "on", "upgrade": '""', "connection": '""'}),
    "nginx that forwards upgrades": (
        "nginx",
        NGINX,
        {"buffering": "off", "upgrade": "$http_upgrade", "connection": "$http_connection"},
    ),
    "haproxy": ("haproxy", HAPROXY, {}),
    "haproxy that accepts what is malformed": (
        "haproxy",
        HAPROXY.replace("frontend front\n", "frontend front\n    option accept-invalid-http-request\n"),
        {},
    ),
}


@contextmanager
def _running(command: list[str], port: int, log: Path) -> Iterator[None]:
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            wait_for(lambda: process.poll() is not None or is_listening(port))
            assert process.poll() is None, log.read_text()
            yield
        finally:
            process.terminate()
            process.wait(30)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def proxies(
    server: Client, program: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], int]]:
    """The port of a proxy by its name; each is started once."""
    ports: dict[str, int] = {}
    with ExitStack() as stack:

        def start(name: str) -> int:
            if name not in ports:
                kind, template, settings = PROXIES[name]
                folder, port = tmp_path_factory.mktemp(kind), _free_port()
                path = folder / "configuration"
                path.write_text(template.format(folder=folder, port=port, upstream=server.port, **settings))
                options = ["-e", str(folder / "errors"), "-c"] if kind == "nginx" else ["-db", "-f"]
                stack.enter_context(_running([program(kind), *options, str(path)], port, folder / "output"))
                ports[name] = port
            return ports[name]

        yield start


@pytest.mark.parametrize("request_bytes", FAMILY.values(), ids=FAMILY.keys())
@pytest.mark.parametrize("proxy", PROXIES)
def test_nothing_is_smuggled_past_a_reverse_proxy(
    proxies: Callable[[str], int], server: Client, seen: Seen, proxy: str, request_bytes: bytes
) -> None:
    port = proxies(proxy)
    seen.clear()
    _said(port, request_bytes, until=b"HTTP/1.1 ")
    # The proxy sends it on the connection that it has kept open: it must get its own answer.
    assert b'{"status":"ok"}' in _said(port, HEALTH)
    assert [headers for headers in seen if b"x-forwarded-by" not in headers] == []
    assert server.get("/healthz").status == 200
    seen.clear()
