"""REST routes: `http="GET /items/{id}"` adds a route beside `/functions/{id}`, with the same checks and answers."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from io import BytesIO
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.conftest import not_run
from tests.serving import serve

from enfold import App, Identity, OperationRegistry, Tokens, testing
from enfold.calls.memory import MemoryTransport
from enfold.operations.http_route import TAKEN
from enfold.sources.calls import from_calls
from enfold.sources.openapi import from_openapi
from enfold.surfaces.calls import serve_calls
from enfold.surfaces.cgi import to_cgi
from enfold.surfaces.console import PARENTS
from enfold.surfaces.http import to_http
from enfold.surfaces.http.pages import OWN_PATHS, OWN_PREFIXES
from enfold.surfaces.openapi import to_openapi
from enfold.tasks import Tasks
from enfold.tasks.memory import MemoryTasks
from enfold.testing.asgi import HTTPClient

KEEPER = Identity("ann", frozenset({"write"}))


def shop() -> OperationRegistry:
    ops = OperationRegistry("shop")
    paid: list[int] = []

    @ops.query(http="GET /items/{id}")
    def item(id: int, tags: list[str] = [], q: str | None = None) -> list[Any]:  # noqa: B006  # it stays empty
        return [id, tags, q]

    @ops.query(http="GET /items/mine")
    def mine() -> str:
        return "mine"

    @ops.mutation(http="PUT /items/{id}", access={"required_scopes": ["write"]})
    def put(id: int, name: str, count: int = 1) -> list[Any]:
        return [id, name, count]

    @ops.mutation(http="PATCH /items/{item}/name")
    def rename(item: str, name: str) -> list[str]:
        return [item, name]

    @ops.mutation(http="DELETE /items/{name}")
    def remove(name: str) -> str:
        return name

    @ops.query(http="POST /search")
    def search(words: list[str], limit: int = 10) -> list[Any]:
        return [words, limit]

    @ops.mutation(http="POST /items/{id}/buy", durable=True)
    def buy(id: int) -> int:
        paid.append(id)
        return len(paid)

    @ops.subscription(http="GET /ticks/{n}")
    async def ticks(n: int) -> AsyncIterator[int]:
        for number in range(n):
            yield number

    return ops


async def ask(client: HTTPClient, method: str, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
    conversation = client.request(method, path, body, **options)
    text = await conversation.body()
    return conversation.status, json.loads(text) if text else None


@pytest.mark.parametrize(
    ("method", "path", "body", "result"),
    [
        ("GET", "/items/3", None, [3, [], None]),
        ("GET", "/items/3?tags=a&tags=b&q=x%20y", None, [3, ["a", "b"], "x y"]),
        ("GET", "/items/mine", None, "mine"),
        ("DELETE", "/items/mine", None, "mine"),
        ("DELETE", "/items/a%2Fb%20%C3%A4", None, "a/b ä"),
        ("DELETE", "/items/..", None, ".."),
        ("PATCH", "/items/x/name", {"name": "y"}, ["x", "y"]),
        ("PATCH", "/items/x/name?name=y", None, ["x", "y"]),
        ("POST", "/search", {"words": ["a"]}, [["a"], 10]),
        ("POST", "/search?limit=3", {"words": ["a"]}, [["a"], 3]),
        ("POST", "/items/7/buy", None, 1),
    ],
)
async def test_arguments_come_from_path_query_string_and_body(method: str, path: str, body: Any, result: Any) -> None:
    async with testing.http(shop()) as client:
        assert await ask(client, method, path, body) == (200, {"result": result})


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "sentence"),
    [
        ("GET", "/items/x", None, 400, 'Argument "id" must be integer, got string'),
        ("GET", "/items/3?color=red", None, 400, 'Unknown argument "color"'),
        ("GET", "/items/3?id=4", None, 400, "The argument id is given twice: in the query string and elsewhere"),
        ("PATCH", "/items/x/name", {"name": "y", "item": "z"}, 400, "The argument item is given twice: in the body"),
        ("PATCH", "/items/x/name", None, 400, 'Argument "name" is missing'),
        ("PATCH", "/items/x/name", b"[1]", 400, "Invalid JSON body"),
        ("DELETE", "/items/%FF", None, 400, "The path cannot be read"),
        ("GET", "/items/", None, 404, "There is nothing at /items/"),
        ("GET", "/items/3/4", None, 404, "There is nothing at /items/3/4"),
        ("GET", "/search", None, 405, "The method GET is not allowed here: use POST, OPTIONS"),
    ],
)
async def test_a_wrong_request_is_refused(method: str, path: str, body: Any, status: int, sentence: str) -> None:
    async with testing.http(shop()) as client:
        got, told = await ask(client, method, path, body)
    assert (got, told["error"][: len(sentence)]) == (status, sentence)


async def test_options_returns_the_methods_of_a_path() -> None:
    async with testing.http(shop(), allowed_origins=["https://shop.example"]) as client:
        refused = client.request("POST", "/items/3")
        await refused.body()
        assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD, PUT, DELETE, OPTIONS")
        headers = {"origin": "https://shop.example", "access-control-request-method": "PUT"}
        preflight = client.request("OPTIONS", "/items/3", headers=headers)
        await preflight.body()
        assert preflight.headers["access-control-allow-methods"] == "GET, HEAD, PUT, DELETE, OPTIONS"
        head = client.request("HEAD", "/items/3")
        assert (await head.body(), head.status) == (b"", 200)


async def test_a_form_of_another_site_cannot_call_a_mutation_without_a_body() -> None:
    async with testing.http(shop()) as client:
        form = {"content-type": "application/x-www-form-urlencoded"}
        assert (await ask(client, "POST", "/items/3/buy", headers=form))[0] == 415
        foreign = {"origin": "https://evil.example"}
        assert (await ask(client, "POST", "/items/3/buy", headers=foreign))[0] == 403


async def test_a_route_has_the_access_rules_of_its_operation() -> None:
    async with testing.http(shop()) as client:
        assert (await ask(client, "PUT", "/items/3", {"name": "x"}, identity=KEEPER))[1] == {"result": [3, "x", 1]}
        hidden = await ask(client, "PUT", "/items/3", {"name": "x"}, identity=Identity("bob"))
        assert hidden[0] == 405  # like a path that has no such method
        unknown = await ask(client, "GET", "/nothing", identity=Identity("bob"))
        assert unknown[0] == 404


def test_a_closed_server_hides_which_routes_there_are() -> None:
    with serve(App(shop(), tokens=Tokens({"secret-of-ann": KEEPER})).http()) as server:
        known, unknown = server.get("/items/3"), server.get("/nothing")
        assert (known.status, known.body) == (unknown.status, unknown.body)
        assert known.status == 401
        assert server.get("/items/3", authorization="Bearer secret-of-ann").json == {"result": [3, [], None]}


async def test_a_route_has_formats_selections_keys_tasks_and_streams() -> None:
    ops = shop()
    async with Tasks(ops, MemoryTasks()) as tasks, testing.http(ops, tasks=tasks) as client:
        status, told = await ask(client, "GET", "/items/3", headers={"enfold-format": "envelope"})
        assert (status, told["data"], told["meta"]["operationId"]) == (200, [3, [], None], "shop.item")
        status, told = await ask(client, "POST", "/search?format=envelope", {"words": []})
        assert told["data"] == [[], 10]
        keys = {"idempotency-key": "one"}
        bought = [await ask(client, "POST", "/items/7/buy", headers=keys, identity=KEEPER) for _ in range(2)]
        assert bought == [(200, {"result": 1})] * 2
        assert (await ask(client, "POST", "/items/7/buy", headers={"prefer": "respond-async"}))[0] == 202
        stream = client.request("GET", "/ticks/2", headers={"accept": "text/event-stream"})
        assert b'data: {"result":1}' in await stream.body()
        assert stream.headers["content-type"] == "text/event-stream"


async def test_the_document_describes_the_routes() -> None:
    document = to_openapi(shop(), everything=True)
    pytest.importorskip("openapi_spec_validator").validate(document)
    paths = {path: sorted(item) for path, item in document["paths"].items() if not path.startswith("/functions/")}
    assert paths == {
        "/items/{id}": ["delete", "get", "put"],
        "/items/mine": ["get"],
        "/items/{item}/name": ["patch"],
        "/search": ["post"],
        "/items/{id}/buy": ["post"],
        "/ticks/{n}": ["get"],
    }
    assert document["paths"]["/items/{id}/buy"]["post"].keys().isdisjoint({"requestBody"})


async def test_a_client_made_from_the_document_calls_the_routes() -> None:
    with serve(to_http(shop())) as server:
        document = server.get("/openapi.json").json
        document["paths"] = {path: item for path, item in document["paths"].items() if "/functions/" not in path}
        imported = from_openapi(document, namespace="rest", base_url=f"http://127.0.0.1:{server.port}")
        ops = OperationRegistry()
        ops.register_all(imported)
        found = {spec.name: spec.id for spec in ops.list()}
        got = await ops.execute(found["shop_item_rest"], {"id": 3, "tags": ["a", "b"]})
        assert got.data == {"result": [3, ["a", "b"], None]}
        gone = await ops.execute(found["shop_remove_rest"], {"id": "a/b"})  # the name that GET has in the same path
        assert gone.data == {"result": "a/b"}


def test_curl_calls_a_route_of_a_real_server() -> None:
    curl = shutil.which("curl")
    if curl is None:
        not_run("curl")
    with serve(App(shop()).http()) as server:

        def run(*words: str) -> Any:
            command = [str(curl), "-s", *words[:-1], f"http://127.0.0.1:{server.port}{words[-1]}"]
            return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)

        assert run("/items/3?tags=a&tags=b") == {"result": [3, ["a", "b"], None]}
        assert run("-X", "DELETE", "/items/a%2Fb") == {"result": "a/b"}
        for method, path in (("DELETE", "/items/x"), ("GET", "/items/3")):
            refused = f"{method} requests cannot have a body here: pass arguments in the query string"
            assert run("-X", method, "--json", '{"q": "y"}', path) == {"error": refused}
        assert run("-X", "PATCH", "--json", '{"name": "y"}', "/items/x/name") == {"result": ["x", "y"]}


@pytest.mark.parametrize(
    ("method", "path", "body", "result"),
    [
        ("GET", "/items/3", b"", [3, [], None]),
        ("DELETE", "/items/x", b"", "x"),
        ("PATCH", "/items/x/name", b'{"name": "y"}', ["x", "y"]),
        ("POST", "/mine", b"", "mine"),  # the name of an operation
    ],
)
def test_a_cgi_program_has_the_routes(method: str, path: str, body: bytes, result: Any) -> None:
    out = BytesIO()
    variables = {"REQUEST_METHOD": method, "PATH_INFO": path, "CONTENT_TYPE": "application/json"}
    to_cgi(shop(), environ=variables, stdin=BytesIO(body), stdout=out)
    assert json.loads(out.getvalue().partition(b"\r\n\r\n")[2]) == {"result": result}


def test_a_cgi_program_finds_nothing_at_a_path_that_is_not_utf_8() -> None:
    out = BytesIO()
    variables = {"REQUEST_METHOD": "DELETE", "PATH_INFO": "/items/\udcff"}  # as Python reads the byte FF
    to_cgi(shop(), environ=variables, stdin=BytesIO(b""), stdout=out)
    assert out.getvalue().startswith(b"Status: 404")


@pytest.mark.parametrize("root", ["/api", "/my api", "/api/v1", "/ä"])
async def test_routes_work_below_any_path_of_another_app(root: str) -> None:
    outer = Starlette(routes=[Mount(root, app=shop())])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(outer), base_url="http://localhost") as client:
        assert (await client.delete(f"{quote(root)}/items/a%2Fb")).json() == {"result": "a/b"}


# views


async def test_a_mounted_view_has_its_routes_below_the_prefix() -> None:
    both = OperationRegistry()
    both.register_all(shop().mount("west"))
    both.register_all(shop().mount("east.side"))
    async with testing.http(both.only(lambda spec: spec.name != "mine")) as client:
        assert await ask(client, "GET", "/west/items/3") == (200, {"result": [3, [], None]})
        assert await ask(client, "GET", "/east/side/items/4") == (200, {"result": [4, [], None]})
        assert (await ask(client, "GET", "/east/side/items/mine"))[0] == 400  # not the view's: it is an id
        assert (await ask(client, "GET", "/items/3"))[0] == 404


async def test_routes_come_and_go_with_their_operations() -> None:
    ops = shop()
    async with testing.http(ops.rename({"shop.mine": "shop.own"})) as client:
        assert (await ask(client, "GET", "/items/mine"))[1] == {"result": "mine"}
        ops.unregister("shop.mine")
        assert (await ask(client, "GET", "/items/mine"))[0] == 400

        @ops.query(http="GET /items/mine")
        def again() -> str:
            return "again"

        assert (await ask(client, "GET", "/items/mine"))[1] == {"result": "again"}


def echo(text: str) -> str:
    return text


async def test_many_routes_stay_apart() -> None:
    ops = OperationRegistry("many")
    for number in range(2000):
        ops.query(name=f"get{number}", http=f"GET /part{number % 50}/{number}/{{text}}")(echo)
    async with testing.http(ops) as client:
        answers = await asyncio.gather(*(ask(client, "GET", f"/part{n % 50}/{n}/{n}") for n in range(0, 2000, 99)))
    assert [answer for _, answer in answers] == [{"result": str(n)} for n in range(0, 2000, 99)]


# registration


@pytest.mark.parametrize(
    ("http", "sentence"),
    [
        ("/items/{id}", "/items/{id} is not a method"),
        ("FETCH /items/{id}", "FETCH is not a method: use GET, POST, PUT, PATCH or DELETE"),
        ("get /items/{id}", "get is not a method"),
        ("GET items/{id}", "the path must begin with /"),
        ("GET /items/{id}/", "the path has an empty segment"),
        ("GET /", "the path has an empty segment"),
        ("GET /items/{id", "an argument must be a whole segment of the path"),
        ("GET /items/x{id}", "an argument must be a whole segment of the path"),
        ("GET /items/:id", "an argument must be a whole segment of the path"),
        ("GET /items/{id:int}", "{id:int} is not a valid argument name"),
        ("GET /items/{id}/{id}", "the path has the argument id twice"),
        ("GET /items/{number}", "shop.item has no argument number: its arguments are id, tags"),
        ("GET /items/{tags}", "the argument tags is an array, which a path cannot contain"),
        ("GET /items?id={id}", "an argument must be a whole segment"),
        ("GET /a b/{id}", "'a b' cannot be a segment of a path"),
        ("GET /../{id}", "'..' cannot be a segment of a path"),
        ("GET /{id}", "the path begins with an argument"),
        ("GET /functions/{id}", "paths below /functions are reserved for the server"),
        ("GET /mcp", "paths below /mcp are reserved for the server"),
        ("DELETE /items/{id}", "shop.item is a query: use GET or POST"),
    ],
)
def test_a_wrong_route_is_refused_at_registration(http: str, sentence: str) -> None:
    ops = OperationRegistry("shop")
    with pytest.raises(ValueError, match="http=") as refused:

        @ops.query(http=http)
        def item(id: int, tags: list[str] = []) -> int:  # noqa: B006  # it stays empty
            return id

    assert sentence in str(refused.value)
    assert len(ops) == 0


class Size(msgspec.Struct):
    width: int


def by_size(size: Size) -> int:
    return size.width


def by_size_or_none(size: Size | None) -> int:
    return size.width if size else 0


def by_sizes(size: list[int] | None) -> int:
    return len(size or ())


@pytest.mark.parametrize(("function", "kind"), [(by_size, "object"), (by_size_or_none, "object"), (by_sizes, "array")])
def test_an_argument_that_a_path_cannot_contain_is_refused_however_it_is_annotated(function: Any, kind: str) -> None:
    with pytest.raises(ValueError, match=f"the argument size is an {kind}, which a path cannot contain"):
        OperationRegistry("shop").query(http="GET /sizes/{size}")(function)


def test_a_mutation_cannot_be_called_by_get() -> None:
    ops = OperationRegistry("shop")
    with pytest.raises(ValueError, match="is a mutation: use POST, PUT, PATCH or DELETE"):
        ops.mutation(http="GET /echo")(echo)


def test_a_route_of_another_operation_is_refused() -> None:
    ops = shop()
    with pytest.raises(
        ValueError, match=r"shop.other: GET /items/\{name\} matches the same requests as GET /items/\{id\} of shop.item"
    ):

        @ops.query(http="GET /items/{name}")
        def other(name: str) -> str:
            return name

    assert "shop.other" not in ops
    both = OperationRegistry()
    with pytest.raises(ValueError, match="matches the same requests"):
        both.register_all([*shop(), *shop().rename({spec.id: f"mall.{spec.name}" for spec in shop().list()})])
    assert len(both) == 0
    ops.replace(ops.get("shop.item"))  # which keeps its own route


def test_every_path_of_the_server_is_reserved() -> None:
    own = [*OWN_PATHS, *OWN_PREFIXES, *PARENTS, "/tasks", "/mcp", "/metrics", "/console/", "/health"]
    assert {path.split("/")[1] for path in own} == TAKEN


def test_a_spec_keeps_its_route_on_its_way_to_another_process() -> None:
    spec = shop().get_spec("shop.item")
    assert spec.from_dict(spec.to_dict()) == spec
    assert spec.http == "GET /items/{id}"


async def test_a_route_comes_before_an_app_that_is_mounted_at_the_root() -> None:
    async def other(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b'"other"'})

    async with testing.http(shop(), mounts={"/": other}) as client:
        assert await ask(client, "GET", "/items/mine") == (200, {"result": "mine"})
        assert await ask(client, "GET", "/elsewhere") == (200, "other")


async def test_a_gateway_has_the_routes_of_its_workers_below_their_namespace() -> None:
    bus = MemoryTransport("worker")
    gateway = OperationRegistry("gate")

    @gateway.query(http="GET /west/items/{name}")
    def own(name: str) -> str:
        return name

    async with (
        serve_calls(shop(), bus),
        from_calls(bus.join("west"), namespace="west") as west,
        from_calls(bus.join("east"), namespace="east") as east,
        from_calls(bus.join("again")) as again,
    ):
        for operations in (west, east, again):
            gateway.register_all(operations)
        async with testing.http(gateway) as client:
            assert await ask(client, "GET", "/east/items/3") == (200, {"result": [3, [], None]})
            assert await ask(client, "GET", "/items/4") == (200, {"result": [4, [], None]})
            assert await ask(client, "GET", "/west/items/x") == (200, {"result": "x"})  # a function of the gateway
            assert await ask(client, "GET", "/west/items/mine") == (200, {"result": "mine"})
    pytest.importorskip("openapi_spec_validator").validate(to_openapi(gateway, everything=True))
