import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from enfold import OperationRegistry
from enfold.schema.json_pointer import follow
from enfold.surfaces.cgi import to_cgi

ROOT = Path(__file__).parent.parent.parent

APP = """
import asyncio
from collections.abc import AsyncIterator
from enfold import CallError, Context, OperationRegistry, TextContent, mcp_envelope

ops = OperationRegistry("functions")

@ops.query(name="Add")
def add(x: int, y: int) -> int:
    return x + y

@ops.mutation
async def change(text: str) -> str:
    await asyncio.sleep(0)
    return text.upper()

@ops.query
def many(ids: list[int], where: dict[str, int] | None = None) -> dict:
    return {"ids": ids, "where": where}

@ops.query
def who(context: Context) -> str | None:
    return context.identity.id if context.identity else None

@ops.query(access={"required_scopes": ["admin"]})
def secret() -> int:
    return 1

@ops.query
def broken() -> None:
    raise ValueError("no such disk")

@ops.query
def sold_out() -> None:
    raise CallError("SOLD_OUT", "None left")

@ops.query
async def failed():
    return mcp_envelope(None, is_error=True, content=[TextContent(text="disk full")])

@ops.query(timeout=0.05)
async def slow() -> None:
    await asyncio.Event().wait()

@ops.query
def proxy() -> str | None:
    import os
    return os.environ.get("HTTP_PROXY")

@ops.subscription
async def count(to: int) -> AsyncIterator[int]:
    for number in range(to):
        yield number

@ops.query
def chatty(times: int = 1) -> int:
    print("debugging " * times)
    return times

@ops.query
def loud() -> int:
    import os
    import subprocess
    import sys
    os.write(1, b"straight to the file\\n")
    subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
    print("from Python", file=sys.__stdout__, flush=True)
    return 1

@ops.query
def interrupted() -> None:
    raise KeyboardInterrupt

@ops.query
def half() -> str:
    return "an unpaired surrogate: \\ud800"

@ops.subscription
async def halves() -> AsyncIterator[str]:
    yield "\\ud800"
"""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cgi") / "app.py"
    path.write_text(APP)
    return path


class Reply:
    def __init__(self, output: bytes) -> None:
        head, _, body = output.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        self.status = self.headers["status"]
        self.body: Any = json.loads(body) if body.strip() else None


