"""Failures as problem details (RFC 9457): by `Accept`, by format, and for every refusal."""

import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import jsonschema_rs
import pytest
from tests.gateway.conftest import serve as serve_here
from tests.serving import Answer, Client, serve

from enfold import CallError, FormatError, Identity, OperationRegistry, local_envelope, testing
from enfold.auth.tokens import Tokens
from enfold.formats import problem
from enfold.sources.mcp import from_mcp
from enfold.sources.openapi import from_openapi
from enfold.surfaces.cgi import to_cgi
from enfold.surfaces.http import to_http
from enfold.surfaces.mcp import to_mcp
from enfold.surfaces.openapi import to_openapi

PROBLEM = "application/problem+json"


@dataclass
class Line:
    item: str
    count: int = 1


def shop() -> OperationRegistry:
    ops = OperationRegistry("shop")

    @ops.query
    def add(x: int, y: int) -> int:
        return x + y

    @ops.mutation
    def order(lines: list[Line]) -> int:
        return len(lines)

    @ops.mutation
    def fail(code: str, status: int | None = None) -> int:
        raise CallError(code, "no luck", {} if status is None else {"status": status, "retry_after": 2})

    @ops.query(access={"required_scopes": ["admin"]})
    def secret() -> int:
        return 1

    @ops.subscription
    async def ticks(to: int) -> AsyncIterator[int]:
        if to < 0:
            raise CallError("OUT_OF_STOCK", "none left")
        for each in range(to):
            yield each
        raise CallError("OUT_OF_STOCK", "none left")

    return ops


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with serve(to_http(shop())) as server:
        yield server


def told(answer: Answer) -> dict[str, Any]:
    """The problem details of an answer, checked against the schema and the headers."""
    assert answer.headers["content-type"] == PROBLEM
    body: dict[str, Any] = answer.json
    jsonschema_rs.validate(problem.ERROR_SCHEMA, body)
    assert body["status"] == answer.status
    assert body["request_id"] == answer.headers["x-request-id"]
    assert body["code"] == answer.headers["enfold-code"]
    return body


def test_a_failure_names_its_code_its_arguments_and_the_request(client: Client) -> None:
    body = told(client.post("/functions/add", {"x": "a", "z": 1}, Accept=PROBLEM, X_Request_Id="mine"))
    assert (body["type"], body["title"], body["status"], body["code"]) == (
        "about:blank",
        "Bad Request",
        400,
        "VALIDATION_ERROR",
    )
    assert body["request_id"] == "mine"
    faults = {each["argument"]: each for each in body["errors"]}
    assert faults["x"] == {"argument": "x", "pointer": "#/x", "reason": "type", "expected": "integer"}
    assert (faults["y"]["reason"], faults["z"]["reason"]) == ("missing", "unknown")
    assert all(name in body["detail"] for name in ('"x"', '"y"', '"z"'))


def test_the_pointer_leads_into_arrays_and_objects(client: Client) -> None:
    given = {"lines": [{"item": "tea"}, {"item": "tea", "count": "many"}]}
    (fault,) = told(client.post("/functions/order", given, Accept=PROBLEM))["errors"]
    assert fault["pointer"] == "#/lines/1/count"


