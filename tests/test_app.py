"""`App` as its users use it: under uvicorn in a process, below another application, and by its own `run`."""

import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.serving import is_listening, serve
from tests.waiting import Said, wait_for

from enfold import App, Context, Identity, OperationRegistry, testing
from enfold.app import HTTPSettings, Limits, MCPSettings
from enfold.auth.issuers import Issuer
from enfold.auth.tokens import Tokens
from enfold.provenance import Recorder
from enfold.surfaces.http import to_http
from enfold.surfaces.mcp import to_mcp
from enfold.tasks import Tasks
from enfold.tasks.memory import MemoryTasks

PROGRAM = """
from enfold import App, OperationRegistry

ops = OperationRegistry("shop")

@ops.on_start
def start():
    print("started", flush=True)

@ops.on_stop
def stop():
    print("stopped", flush=True)

@ops.query
def add(x: int, y: int) -> int:
    return x + y

app = App(ops)
asgi = app.http()

if __name__ == "__main__":
    import sys
    app.run(port=int(sys.argv[1]))
"""
TOOL_CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "shop_add", "arguments": {"x": 1, "y": 2}},
}
ANN = Identity("ann", frozenset({"enfold:read"}))


def shop() -> OperationRegistry:
    ops = OperationRegistry("shop")

    @ops.query
    def add(x: int, y: int) -> int:
        """Add two numbers."""
        return x + y

    @ops.query
    def who(context: Context) -> str:
        return context.identity.id if context.identity else "anonymous"

    @ops.mutation(durable="optional")
    async def bake(cakes: int) -> int:
        return cakes

    return ops


@pytest.mark.parametrize(
    "command", [["-m", "uvicorn", "shop:asgi", "--no-access-log", "--port"], ["shop.py"]], ids=["uvicorn", "run"]
)
def test_an_app_is_served_in_a_process_until_a_signal_ends_it(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM)
    port = free_port()
    started = [sys.executable, *command, str(port)]
    with subprocess.Popen(started, stdout=subprocess.PIPE, cwd=tmp_path) as process:
        said = Said(process.stdout)
        try:
            assert said.line() == "started\n"
            answer = _post_when_listening(port, "/functions/shop.add", b'{"x": 1, "y": 2}')
        finally:
            process.send_signal(signal.SIGTERM)
        assert (answer, said.rest().strip()) == (b'{"result":3}', "stopped")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _post_when_listening(port: int, path: str, body: bytes) -> bytes:
    wait_for(lambda: is_listening(port))
    with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        return connection.getresponse().read()


def test_http_mcp_console_and_metrics_have_one_authentication() -> None:
    app = App(shop(), tokens=Tokens({"secret": ANN}), recorder=Recorder())
    with serve(app.http()) as client:
        told = {"Authorization": "Bearer secret"}
        assert client.post("/functions/shop.add", {"x": 1, "y": 2}).status == 401
        assert client.post("/functions/shop.who", {}, **told).json == {"result": "ann"}
        answers = [client.post("/mcp", TOOL_CALL, Accept="*/*", **headers) for headers in ({}, told)]
        assert [answer.status for answer in answers] == [401, 200]
        assert [client.get("/metrics", **headers).status for headers in ({}, told)] == [401, 200]
        assert client.get("/", Accept="text/html").status == 200


def test_an_app_mounted_below_another_starts_and_stops_with_it() -> None:
    ops, events = shop(), []
    ops.on_start(lambda: events.append("start"))
    ops.on_stop(lambda: events.append("stop"))
    app = App(ops)

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        async with app:
            yield

    site = Starlette(routes=[Mount("/shop", app.http())], lifespan=lifespan)
    with serve(site) as client:
        assert events == ["start"]
        assert client.post("/shop/functions/add", {"x": 1, "y": 2}).json == {"result": 3}
        assert client.post("/shop/mcp", TOOL_CALL, Accept="*/*").status == 200
    assert events == ["start", "stop"]


def test_tasks_begin_and_end_with_the_app() -> None:
    ops = shop()
    tasks = Tasks(ops, MemoryTasks())
    with serve(App(ops, tasks=tasks).http()) as client:
        accepted = client.post("/functions/bake", {"cakes": 2}, Prefer="respond-async")
        assert accepted.status == 202
        assert client.get(f"{accepted.headers['location']}/result?wait=20").json == {"result": 2}
        assert client.server.run_there(lambda: tasks.runner.is_running)
    assert not tasks.runner.is_running


