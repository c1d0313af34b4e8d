import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Annotated, Any, TypedDict

import msgspec
import pytest
from tests.serving import Answer, Client, serve
from tests.waiting import PATIENCE

from enfold import (
    CallError,
    Context,
    Identity,
    OperationRegistry,
    ResponseEnvelope,
    TextContent,
    http_envelope,
    mcp_envelope,
)
from enfold.auth.tokens import Tokens
from enfold.provenance import Recorder
from enfold.surfaces.http import HTTPSettings, to_http
from enfold.surfaces.mcp import to_mcp

ANN = Identity("ann", frozenset({"task:write"}), {"project:1": ["read"]})
TOKENS = Tokens({"token-of-ann": ANN, "token-of-bob": Identity("bob")})
STOCK = {"code": "SOLD_OUT", "description": "Nothing left", "http_status": 409}


class Total(TypedDict):
    total: int


def shop() -> OperationRegistry:
    ops = OperationRegistry("shop")

    @ops.query
    async def add(x: int, y: int) -> int:
        return x + y

    @ops.query
    def divide(x: int, y: int) -> tuple[int, int]:
        return x // y, x % y

    @ops.query
    async def total(prices: list[float], fees: dict[str, float] | None = None) -> float:
        return sum(prices) + sum((fees or {}).values())

    @ops.query
    async def echo(text: str = "", context: Context | None = None) -> str:
        return text

    @ops.query
    async def whoami(context: Context) -> dict[str, Any]:
        identity = context.identity
        return {"id": identity and identity.id, "request": context.request_id, "left": context.remaining()}

    @ops.mutation
    async def forget() -> None: ...

    @ops.mutation(access={"required_scopes": ["task:write"]})
    async def create(title: str) -> str:
        return title

    @ops.query(access={"resource_type": "project", "resource_action": "read", "resource_id": "project"})
    async def read(project: int) -> int:
        return project

    @ops.mutation(error_schemas=[STOCK])
    async def fail(code: str, status: int | None = None) -> int:
        raise CallError(code, "no luck", {} if status is None else {"status": status, "retry_after": 2.5})

    @ops.query
    async def wrong() -> Total:
        return {"total": 3, "secret": "x"}  # type: ignore[typeddict-unknown-key]  # that is what is wrong about it

    @ops.query
    async def failed_tool() -> ResponseEnvelope[Any]:
        return mcp_envelope([], is_error=True, content=[TextContent(text="disk full")])

    @ops.query
    async def picture() -> ResponseEnvelope[Any]:
        return http_envelope(b"\x00\xff", content_type="image/png", headers={"Set-Cookie": "secret"})

    @ops.query
    async def odd() -> str:
        return "\ud800"

    @ops.mutation(timeout=0.05)
    async def slow(idle: Annotated[float, msgspec.Meta(ge=0)] = 10.0) -> None:
        await asyncio.sleep(idle)

    @ops.query
    async def nap(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    @ops.subscription
    async def ticks() -> AsyncIterator[int]:
        yield 1

    return ops


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with serve(
        to_http(shop(), HTTPSettings(max_body=100_000, body_timeout=0.3), tokens=TOKENS, allow_anonymous=True)
    ) as client:
        yield client


def told(answer: Answer) -> tuple[int, str | None, Any]:
    return answer.status, answer.headers.get("enfold-code"), answer.json


# --- calls --------------------------------------------------------------------------------------------------------


def test_the_sum_of_the_seed(client: Client) -> None:
    answer = client.post("/functions/shop.add", {"x": 7, "y": 3})
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.body == b'{"result":10}'


def test_a_name_that_only_one_operation_has_is_enough(client: Client) -> None:
    assert client.post("/functions/add", {"x": 7, "y": 3}).json == {"result": 10}


def test_several_values_are_numbered_and_no_value_is_empty(client: Client) -> None:
    assert client.post("/functions/divide", {"x": 7, "y": 3}).json == {"result0": 2, "result1": 1}
    assert client.post("/functions/forget", {}).json == {}


@pytest.mark.parametrize(
    ("query", "result"),
    [
        pytest.param("add?x=7&y=3", 10, id="text that stands for numbers"),
        pytest.param("total?prices=1.5&prices=2", 3.5, id="a repeated name is an array"),
        pytest.param("total?prices=1.5", 1.5, id="an array of one"),
        pytest.param("total?prices=1&fees=%7B%22a%22%3A2%7D", 3.0, id="an object is JSON text"),
        pytest.param("echo?text=gr%C3%BCn+%26+blau", "grün & blau", id="escapes"),
        pytest.param("echo?text=10", "10", id="text stays text"),
        pytest.param("echo?text=", "", id="empty text"),
        pytest.param("echo", "", id="no query string"),
    ],
)
def test_a_query_is_read_from_the_query_string(client: Client, query: str, result: Any) -> None:
    assert client.get(f"/functions/{query}").json == {"result": result}


@pytest.mark.parametrize(
    ("query", "argument"),
    [
        ("add?x=1", "y"),
        ("add?x=1&y=2&z=3", "z"),
        ("add?x=1&x=2&y=1", "x"),
        ("add?x=1.5&y=2", "x"),
        ("total?prices=1&fees=1", "fees"),
    ],
)
def test_mistakes_in_a_query_string_are_reported_by_name(client: Client, query: str, argument: str) -> None:
    answer = client.get(f"/functions/{query}", Enfold_Format="envelope")
    assert answer.status == 400
    assert answer.json["error"]["code"] == "VALIDATION_ERROR"
    assert answer.json["error"]["details"]["argument"].partition("/")[0] == argument


@pytest.mark.parametrize("query", ["echo?text=%ff", "echo?" + "&".join(["text=1"] * 1_001)], ids=["not UTF-8", "many"])
def test_a_query_string_that_cannot_be_read_is_refused(client: Client, query: str) -> None:
    assert told(client.get(f"/functions/{query}")) == (
        400,
        "VALIDATION_ERROR",
        {"error": "The query string cannot be read"},
    )


def test_warnings_are_counted_and_stripped_values_stay_here(client: Client) -> None:
    answer = client.get("/functions/wrong")
    assert (answer.status, answer.json) == (200, {"result": {"total": 3}})
    assert answer.headers["enfold-warnings"] == '1; first="strip"'
    assert "enfold-warnings" not in client.get("/functions/echo").headers


# --- formats ------------------------------------------------------------------------------------------------------


def test_the_format_is_named_in_a_header_or_in_the_query_string_of_a_post(client: Client) -> None:
    for answer in (
        client.post("/functions/add", {"x": 1, "y": 2}, Enfold_Format="envelope"),
        client.post("/functions/add?format=envelope", {"x": 1, "y": 2}),
    ):
        assert answer.json["data"] == 3
        assert answer.json["meta"]["operationId"] == "shop.add"


def test_in_the_query_string_of_a_get_a_format_is_an_argument(client: Client) -> None:
    assert told(client.get("/functions/echo?format=envelope")) == (
        400,
        "VALIDATION_ERROR",
        {"error": 'Unknown argument "format"'},
    )


@pytest.mark.parametrize("path", ["/functions/add", "/functions/none"])
def test_an_unknown_format_is_refused(client: Client, path: str) -> None:
    answer = client.post(path, {"x": 1, "y": 2}, Enfold_Format="xml")
    assert (answer.status, answer.headers["enfold-code"]) == (400, "VALIDATION_ERROR")
    assert 'Unknown format "xml"' in answer.json["error"]


def test_the_surface_has_its_own_format() -> None:
    with serve(to_http(shop(), HTTPSettings(format="envelope"))) as client:
        assert client.post("/functions/add", {"x": 1, "y": 2}).json["data"] == 3
        assert client.post("/functions/add", {"x": 1, "y": 2}, Enfold_Format="result").json == {"result": 3}


def test_a_failed_mcp_result_is_an_error_only_where_the_format_has_no_other_place(client: Client) -> None:
    assert told(client.get("/functions/failed_tool")) == (502, "EXECUTION_ERROR", {"error": "disk full"})
    answer = client.get("/functions/failed_tool", Enfold_Format="envelope")
    assert (answer.status, answer.json["meta"]["isError"]) == (200, True)


def test_bytes_leave_as_text_and_private_headers_not_at_all(client: Client) -> None:
    assert client.get("/functions/picture").json == {"result": "AP8="}
    meta = client.get("/functions/picture", Enfold_Format="envelope").json["meta"]
    assert (meta["dataEncoding"], meta["headers"]) == ("base64", {})


# --- failures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"not json", b"", b'{"x":', b"[" * 50_000, b'{"x":"\xff"}'])
def test_a_body_that_is_not_json_is_reported_in_the_words_of_the_specification(client: Client, body: bytes) -> None:
    answer = client.request("POST", "/functions/add", body, {"Content-Type": "application/json"})
    assert told(answer) == (400, "VALIDATION_ERROR", {"error": "Invalid JSON body"})
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", None])
def test_only_json_bodies_are_read(client: Client, kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    answer = client.request("POST", "/functions/add", b'{"x": 1, "y": 2}', headers)
    assert (answer.status, answer.headers["enfold-code"]) == (415, "VALIDATION_ERROR")


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON", "application/ld+json"])
def test_json_has_several_names(client: Client, kind: str) -> None:
    answer = client.request("POST", "/functions/add", b'{"x": 1, "y": 2}', {"Content-Type": kind})
    assert answer.json == {"result": 3}


def test_a_compressed_body_is_refused(client: Client) -> None:
    assert client.post("/functions/add", {}, Content_Encoding="gzip").status == 415


@pytest.mark.parametrize(
    ("code", "status", "http", "error"),
    [
        ("VALIDATION_ERROR", None, 400, "no luck"),
        ("OPERATION_NOT_FOUND", None, 404, "no luck"),
        ("ACCESS_DENIED", None, 401, "no luck"),
        ("TIMEOUT", None, 504, "no luck"),
        ("ABORTED", None, 499, "no luck"),
        ("RESOURCE_EXHAUSTED", None, 429, "no luck"),
        ("PAYLOAD_TOO_LARGE", None, 413, "no luck"),
        ("UNAVAILABLE", None, 503, "no luck"),
        ("DATA_LOSS", None, 502, "no luck"),
        ("EXECUTION_ERROR", None, 500, "Function error: no luck"),
        ("EXECUTION_ERROR", 404, 404, "Function error: no luck"),
        ("EXECUTION_ERROR", 422, 422, "Function error: no luck"),
        ("EXECUTION_ERROR", 401, 502, "Function error: no luck"),
        ("EXECUTION_ERROR", 500, 502, "Function error: no luck"),
        ("UNKNOWN_ERROR", None, 500, "Function error: no luck"),
        ("SOLD_OUT", None, 409, "Function error: no luck"),
        ("UNDECLARED", None, 500, "Function error: no luck"),
    ],
)
def test_each_code_has_its_status_and_only_the_handlers_own_words_a_prefix(
    client: Client, code: str, status: int | None, http: int, error: str
) -> None:
    given = {"code": code} if status is None else {"code": code, "status": status}
    assert told(client.post("/functions/fail", given)) == (http, code, {"error": error})
    answer = client.post("/functions/fail", given, Enfold_Format="envelope")
    assert (answer.status, answer.json["error"]["code"], answer.json["error"]["message"]) == (http, code, "no luck")


def test_a_code_that_would_break_the_headers_is_not_put_there(client: Client) -> None:
    answer = client.post("/functions/fail", {"code": "A\r\nSet-Cookie: x"})
    assert (answer.status, answer.headers["enfold-code"]) == (500, "UNKNOWN_ERROR")
    assert "set-cookie" not in answer.headers


def test_a_client_gets_retry_after(client: Client) -> None:
    answer = client.post("/functions/fail", {"code": "RESOURCE_EXHAUSTED", "status": 429})
    assert (answer.status, answer.headers["retry-after"]) == (429, "3")


def test_an_exception_gives_its_text_without_its_stack(client: Client) -> None:
    answer = client.get("/functions/divide?x=1&y=0")
    assert told(answer)[:2] == (500, "EXECUTION_ERROR")
    assert answer.json == {"error": "Function error: integer division or modulo by zero"}


@pytest.mark.parametrize("name", ["crash", "crash_with_context", "crash_in_thread"])
def test_our_log_has_the_stack_under_the_id_that_the_caller_got(name: str, caplog: pytest.LogCaptureFixture) -> None:
    ops = OperationRegistry("shop")

    @ops.query
    async def crash() -> None:
        raise ValueError("secret place")

    @ops.query
    async def crash_with_context(context: Context) -> None:
        raise ValueError("secret place")

    @ops.query
    def crash_in_thread() -> None:
        raise ValueError("secret place")

    with serve(to_http(ops, tokens=TOKENS, allow_anonymous=True)) as client:
        for headers in ({}, {}, {"authorization": "Bearer token-of-ann"}):  # the second is on the hot path
            caplog.clear()
            answer = client.post(f"/functions/{name}", {}, **headers)
            assert answer.headers["x-request-id"] in caplog.text
            assert "Traceback" in caplog.text
        assert "Traceback" not in answer.body.decode()


def test_the_text_of_an_exception_can_be_hidden_from_callers() -> None:
    with serve(to_http(shop(), HTTPSettings(expose_errors=False))) as client:
        assert client.get("/functions/divide?x=1&y=0").json == {"error": "Function error: Operation shop.divide failed"}
        assert client.post("/functions/fail", {"code": "SOLD_OUT"}).json == {"error": "Function error: no luck"}


def test_a_result_that_has_no_json_form_is_a_failure_in_json(client: Client) -> None:
    assert told(client.get("/functions/odd"))[:2] == (500, "EXECUTION_ERROR")


@pytest.mark.parametrize("waits", [True, False], ids=["later", "at once"])
def test_a_handler_that_meets_something_cancelled_is_a_failure_in_json(waits: bool) -> None:
    ops = OperationRegistry()

    @ops.query
    async def give() -> None:
        given_up = asyncio.get_running_loop().create_future()
        given_up.cancel()
        if waits:
            await asyncio.sleep(0)
        await given_up

    expected = (500, "EXECUTION_ERROR", {"error": "Function error: something that the handler awaited was cancelled"})
    with serve(to_http(ops)) as client:
        answers = [client.get("/functions/give"), *(client.post("/functions/give", {}) for _ in range(2))]
    assert [told(answer) for answer in answers] == [expected] * 3


@pytest.mark.parametrize("path", ["/functions/none", "/functions/", "/functions/shop.add/", "/nothing", "/"])
def test_a_missing_operation_is_not_found(client: Client, path: str) -> None:
    answer = client.post(path, {})
    assert told(answer)[:2] == (404, "OPERATION_NOT_FOUND")
    assert path.rpartition("/functions/")[2] in answer.json["error"]


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/functions/forget", "POST, OPTIONS"),
        ("HEAD", "/functions/forget", "POST, OPTIONS"),
        ("PUT", "/functions/add", "GET, HEAD, POST, OPTIONS"),
        ("DELETE", "/functions/ticks", "GET, HEAD, POST, OPTIONS"),
        ("TRACE", "/functions/add", "GET, HEAD, POST, OPTIONS"),
        ("POST", "/healthz", "GET, HEAD, OPTIONS"),
        ("POST", "/openapi.json", "GET, HEAD, OPTIONS"),
        ("GET", "/call", "POST, OPTIONS"),
    ],
)
def test_a_wrong_method_is_refused_and_the_right_ones_are_named(
    client: Client, method: str, path: str, allow: str
) -> None:
    answer = client.request(method, path)
    assert (answer.status, answer.headers["allow"], answer.headers["enfold-code"]) == (405, allow, "VALIDATION_ERROR")