@pytest.mark.parametrize(
    ("accept", "is_problem"),
    [
        (None, False),
        ("*/*", False),
        ("application/*", False),
        ("application/json", False),
        (PROBLEM, True),
        ("Application/Problem+JSON", True),
        (f"application/json, {PROBLEM}", True),
        (f"{PROBLEM};q=0.9, */*;q=0.1", True),
        (f"application/json, {PROBLEM};q=0.5", False),
        (f"application/json;q=0.5, {PROBLEM};q=0.6", True),
        (f"{PROBLEM};q=0, */*", False),
    ],
)
def test_accept_decides_by_its_weights(client: Client, accept: str | None, is_problem: bool) -> None:
    headers = {} if accept is None else {"Accept": accept}
    failed = client.post("/functions/add", {"x": 1}, **headers)
    assert (failed.headers["content-type"] == PROBLEM, failed.status) == (is_problem, 400)
    assert is_problem or list(failed.json) == ["error"]
    assert client.post("/functions/add", {"x": 1, "y": 2}, **headers).json == {"result": 3}


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("POST", "/functions/nothing", {}, 404),
        ("GET", "/nowhere", {}, 404),
        ("DELETE", "/functions/add", {}, 405),
        ("POST", "/functions/add", {"Content-Type": "text/csv"}, 415),
        ("POST", "/functions/add", {"Content-Type": "application/json", "Content-Length": "99999999"}, 413),
        ("GET", "/functions/ticks?to=1", {}, 406),
        ("GET", "/functions/add?x=1&y=2", {"Host": "evil.example"}, 403),
        ("GET", "/functions/add?x=1&y=2", {"Origin": "https://evil.example"}, 403),
        ("GET", "/functions/add?x=1&y=2", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("GET", "/functions/add?x=1&y=2", {"Enfold-Timeout-Ms": "soon"}, 400),
        ("GET", "/functions/secret", {}, 401),
    ],
)
def test_every_refusal_is_a_problem(
    client: Client, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    body = b"x" if method == "POST" else None
    assert told(client.request(method, path, body, {"Accept": PROBLEM, **headers}))["status"] == status


def test_a_missing_or_wrong_token_is_a_problem_with_a_challenge() -> None:
    with serve(to_http(shop(), tokens=Tokens({"right": Identity("ann")}))) as server:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            answer = server.request("GET", "/functions/add?x=1&y=2", None, {"Accept": PROBLEM, **headers})
            assert (told(answer)["title"], answer.status) == ("Unauthorized", 401)
            assert "www-authenticate" in answer.headers


def test_the_format_can_be_named_and_another_one_wins_over_accept(client: Client) -> None:
    assert told(client.post("/functions/add", {}, Enfold_Format="problem"))["code"] == "VALIDATION_ERROR"
    assert client.post("/functions/add", {"x": 1, "y": 2}, Enfold_Format="problem").json == {"result": 3}
    named = client.post("/functions/add", {}, Enfold_Format="envelope", Accept=f"{PROBLEM}, application/json")
    assert named.json["error"]["code"] == "VALIDATION_ERROR"


def test_a_stream_that_fails_before_its_first_item_is_a_problem(client: Client) -> None:
    accept = f"application/x-ndjson, {PROBLEM}"
    answer = client.request("GET", "/functions/ticks?to=-1", None, {"Accept": accept})
    assert (told(answer)["code"], answer.status) == ("OUT_OF_STOCK", 500)
    later = client.request("GET", "/functions/ticks?to=1", None, {"Accept": accept, "Enfold-Format": "problem"})
    item, end = map(json.loads, later.body.splitlines())
    assert (item, end["complete"], end["error"]["code"], end["error"]["status"]) == (
        {"result": 0},
        False,
        "OUT_OF_STOCK",
        500,
    )


@pytest.mark.parametrize("status", [400, 404, 409, 410, 412, 422])
def test_an_upstreams_verdict_on_the_input_keeps_its_status(client: Client, status: int) -> None:
    answer = client.post("/functions/fail", {"code": "EXECUTION_ERROR", "status": status}, Accept=PROBLEM)
    body = told(answer)
    assert (answer.status, body["code"], body["details"]["status"]) == (status, "EXECUTION_ERROR", status)
    default = client.post("/functions/fail", {"code": "EXECUTION_ERROR", "status": status})
    assert (default.status, default.json) == (status, {"error": "Function error: no luck"})


@pytest.mark.parametrize("status", [401, 403, 405, 408, 418, 500, 501, 599])
def test_other_failures_of_an_upstream_are_502(client: Client, status: int) -> None:
    answer = client.post("/functions/fail", {"code": "EXECUTION_ERROR", "status": status}, Accept=PROBLEM)
    assert (answer.status, told(answer)["title"]) == (502, "Bad Gateway")


async def posted(registry: OperationRegistry, operation: str, given: Any) -> Answer:
    headers = {"host": "localhost", "content-type": "application/json", "accept": PROBLEM}
    asked = testing.Conversation(
        to_http(registry), "POST", f"/functions/{operation}", headers, json.dumps(given).encode()
    )
    body = await asked.body()
    return Answer(asked.status, dict(asked.headers), body)


async def test_a_chain_of_servers_passes_the_status_and_the_reason_on() -> None:
    far = OperationRegistry()
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serve_here(to_http(shop())))
        source = from_openapi(to_openapi(shop()), namespace="far", base_url=url)
        imported = await stack.enter_async_context(source)
        far.register_all(imported)
        body = told(await posted(far, "far.shop_fail", {"code": "VALIDATION_ERROR"}))
        assert (body["status"], body["code"]) == (400, "EXECUTION_ERROR")
        assert body["detail"] == "HTTP 400: no luck"
        gone = await posted(far, "far.shop_fail", {"code": "EXECUTION_ERROR", "status": 410})
        assert (gone.status, gone.headers["enfold-code"]) == (410, "EXECUTION_ERROR")
        assert (await posted(far, "far.shop_fail", {"code": "UNKNOWN_ERROR"})).status == 502