def cgi(app: Path, path: str, body: bytes = b"", **variables: str) -> Reply:
    """The program as a web server runs it: a process of its own."""
    environ = {**os.environ, "PATH_INFO": path, "REQUEST_METHOD": "POST", **variables}
    done = subprocess.run(
        [sys.executable, "-m", "enfold", "cgi", str(app)], input=body, env=environ, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return Reply(done.stdout)


# The seed's tests, with its own messages.


@pytest.mark.parametrize("path", ["/Add", "/functions/Add", "/functions/functions.Add", "/functions.Add"])
def test_a_call_answers_with_its_result(app: Path, path: str) -> None:
    reply = cgi(app, path, b'{"x": 7, "y": 3}')
    assert (reply.status, reply.headers["content-type"], reply.body) == ("200 OK", "application/json", {"result": 10})


def test_text_arguments_are_converted(app: Path) -> None:
    assert cgi(app, "/Add", b'{"x": "7", "y": "3"}').body == {"result": 10}


def test_an_unknown_function_is_named(app: Path) -> None:
    reply = cgi(app, "/NonExistent", b'{"x": 10, "y": 20}')
    assert (reply.status, reply.headers["content-type"]) == ("404 Not Found", "application/json")
    assert reply.body == {"error": "Function not found: NonExistent"}


def test_a_body_that_is_not_json_is_reported(app: Path) -> None:
    reply = cgi(app, "/Add", b"not json")
    assert reply.status == "400 Bad Request"
    assert reply.body["error"].startswith("Invalid JSON: ")
    assert cgi(app, "/Add", b"[1]").body == {"error": "Invalid JSON: the body must be an object"}


def test_a_failing_function_is_reported_with_the_seeds_prefix(app: Path) -> None:
    assert cgi(app, "/broken").body == {"error": "Error: no such disk"}
    assert cgi(app, "/broken").status == "500 Internal Server Error"
    assert cgi(app, "/sold_out").body == {"error": "Error: None left"}


# What else the contract says.


def test_the_length_bounds_the_body_and_without_it_the_end_does(app: Path) -> None:
    assert cgi(app, "/Add", b'{"x": 1, "y": 2}and more', CONTENT_LENGTH="16").body == {"result": 3}
    assert cgi(app, "/Add", b'{"x": 1, "y": 2}', CONTENT_LENGTH="").body == {"result": 3}
    assert cgi(app, "/Add", b"{}", CONTENT_LENGTH="many").status == "400 Bad Request"
    assert cgi(app, "/who", b"").body == {"result": None}


def test_a_body_over_the_limit_is_refused_before_it_is_read(app: Path) -> None:
    reply = cgi(app, "/Add", b"{}", CONTENT_LENGTH="999999999999")
    assert (reply.status, reply.headers["enfold-code"]) == ("413 Content Too Large", "PAYLOAD_TOO_LARGE")


def test_only_json_bodies_are_read(app: Path) -> None:
    assert cgi(app, "/Add", b"x=1", CONTENT_TYPE="application/x-www-form-urlencoded").status.startswith("415")
    assert cgi(app, "/Add", b'{"x":1,"y":1}', CONTENT_TYPE="application/json; charset=utf-8").body == {"result": 2}


def test_queries_come_by_get_and_mutations_do_not(app: Path) -> None:
    assert cgi(app, "/Add", REQUEST_METHOD="GET", QUERY_STRING="x=1&y=2").body == {"result": 3}
    reply = cgi(app, "/many", REQUEST_METHOD="GET", QUERY_STRING="ids=1&ids=2&where=%7B%22a%22%3A1%7D")
    assert reply.body == {"result": {"ids": [1, 2], "where": {"a": 1}}}
    refused = cgi(app, "/change", REQUEST_METHOD="GET", QUERY_STRING="text=a")
    assert (refused.status, refused.headers["allow"]) == ("405 Method Not Allowed", "POST, OPTIONS")
    assert cgi(app, "/Add", REQUEST_METHOD="DELETE").headers["allow"] == "GET, HEAD, POST, OPTIONS"


def test_head_answers_without_a_body(app: Path) -> None:
    reply = cgi(app, "/Add", REQUEST_METHOD="HEAD", QUERY_STRING="x=1&y=2")
    assert (reply.status, reply.body) == ("200 OK", None)


def test_an_async_handler_runs_in_its_own_loop(app: Path) -> None:
    assert cgi(app, "/change", b'{"text": "a"}').body == {"result": "A"}
    assert cgi(app, "/slow").status == "504 Gateway Timeout"


def test_a_stream_is_collected_and_cut_at_its_limit(app: Path) -> None:
    assert cgi(app, "/count", b'{"to": 3}').body == {"result": [0, 1, 2]}
    cut = cgi(app, "/count", b'{"to": 1500}')
    assert (len(cut.body["result"]), cut.headers["enfold-truncated"]) == (1000, "true")


def test_an_mcp_error_result_is_502_in_format_result_and_200_in_format_envelope(app: Path) -> None:
    reply = cgi(app, "/failed")
    assert (reply.status, reply.body) == ("502 Bad Gateway", {"error": "disk full"})
    reply = cgi(app, "/failed", HTTP_ENFOLD_FORMAT="envelope")
    assert (reply.status, reply.body["meta"]["isError"]) == ("200 OK", True)


def test_the_format_is_chosen_by_header_or_query_string(app: Path) -> None:
    assert cgi(app, "/Add", b'{"x":1,"y":2}', HTTP_ENFOLD_FORMAT="envelope").body["data"] == 3
    assert cgi(app, "/Add", b'{"x":1,"y":2}', QUERY_STRING="format=envelope").body["data"] == 3
    assert cgi(app, "/Add", b"{}", HTTP_ENFOLD_FORMAT="envelope").body["error"]["code"] == "VALIDATION_ERROR"
    assert cgi(app, "/Add", b"{}", HTTP_ENFOLD_FORMAT="xml").status == "400 Bad Request"


def test_the_web_server_says_who_asks_and_a_header_never_does(app: Path) -> None:
    assert cgi(app, "/who", REMOTE_USER="ann").body == {"result": "ann"}
    for reserved in ("owner", "local"):  # whose tasks and keys are the shell's and the owner's
        assert cgi(app, "/who", REMOTE_USER=reserved).status == "401 Unauthorized"
    assert cgi(app, "/who", HTTP_REMOTE_USER="eve", HTTP_AUTHORIZATION="Bearer x").body == {"result": None}
    assert cgi(app, "/secret").status == "401 Unauthorized"
    assert cgi(app, "/secret", REMOTE_USER="ann").status == "404 Not Found"
    with pytest.raises(ValueError, match="HTTP_X_USER is set by the client"):
        to_cgi(OperationRegistry(), identity_variable="HTTP_X_USER", environ={}, stdin=BytesIO(), stdout=BytesIO())


def test_a_clients_proxy_header_is_dropped(app: Path) -> None:
    assert cgi(app, "/proxy", HTTP_PROXY="http://evil").body == {"result": None}


def test_the_request_id_comes_back_where_it_is_a_harmless_one(app: Path) -> None:
    assert cgi(app, "/Add", b"{}", HTTP_X_REQUEST_ID="abc-1").headers["x-request-id"] == "abc-1"
    assert len(cgi(app, "/Add", b"{}", HTTP_X_REQUEST_ID="a\tb").headers["x-request-id"]) == 32


def test_the_document_describes_what_the_caller_may_call(app: Path) -> None:
    document = cgi(app, "/openapi.json", REQUEST_METHOD="GET").body
    assert document["openapi"].startswith("3.1")
    assert "/functions/functions.Add" in document["paths"]
    assert "/functions/functions.secret" not in document["paths"]


def test_the_document_is_of_the_format_and_the_place_that_it_is_asked_at(app: Path) -> None:
    document = cgi(app, "/openapi.json", REQUEST_METHOD="GET", SCRIPT_NAME="/api", HTTP_ENFOLD_FORMAT="envelope").body
    answers = document["paths"]["/functions/functions.Add"]["get"]["responses"]
    assert document["servers"] == [{"url": "/api"}]
    reference = answers["200"]["content"]["application/json"]["schema"]["$ref"]
    assert follow(document, reference[1:])["required"] == ["data", "meta"]


@pytest.mark.parametrize("path", ["/half", "/halves"])
def test_a_result_that_has_no_json_form_is_a_failure_in_json(app: Path, path: str) -> None:
    reply = cgi(app, path)
    assert (reply.status, reply.headers["enfold-code"]) == ("500 Internal Server Error", "EXECUTION_ERROR")
    assert reply.body["error"].startswith("Error: failed to marshal response: /")


@pytest.mark.parametrize("times", [1, 10_000], ids=["a word", "more than a buffer"])
def test_output_that_a_handler_prints_is_not_in_the_response(app: Path, times: int) -> None:
    assert cgi(app, "/chatty", b'{"times": %d}' % times).body == {"result": times}


@pytest.mark.parametrize("query", ["ids=1&where=%ff", "ids=1&where=\udcff"], ids=["written", "raw"])
def test_a_query_string_that_is_not_text_is_refused(app: Path, query: str) -> None:
    reply = cgi(app, "/many", REQUEST_METHOD="GET", QUERY_STRING=query)
    assert (reply.status, reply.body) == ("400 Bad Request", {"error": "The query string cannot be read"})


@pytest.mark.parametrize(
    "text", ["print('loading')\n1 / 0\n", "print('loading')\nfrom enfold import OperationRegistry\nops = 1\n", None]
)
def test_a_program_that_cannot_start_answers_anyway(tmp_path: Path, text: str | None) -> None:
    app = tmp_path / "app.py"
    if text is not None:
        app.write_text(text)
    for gateway in ({"GATEWAY_INTERFACE": "CGI/1.1"}, {}):  # not every web server names itself
        reply = cgi(app, "/Add", b"{}", **gateway)
        assert (reply.status, reply.headers["content-type"]) == ("500 Internal Server Error", "application/json")
        assert reply.body == {"error": "Error: The server failed to start"}


def test_a_failure_while_a_response_is_written_is_reported_without_a_traceback() -> None:
    def identify(name: str) -> None:
        raise OSError(f"no directory of users for {name}")

    out = BytesIO()
    environ = {"PATH_INFO": "/add", "REQUEST_METHOD": "POST", "REMOTE_USER": "ann"}
    assert to_cgi(OperationRegistry(), identify=identify, environ=environ, stdin=BytesIO(), stdout=out) == 0
    assert Reply(out.getvalue()).body == {"error": "Error: The server failed to respond"}


# Under a real web server.

LIGHTTPD = """
server.document-root = "{folder}"
server.bind = "127.0.0.1"
server.port = {port}
server.modules = ("mod_cgi", "mod_alias")
server.errorlog = "{folder}/errors"
alias.url = ("/api" => "{folder}/api.cgi")
$HTTP["url"] =~ "^/api" {{ cgi.assign = ("" => "{folder}/run.sh") }}
"""


@pytest.fixture(scope="module")
def server(
    app: Path, tmp_path_factory: pytest.TempPathFactory, program: Callable[[str], str]
) -> Iterator[http.client.HTTPConnection]:
    lighttpd = program("lighttpd")
    folder = tmp_path_factory.mktemp("lighttpd")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "run.sh").write_text(f"#!/bin/sh\nexec {sys.executable} -m enfold cgi {app}\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "api.cgi").write_text("")
    (folder / "conf").write_text(LIGHTTPD.format(folder=folder, port=port))
    modules = Path(lighttpd).parent.parent / "lib" / "lighttpd"
    process = subprocess.Popen([lighttpd, "-D", "-f", str(folder / "conf"), "-m", str(modules)])
    connection = _connected(port)
    try:
        yield connection
    finally:
        connection.close()
        process.terminate()
        process.wait()


def _connected(port: int) -> http.client.HTTPConnection:
    for _ in range(200):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            connection.connect()
        except ConnectionRefusedError:
            time.sleep(0.02)  # until the server listens: it has no other way to say so
        else:
            return connection
    raise TimeoutError("lighttpd does not listen")


def _ask(connection: http.client.HTTPConnection, method: str, path: str, body: str | None = None) -> tuple[int, Any]:
    connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
    response = connection.getresponse()
    text = response.read()
    assert response.getheader("Content-Type") == "application/json"
    return response.status, json.loads(text)


def test_it_works_under_a_real_web_server(server: http.client.HTTPConnection) -> None:
    assert _ask(server, "POST", "/api/functions/Add", '{"x": 7, "y": 3}') == (200, {"result": 10})
    assert _ask(server, "GET", "/api/Add?x=1&y=2") == (200, {"result": 3})
    assert _ask(server, "POST", "/api/Nope", "{}") == (404, {"error": "Function not found: Nope"})
    assert _ask(server, "POST", "/api/Add", "{")[0] == 400
    assert _ask(server, "GET", "/api/openapi.json")[0] == 200


# what the seed's own tests and hostile handlers do


def test_nothing_that_a_handler_or_its_child_writes_comes_before_the_status(app: Path) -> None:
    environ = {**os.environ, "PATH_INFO": "/loud", "REQUEST_METHOD": "POST"}
    done = subprocess.run(
        [sys.executable, "-m", "enfold", "cgi", str(app)], input=b"", env=environ, capture_output=True, check=False
    )
    assert done.stdout.startswith(b"Status: 200 OK\r\nContent-Type: application/json\r\n")
    assert Reply(done.stdout).body == {"result": 1}
    assert all(text in done.stderr for text in (b"straight to the file", b"from a child", b"from Python"))


def test_a_request_without_a_method_or_a_content_type_is_a_post_of_json(app: Path) -> None:
    environ = {key: value for key, value in os.environ.items() if key not in ("REQUEST_METHOD", "CONTENT_TYPE")}
    done = subprocess.run(
        [sys.executable, "-m", "enfold", "cgi", str(app)],
        input=b'{"x": 2, "y": 3}',
        env={**environ, "PATH_INFO": "/Add"},
        capture_output=True,
        check=False,
    )
    assert Reply(done.stdout).body == {"result": 5}


@pytest.mark.parametrize(
    ("origin", "status"),
    [("https://evil.example", "403 Forbidden"), ("null", "403 Forbidden"), ("https://shop.example", "200 OK")],
)
def test_a_page_of_another_site_is_refused(app: Path, origin: str, status: str) -> None:
    reply = cgi(app, "/Add", b'{"x": 1, "y": 2}', HTTP_HOST="shop.example", HTTP_ORIGIN=origin)
    assert reply.status == status


@pytest.mark.parametrize(
    ("path", "site", "status"),
    [
        ("/Add", "cross-site", "403 Forbidden"),
        ("/Add", "same-site", "403 Forbidden"),
        ("/Add", "same-origin", "200 OK"),
        ("/Add", "none", "200 OK"),
        ("/openapi.json", "cross-site", "200 OK"),
    ],
)
def test_an_image_of_another_site_runs_nothing_with_the_password_of_its_visitor(
    app: Path, path: str, site: str, status: str
) -> None:
    page = {"HTTP_SEC_FETCH_SITE": site, "REMOTE_USER": "ann", "REQUEST_METHOD": "GET"}
    assert cgi(app, path, b"", QUERY_STRING="x=1&y=2" * (path == "/Add"), **page).status == status


def test_an_interrupt_raised_by_a_handler_is_answered(app: Path) -> None:
    reply = cgi(app, "/interrupted", HTTP_ENFOLD_FORMAT="envelope")
    assert (reply.status, reply.headers["enfold-code"]) == ("500 Internal Server Error", "EXECUTION_ERROR")
    assert reply.body["error"]["message"] == "KeyboardInterrupt"


def test_options_tell_the_methods(app: Path) -> None:
    reply = cgi(app, "/Add", REQUEST_METHOD="OPTIONS")
    assert (reply.status, reply.headers["allow"]) == ("204 No Content", "GET, HEAD, POST, OPTIONS")