@pytest.mark.parametrize("accept", ["text/html", "text/event-stream", "application/json;q=0, */*;q=0"])
def test_a_caller_who_does_not_take_json_is_refused(client: Client, accept: str) -> None:
    assert told(client.get("/functions/echo", Accept=accept))[:2] == (406, "VALIDATION_ERROR")


@pytest.mark.parametrize(
    "accept", ["*/*", "application/*", "text/html, application/json;q=0.5", "text/html, */*;q=.1", "", " "]
)
def test_json_is_taken_under_several_names(client: Client, accept: str) -> None:
    assert client.get("/functions/echo", Accept=accept).status == 200


# --- heads and options --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/functions/add?x=1&y=2", "/functions/add?x=1", "/healthz", "/openapi.json"])
def test_a_head_has_the_headers_of_a_get_and_no_body(client: Client, path: str) -> None:
    head, get = client.request("HEAD", path), client.get(path)
    assert (head.status, head.body) == (get.status, b"")
    for name in ("content-type", "content-length", "enfold-code"):
        assert head.headers.get(name) == get.headers.get(name)


def test_options_tell_the_methods(client: Client) -> None:
    answer = client.request("OPTIONS", "/functions/add")
    assert (answer.status, answer.headers["allow"], answer.body) == (204, "GET, HEAD, POST, OPTIONS", b"")