async def test_an_error_result_of_an_mcp_server_is_a_problem() -> None:
    async with serve_here(to_mcp(shop())) as first, from_mcp(f"{first}/mcp", namespace="far") as imported:
        far = OperationRegistry()
        far.register_all(imported)
        answer = await posted(far, "far.shop_fail", {"code": "ODD"})
        assert (told(answer)["detail"], answer.status) == ("no luck", 502)


@pytest.mark.parametrize("format", ["problem", "result"])
async def test_another_enfold_unwraps_results(format: str) -> None:
    async with serve_here(to_mcp(shop(), format=format)) as url, from_mcp(f"{url}/mcp", namespace="far") as imported:
        far = OperationRegistry()
        far.register_all(imported)
        assert (await far.execute("far.shop_add", {"x": 1, "y": 2})).data == 3


def test_cgi_answers_problems_too() -> None:
    out = BytesIO()
    environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/add",
        "CONTENT_TYPE": "application/json",
        "HTTP_ACCEPT": PROBLEM,
    }
    to_cgi(shop(), environ=environ, stdin=BytesIO(b'{"x": 1}'), stdout=out)
    head, _, text = out.getvalue().partition(b"\r\n\r\n")
    assert f"Content-Type: {PROBLEM}".encode() in head
    assert json.loads(text)["errors"][0]["pointer"] == "#/y"


def test_curl_gets_problem_details(client: Client) -> None:
    url = f"http://127.0.0.1:{client.port}/functions/add?x=1"
    command = ["curl", "--silent", "--header", f"Accept: {PROBLEM}", "--write-out", "%{content_type} %{http_code}", url]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    body, _, end = done.stdout.rpartition("}")
    assert (json.loads(body + "}")["code"], end) == ("VALIDATION_ERROR", f"{PROBLEM} 400")


def test_the_document_describes_problems() -> None:
    document = to_openapi(shop())
    failure = document["paths"]["/functions/shop.add"]["post"]["responses"]["400"]
    assert failure["content"][PROBLEM]["schema"] == {"$ref": "#/components/schemas/Problem"}
    assert document["components"]["schemas"]["Problem"] == problem.ERROR_SCHEMA


def test_written_data_can_be_read_back() -> None:
    details = {"argument": "x", "reason": "type", "expected": "integer"}
    more = {**details, "more": [{"argument": "y", "reason": "missing", "expected": "integer"}], "hint": 1}
    with pytest.raises(CallError) as caught:
        problem.read(problem.write_error(CallError("VALIDATION_ERROR", "no", more), ""))
    assert (caught.value.code, caught.value.message, caught.value.details) == ("VALIDATION_ERROR", "no", more)
    assert problem.read(problem.write(local_envelope(1, ""))).data == 1
    with pytest.raises(CallError, match="Gone"):
        problem.read({"type": "about:blank", "title": "Gone", "status": 410})
    with pytest.raises(FormatError):
        problem.read([1])
