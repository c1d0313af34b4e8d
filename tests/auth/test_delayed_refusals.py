"""Delayed responses to wrong tokens: they end with their client, keep nothing of the request, and their number is limited."""

from __future__ import annotations

import asyncio
import re
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from tests.served import serving
from tests.serving import serve

from enfold import Identity, OperationRegistry
from enfold.auth.tokens import FREE, MAX_WAITING, Tokens
from enfold.surfaces.http import to_http
from enfold.surfaces.mcp import to_mcp

ATTACKS: Final = 1_500
PATHS: Final = ["/functions/shop.greet", "/mcp"]
APP: Final = """\
from enfold import OperationRegistry

ops = OperationRegistry("shop")

@ops.mutation
def greet(name: str) -> str:
    return name
"""


def _wrong(path: str, *, large: str = "x-large: ", size: int = 58_000) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 60000\r\n"
    token = "" if large.startswith("authorization") else "authorization: Bearer wrong\r\n"
    return f"{head}{token}{large}".encode() + b"a" * size + b"\r\n\r\n" + b" " * 60_000


def _memory(pid: int) -> float:
    """The resident memory of a process in MB."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1000


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is measured on Linux")
@pytest.mark.parametrize("large", ["x-large: ", "authorization: Bearer "], ids=["a large header", "a large token"])
@pytest.mark.parametrize("path", PATHS)
def test_wrong_tokens_of_clients_that_disconnect_take_no_memory(tmp_path: Path, path: str, large: str) -> None:
    (tmp_path / "app.py").write_text(APP)
    with serving("app.py", "--token", "right", "--log-level", "error", cwd=tmp_path) as served:
        port = int(served.base.rpartition(":")[2])
        before = _memory(served.process.pid)
        for _ in range(ATTACKS):
            with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
                connection.sendall(_wrong(path, large=large))
        assert served.get("/healthz") == {"status": "ok"}
        assert _memory(served.process.pid) - before < 50


def _app() -> Any:
    ops = OperationRegistry("shop")

    @ops.mutation
    def greet(name: str) -> str:
        return name

    tokens = Tokens({"right": Identity("ann")})
    return to_http(ops, tokens=tokens, mounts={"/mcp": to_mcp(ops)})


class Guesser:
    """A client with a wrong token, and the app's answer to it."""

    def __init__(self, app: Any, path: str, *, stays: bool) -> None:
        self.is_watched = False
        self.status = 0
        self._leaves = asyncio.Event()
        if not stays:
            self.leave()
        headers = [(b"host", b"localhost"), (b"authorization", b"Bearer wrong")]
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
        self.call = asyncio.ensure_future(app({**scope, "client": ("192.0.2.1", 1)}, self._receive, self._send))

    def leave(self) -> None:
        self._leaves.set()

    async def _receive(self) -> dict[str, Any]:
        self.is_watched = True
        await self._leaves.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        self.status = message.get("status", self.status)


@pytest.mark.parametrize("path", PATHS)
async def test_a_refusal_that_waits_ends_when_its_client_disconnects(path: str) -> None:
    app = _app()
    before = [Guesser(app, path, stays=False) for _ in range(FREE + 4)]
    patient = Guesser(app, path, stays=True)  # waits for seconds, and those after it would wait longer
    after = [Guesser(app, path, stays=False) for _ in range(10)]
    await asyncio.gather(*(each.call for each in [*before, *after]))
    assert not patient.call.done()
    patient.leave()
    await patient.call


@pytest.mark.parametrize("path", PATHS)
async def test_no_more_refusals_wait_than_the_limit_and_further_ones_are_sent_at_once(path: str) -> None:
    app = _app()
    guessers = [Guesser(app, path, stays=True) for _ in range(FREE + MAX_WAITING + 40)]
    await asyncio.gather(*(each.call for each in guessers[-40:]))
    assert {each.status for each in guessers[-40:]} == {401}
    assert sum(each.is_watched for each in guessers) == MAX_WAITING
    for each in guessers:
        each.leave()
    await asyncio.gather(*(each.call for each in guessers))


def test_a_right_token_never_waits_however_many_refusals_do() -> None:
    with serve(_app()) as client, ExitStack() as connections:
        for _ in range(FREE + 20):
            connection = connections.enter_context(client.connect())
            connection.sendall(_wrong("/functions/shop.greet"))
        answer = client.post("/functions/shop.greet", {"name": "Ann"}, Authorization="Bearer right")
        assert answer.json == {"result": "Ann"}