# --- ids and deadlines --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["abc", "A.b_c-9", "x" * 128])
def test_the_callers_request_id_comes_back_and_reaches_the_handler(client: Client, given: str) -> None:
    answer = client.get("/functions/whoami", X_Request_Id=given)
    assert (answer.headers["x-request-id"], answer.json["result"]["request"]) == (given, given)


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "ü", "a;b", None])
def test_an_unusable_request_id_gives_way_to_a_new_one(client: Client, given: str | None) -> None:
    headers = {} if given is None else {"X-Request-Id": given.encode("latin-1").decode("latin-1")}
    answer = client.request("GET", "/functions/whoami", headers=headers)
    assert answer.headers["x-request-id"] == answer.json["result"]["request"]
    assert answer.headers["x-request-id"] not in ("", given)


def test_failures_have_a_request_id_too(client: Client) -> None:
    assert client.get("/nothing", X_Request_Id="abc").headers["x-request-id"] == "abc"
    refused = client.get("/functions/shop.add", X_Request_Id="abc", Authorization="Bearer wrong")
    assert (refused.status, refused.headers["x-request-id"]) == (401, "abc")


FORKED = """
import asyncio, os
from enfold import OperationRegistry
from enfold.surfaces.http import HTTPSettings, to_http

ops = OperationRegistry()

@ops.query
async def one() -> int:
    return 1

app = to_http(ops)
scope = {"type": "http", "method": "POST", "path": "/functions/one", "query_string": b""}
headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]

async def receive():
    return {"type": "http.request", "body": b"{}", "more_body": False}

async def send(message):
    if "headers" in message:
        print(dict(message["headers"])[b"x-request-id"].decode(), flush=True)

asyncio.run(app({**scope, "headers": headers}, receive, send))
if child := os.fork():
    os.waitpid(child, 0)
asyncio.run(app({**scope, "headers": headers}, receive, send))
"""