def test_limits_of_an_app_hold_on_every_surface() -> None:
    with serve(App(shop(), limits=Limits(calls_per_second=0.001)).http()) as client:
        assert client.post("/functions/add", {"x": 1, "y": 2}).status == 200
        assert client.post("/functions/add", {"x": 1, "y": 2}).status == 429
        assert b"RESOURCE_EXHAUSTED" in client.post("/mcp", TOOL_CALL, Accept="*/*").body


def test_settings_of_the_surfaces_are_values() -> None:
    app = App(shop(), mcp=MCPSettings(name="Corner shop"))
    with serve(app.http(HTTPSettings(format="envelope", console=False))) as client:
        assert client.post("/functions/add", {"x": 1, "y": 2}).json["data"] == 3
        assert client.get("/").status == 404
    with serve(app.mcp()) as client:
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        answer = client.post("/", {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}, Accept="*/*")
        assert answer.json["result"]["serverInfo"]["name"] == "Corner shop"


def test_tokens_and_issuers_are_accepted_side_by_side() -> None:
    issuer = Issuer(issuer="https://login.example", audiences=("shop",), prefix="partner:")
    with serve(App(shop(), tokens=Tokens({"secret": ANN}), issuers=[issuer]).http()) as client:
        assert client.post("/functions/who", {}, Authorization="Bearer secret").json == {"result": "ann"}
        document = client.get("/.well-known/oauth-protected-resource/mcp").json
        assert document["authorization_servers"] == ["https://login.example"]


def test_the_metadata_of_token_issuers_can_only_be_read() -> None:
    path = "/.well-known/oauth-protected-resource"
    wrong = {"Authorization": "Bearer wrong"}
    with serve(App(shop(), tokens=Tokens({"secret": ANN})).http()) as client:
        for resource in ("", "/mcp"):
            document = client.get(path + resource).json
            assert document["resource"].removesuffix("/").endswith(f":{client.port}{resource}")
            assert (client.request("HEAD", path + resource).status, client.request("HEAD", path + resource).body) == (
                200,
                b"",
            )
            refused = client.post(f"{resource or '/functions/add'}", TOOL_CALL, **wrong)
            assert refused.status == 401
            assert refused.headers["www-authenticate"].endswith(f'{path}{resource}"')
        assert client.post(path, TOOL_CALL, Authorization="Bearer secret", Accept="*/*").status == 404


def test_beyond_the_loopback_an_app_does_not_run_without_authentication() -> None:
    with pytest.raises(ValueError, match="without tokens gives everyone access"):
        App(shop()).run("0.0.0.0", 0)  # which is refused


@pytest.mark.parametrize("surface", ["http", "mcp", "App"])
async def test_a_single_host_and_origin_need_no_list(surface: str) -> None:
    access = {"allowed_hosts": "shop.example.com", "allowed_origins": "https://page.example.com"}
    ops = OperationRegistry()
    surfaces: dict[str, Any] = {"http": to_http, "mcp": to_mcp, "App": lambda ops, **given: App(ops, **given).http()}
    app = surfaces[surface](ops, **access)
    headers = {
        "host": "shop.example.com",
        "origin": "https://page.example.com",
        "access-control-request-method": "POST",
    }
    answer = await testing.Conversation(app, "OPTIONS", "/mcp", headers).began()
    assert answer.headers["access-control-allow-origin"] == "https://page.example.com"
    refused = await testing.Conversation(app, "GET", "/mcp", {"host": "s"}).began()
    assert refused.status == 403


@pytest.mark.parametrize("tokens", [{"secret": Identity("ann")}, "secret", len], ids=["dict", "text", "function"])
def test_what_cannot_verify_tokens_is_refused_with_advice(tokens: Any) -> None:
    with pytest.raises(TypeError, match=r"cannot verify tokens: pass Tokens"):
        App(OperationRegistry(), tokens=tokens).http()


def test_a_token_without_an_identity_is_refused_with_advice() -> None:
    with pytest.raises(TypeError, match=r"an Identity for each token, not 'ann'"):
        Tokens({"secret": "ann"})  # type: ignore[arg-type]