def test_servers_forked_from_one_that_was_loaded_give_different_request_ids() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60, check=True)
    assert len(set(done.stdout.split())) == 3


def test_a_caller_can_shorten_the_time_and_not_lengthen_it(client: Client) -> None:
    assert told(client.post("/functions/slow", {}, Enfold_Timeout_Ms="20"))[:2] == (504, "TIMEOUT")
    assert told(client.post("/functions/slow", {}, Enfold_Timeout_Ms="60000"))[:2] == (504, "TIMEOUT")
    assert client.post("/functions/slow", {"idle": 0}, Enfold_Timeout_Ms="60000").status == 200
    assert client.get("/functions/whoami", Enfold_Timeout_Ms="5000").json["result"]["left"] <= 5
    assert client.get("/functions/whoami", Enfold_Timeout_Ms="9999999").json["result"]["left"] <= 60


@pytest.mark.parametrize("given", ["", "0", "-5", "1.5", "soon", "1e3", "9" * 40, "0" * 5_000 + "1"])
def test_a_time_that_is_not_a_number_of_milliseconds_is_refused(client: Client, given: str) -> None:
    answer = client.get("/functions/whoami", Enfold_Timeout_Ms=given)
    assert told(answer)[:2] == (400, "VALIDATION_ERROR")


# --- who calls ----------------------------------------------------------------------------------------------------


def test_a_token_says_who_calls(client: Client) -> None:
    assert client.get("/functions/whoami").json["result"]["id"] is None
    assert client.get("/functions/whoami", Authorization="Bearer token-of-ann").json["result"]["id"] == "ann"


def test_without_an_identity_a_guarded_operation_asks_for_one(client: Client) -> None:
    answer = client.post("/functions/create", {"title": "x"})
    assert told(answer)[:2] == (401, "ACCESS_DENIED")
    assert answer.headers["www-authenticate"].startswith('Bearer realm="enfold", scope="')


def test_a_caller_without_permission_is_refused_before_the_body_is_read(client: Client) -> None:
    headers = {"Authorization": "Bearer token-of-bob", "Content-Type": "application/json"}
    answer = client.request("POST", "/functions/create", b"not json", headers)
    assert told(answer) == (404, "OPERATION_NOT_FOUND", {"error": "Operation not found: create"})
    assert client.post("/functions/create", {"title": "x"}, Authorization="Bearer token-of-ann").json == {"result": "x"}


@pytest.mark.parametrize("header", ["Bearer wrong", "Basic dG9rZW4=", "token-of-ann", "Bearer "])
def test_a_token_that_is_not_valid_is_refused_even_where_none_is_needed(client: Client, header: str) -> None:
    answer = client.get("/functions/echo", Authorization=header)
    assert told(answer)[:2] == (401, "ACCESS_DENIED")
    assert answer.headers["www-authenticate"].startswith('Bearer realm="enfold", error="invalid_token", scope="')
    assert "/.well-known/oauth-protected-resource" in answer.headers["www-authenticate"]


def test_the_resource_is_the_one_the_input_names(client: Client) -> None:
    ann = "Bearer token-of-ann"
    assert client.get("/functions/read?project=1", Authorization=ann).json == {"result": 1}
    assert client.get("/functions/read?project=2", Authorization=ann).status == 403


def test_identities_in_headers_and_bodies_are_ignored(client: Client) -> None:
    answer = client.post(
        "/functions/create", {"title": "x", "identity": {"id": "ann"}}, Remote_User="ann", Identity="ann"
    )
    assert answer.status == 401


def test_without_tokens_the_header_means_nothing() -> None:
    with serve(to_http(shop())) as client:
        assert client.get("/functions/whoami", Authorization="Bearer x").json["result"]["id"] is None
        assert client.post("/functions/create", {"title": "x"}, Authorization="Bearer token-of-ann").status == 401


def test_the_document_shows_a_caller_what_he_may_call(client: Client) -> None:
    anonymous = client.get("/openapi.json").json["paths"]
    ann = client.get("/openapi.json", Authorization="Bearer token-of-ann").json["paths"]
    assert ann.keys() - anonymous.keys() == {"/functions/shop.create", "/functions/shop.read"}


def test_an_operation_registered_later_is_served() -> None:
    ops = shop()
    with serve(to_http(ops)) as client:
        assert client.get("/functions/late").status == 404
        ops.query(name="late")(lambda: 5)
        assert client.get("/functions/late").json == {"result": 5}
        ops.unregister("shop.late")
        assert client.get("/functions/late").status == 404


def test_an_operation_that_is_replaced_is_served_as_it_is_now() -> None:
    ops = OperationRegistry("shop")
    ops.query(name="price")(_give)
    with serve(to_http(ops)) as client:
        assert [client.post("/functions/price", {}).json for _ in range(3)] == [{"result": 1}] * 3
        ops.unregister("shop.price")
        ops.query(name="price")(_give_more)
        assert [client.post("/functions/price", {}).json for _ in range(3)] == [{"result": 2}] * 3


def test_a_registry_does_not_keep_the_apps_that_served_it() -> None:
    ops = shop()
    app = to_http(ops)
    is_there = weakref.ref(app)
    del app
    gc.collect()
    assert is_there() is None
    ops.query(name="late")(lambda: 5)  # which tells the apps that are left


def test_an_operation_that_is_guarded_while_a_body_is_on_its_way_is_guarded() -> None:
    ops = OperationRegistry("shop")
    ops.mutation(name="open")(_give)
    with serve(to_http(ops)) as client, client.connect() as connection:
        assert client.post("/functions/open", {}).status == 200
        connection.sendall(_head("POST /functions/open", "Content-Type: application/json", "Content-Length: 2") + b"{")
        assert client.post("/functions/open", {}).status == 200  # by then the other request is being read
        ops.unregister("shop.open")
        ops.mutation(name="open", access={"required_scopes": ["x"]})(_give)
        connection.sendall(b"}")
        assert _status(connection) == 401


async def _give() -> int:
    return 1


async def _give_more() -> int:
    return 2


def test_an_app_mounted_at_the_root_gets_what_no_route_takes() -> None:
    async def site(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": f"site {scope['path']}".encode()})

    async def deeper(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"deeper"})

    with serve(to_http(shop(), mounts={"/": site, "/docs": site, "/docs/deep": deeper})) as client:
        assert client.post("/functions/add", {"x": 1, "y": 2}).json == {"result": 3}
        assert client.get("/healthz").json == {"status": "ok"}
        assert client.get("/openapi.json").status == 200
        assert client.get("/").body == b"site /"
        assert client.get("/index.html").body == b"site /index.html"
        assert client.get("/docs/deep/x").body == b"deeper"


def test_the_preflight_of_a_mounted_app_names_every_method() -> None:
    origin = "https://app.example"
    with serve(to_http(shop(), mounts={"/mcp": to_mcp(shop())}, allowed_origins=[origin])) as client:
        asked = {"Origin": origin, "Access-Control-Request-Method": "DELETE"}
        preflight = client.request("OPTIONS", "/mcp", headers=asked)
    assert "DELETE" in preflight.headers["access-control-allow-methods"]


# --- hosts and origins --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "", "[::2]"])
def test_a_foreign_host_is_refused(client: Client, host: str) -> None:
    answer = client.request("GET", "/functions/echo", headers={"Host": host})
    assert told(answer)[:2] == (403, "ACCESS_DENIED")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:9", "[::1]", "[::1]:80"])
def test_the_loopback_has_several_host_names(client: Client, host: str) -> None:
    assert client.request("GET", "/functions/echo", headers={"Host": host}).status == 200


def test_hosts_can_be_listed() -> None:
    with serve(to_http(shop(), allowed_hosts=["api.example", "*.inner.example"])) as client:
        statuses = {
            host: client.request("GET", "/healthz", headers={"Host": host}).status
            for host in ("api.example:80", "a.inner.example", "inner.example", "localhost")
        }
    assert statuses == {"api.example:80": 200, "a.inner.example": 200, "inner.example": 403, "localhost": 403}


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:1", "http://"])
def test_pages_of_other_origins_may_not_call(client: Client, origin: str) -> None:
    answer = client.post("/functions/add", {"x": 1, "y": 2}, Origin=origin)
    assert told(answer)[:2] == (403, "ACCESS_DENIED")
    assert "access-control-allow-origin" not in answer.headers


def test_a_page_of_this_very_server_may_call(client: Client) -> None:
    answer = client.post("/functions/add", {"x": 1, "y": 2}, Origin=f"http://127.0.0.1:{client.port}")
    assert answer.status == 200
    assert "access-control-allow-origin" not in answer.headers


def test_a_listed_origin_may_call_and_read_the_answer() -> None:
    origin = "https://app.example"
    with serve(to_http(shop(), allowed_origins=[origin])) as client:
        preflight = client.request(
            "OPTIONS", "/functions/add", headers={"Origin": origin, "Access-Control-Request-Method": "POST"}
        )
        assert preflight.status == 204
        assert "POST" in preflight.headers["access-control-allow-methods"]
        assert "Content-Type" in preflight.headers["access-control-allow-headers"]
        for answer in (preflight, client.get("/functions/echo", Origin=origin), client.get("/nothing", Origin=origin)):
            assert answer.headers["access-control-allow-origin"] == origin
            assert answer.headers["vary"] == "Origin"
        assert "access-control-allow-origin" not in client.get("/functions/echo").headers
        assert client.get("/functions/echo", Origin="https://other.example").status == 403


# --- bodies that misbehave ----------------------------------------------------------------------------------------


def test_a_body_over_the_limit_is_refused_by_its_length_alone(client: Client) -> None:
    with client.connect() as connection:
        connection.sendall(_head("POST /functions/add", "Content-Type: application/json", "Content-Length: 100001"))
        assert _status(connection) == 413


def test_a_body_that_hides_its_length_is_refused_when_it_is_over_the_limit(client: Client) -> None:
    pieces = (b"x" * 1_000 for _ in range(200))
    answer = client.request("POST", "/functions/add", pieces, {"Content-Type": "application/json"})
    assert told(answer) == (413, "PAYLOAD_TOO_LARGE", {"error": "The body is larger than 100000 bytes"})


def test_a_body_in_pieces_is_read(client: Client) -> None:
    pieces = iter([b'{"x": ', b"1, ", b'"y": 2}'])
    answer = client.request("POST", "/functions/add", pieces, {"Content-Type": "application/json"})
    assert answer.json == {"result": 3}


def test_a_body_that_does_not_arrive_is_abandoned(client: Client) -> None:
    with client.connect() as connection:
        connection.sendall(_head("POST /functions/add", "Content-Type: application/json", "Content-Length: 20") + b"{")
        assert _status(connection) == 504


def test_a_handler_may_take_longer_than_a_body(client: Client) -> None:
    """Also when the operation is known, and its body came with its head."""
    answers = [client.post("/functions/nap", {"seconds": seconds}) for seconds in (0.0, 0.5)]
    assert [told(answer) for answer in answers] == [(200, None, {"result": 0.0}), (200, None, {"result": 0.5})]


def test_the_length_of_a_body_may_be_any_text(client: Client) -> None:
    with client.connect() as connection:
        length = f"Content-Length: {'9' * 30}"
        connection.sendall(_head("POST /functions/add", "Content-Type: application/json", length))
        assert _status(connection) in (400, 413)


def test_a_header_in_several_lines_is_one_list(client: Client) -> None:
    with client.connect() as connection:
        accept = ("Accept: application/json", "Accept: text/html")
        connection.sendall(_head("GET /functions/add?x=1&y=2", *accept))
        assert _status(connection) == 200


# --- clients that leave -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async def", "def"])
def test_when_the_client_goes_the_handler_is_cancelled(kind: str) -> None:
    ops = OperationRegistry("shop")
    started, ended = threading.Event(), threading.Event()

    async def wait() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def wait_in_thread(context: Context) -> None:
        started.set()
        while not context.cancelled:
            ended.wait(0.001)
        ended.set()

    ops.query(name="wait")(wait if kind == "async def" else wait_in_thread)
    with serve(to_http(ops)) as client:
        with client.connect() as connection:
            connection.sendall(_head("GET /functions/wait"))
            assert started.wait(PATIENCE)
        assert ended.wait(PATIENCE)


def test_when_the_client_of_a_known_operation_goes_its_handler_is_cancelled() -> None:
    ops = OperationRegistry("shop")
    started, ended = threading.Event(), threading.Event()

    @ops.mutation
    async def wait(forever: bool) -> None:
        try:
            started.set()
            if forever:
                await asyncio.Event().wait()
        finally:
            ended.set()

    head = _head("POST /functions/wait", "Content-Type: application/json", "Content-Length: 17")
    with serve(to_http(ops)) as client:
        with client.connect() as connection:
            connection.sendall(head + b'{"forever":false}')
            assert _status(connection) == 200
        started.clear()
        ended.clear()
        with client.connect() as connection:
            connection.sendall(head + b'{"forever": true}')
            assert started.wait(PATIENCE)
        assert ended.wait(PATIENCE)


def test_a_running_call_is_finished_when_the_server_stops() -> None:
    ops = OperationRegistry("shop")
    started, go_on = threading.Event(), threading.Event()

    @ops.query
    def work() -> str:
        started.set()
        go_on.wait(PATIENCE)
        return "done"

    answers: list[Answer] = []
    with serve(to_http(ops)) as client:
        caller = threading.Thread(target=lambda: answers.append(client.get("/functions/work")))
        caller.start()
        assert started.wait(PATIENCE)
        client.server.should_exit = True
        go_on.set()
        caller.join(PATIENCE)
    assert [answer.json for answer in answers] == [{"result": "done"}]


# --- mounted apps -------------------------------------------------------------------------------------------------


class Mounted:
    """An app that tells what it was given."""

    def __init__(self) -> None:
        self.life: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for _ in range(2):
                event = (await receive())["type"]
                self.life.append(event)
                await send({"type": f"{event}.complete"})
            return
        identity = scope["enfold.identity"]
        body = f"{scope['root_path']} {scope['path']} {identity and identity.id}".encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})


def test_a_mounted_app_gets_its_paths_its_lifespan_and_the_identity() -> None:
    mounted = Mounted()
    with serve(to_http(shop(), tokens=TOKENS, allow_anonymous=True, mounts={"/mcp": mounted})) as client:
        assert client.get("/mcp").body == b"/mcp /mcp None"
        assert client.get("/mcp/x", Authorization="Bearer token-of-ann").body == b"/mcp /mcp/x ann"
        assert client.get("/mcp", Authorization="Bearer wrong").status == 401
        assert client.request("GET", "/mcp", headers={"Host": "evil.example"}).status == 403
        assert client.get("/mcpx").status == 404
        assert client.post("/mcp?format=its-own", {}).status == 200
        assert client.get("/functions/echo").status == 200
    assert mounted.life == ["lifespan.startup", "lifespan.shutdown"]


def test_a_mounted_app_without_lifespan_is_served() -> None:
    async def simple(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await send({"type": "http.response.start", "status": 204})
        await send({"type": "http.response.body"})

    with serve(to_http(shop(), mounts={"/simple": simple})) as client:
        assert client.get("/simple").status == 204


def test_this_app_can_itself_be_mounted() -> None:
    inner = to_http(shop())
    with serve(to_http(OperationRegistry(), mounts={"/api": inner})) as client:
        assert client.get("/api/functions/add?x=1&y=2").json == {"result": 3}
        assert client.get("/api/openapi.json").json["servers"] == [{"url": "/api"}]


# --- requests in an envelope, provenance --------------------------------------------------------------------------


def asked(tool: str, **params: Any) -> dict[str, Any]:
    return {"schema_version": "mcp.request.v0.1", "tool": {"name": tool}, "params": params, "artifacts": []}


def test_a_request_in_an_envelope_is_answered_in_one(client: Client) -> None:
    answer = client.post("/call", asked("shop_add", x=1, y=2))
    assert (answer.status, answer.json["schema_version"], answer.json["result"]) == (200, "mcp.envelope.v0.1", 3)


def test_a_request_that_fails_has_the_status_of_its_code(client: Client) -> None:
    answer = client.post("/call", asked("shop.add", x=1))
    assert (answer.status, answer.headers["enfold-code"]) == (400, "VALIDATION_ERROR")
    assert answer.json["errors"][0]["code"] == "ENFOLD.VALIDATION_ERROR"


def test_an_invalid_request_is_refused_in_the_same_format(client: Client) -> None:
    answer = client.post("/call", {"x": 1})
    assert answer.status == 400
    assert answer.json["errors"][0]["code"] == "ENFOLD.VALIDATION_ERROR"


def test_provenance_is_captured_where_it_is_asked_for_and_allowed() -> None:
    asked = {"Enfold_Format": "mcp_envelope_v0_1", "Enfold_Capture_Provenance": "minimal"}
    with serve(to_http(shop(), recorder=Recorder())) as client:
        assert client.post("/functions/add", {"x": 1, "y": 2}, **asked).json["provenance"]["tool"]
    with serve(to_http(shop())) as client:
        assert client.post("/functions/add", {"x": 1, "y": 2}, **asked).json["provenance"] is None


# --- raw sockets --------------------------------------------------------------------------------------------------


def _head(request: str, *headers: str) -> bytes:
    return "\r\n".join([f"{request} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()


def _status(connection: Any) -> int:
    line = b""
    with suppress(ConnectionError):
        while not line.endswith(b"\r\n") and (byte := connection.recv(1)):
            line += byte
    return int(line.split()[1])
