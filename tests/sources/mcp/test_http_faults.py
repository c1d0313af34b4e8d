"""Servers over HTTP that break off, forget their session or answer with something else."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from enfold import CallError, OperationRegistry
from enfold.sources.mcp import Connection, MCPLimits, MCPOperations, from_mcp
from enfold.surfaces.mcp import to_mcp

Serve = Callable[..., AbstractAsyncContextManager[str]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

TOOLS = [
    {"name": name, "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": name.startswith("read")}}
    for name in ("add", "cut", "read_cut", "page", "big", "resumed")
]


class Odd:
    """A server of the older era, one session at a time, with odd habits; it counts the calls it has seen."""

    def __init__(self) -> None:
        self.sessions = 0
        self.calls: list[str] = []
        self.forgets_with = 404

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        if scope["method"] == "GET" and headers.get("last-event-id") == "half":
            await events(send, "", answer(self.waiting, "whole"))
        elif scope["method"] != "POST":
            await plain(send, 405, "no stream here")
        else:
            await self.take(json.loads((await receive())["body"]), headers, send)

    async def take(self, message: dict[str, Any], headers: dict[str, str], send: Send) -> None:
        method = message["method"]
        if method == "initialize":
            self.sessions += 1
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "odd"}}
            await body(send, {"jsonrpc": "2.0", "id": message["id"], "result": result}, str(self.sessions))
        elif headers.get("mcp-session-id") != str(self.sessions):
            await plain(send, self.forgets_with, "Bad Request: No valid session ID")
        elif method == "tools/list":
            await body(send, {"jsonrpc": "2.0", "id": message["id"], "result": {"tools": TOOLS}})
        elif method == "tools/call":
            await self.call(message, send)
        else:
            await plain(send, 202, "")

    async def call(self, message: dict[str, Any], send: Send) -> None:
        name, self.waiting = message["params"]["name"], message["id"]
        self.calls.append(name)
        if name == "add":
            await body(send, answer(message["id"], "done"))
        elif name == "page":
            await plain(send, 200, "<html>Welcome</html>")
        elif name == "big":
            await body(send, answer(message["id"], "x" * 500_000))
        else:
            await events(send, "id: half\nretry: 10\ndata:\n\n" if name == "resumed" else ": so far\n\n")


def answer(request_id: Any, words: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "result": {"content": [{"type": "text", "text": words}]}}


async def plain(send: Send, status: int, text: str) -> None:
    await respond(send, status, "text/html", text)


async def body(send: Send, message: dict[str, Any], session: str = "") -> None:
    await respond(send, 200, "application/json", json.dumps(message), session)


async def events(send: Send, text: str, message: dict[str, Any] | None = None) -> None:
    await respond(send, 200, "text/event-stream", text + (f"data: {json.dumps(message)}\n\n" if message else ""))


async def respond(send: Send, status: int, kind: str, text: str, session: str = "") -> None:
    headers = [(b"content-type", kind.encode()), *([(b"mcp-session-id", session.encode())] if session else [])]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})


def registry_of(operations: MCPOperations) -> OperationRegistry:
    ops = OperationRegistry()
    ops.register_all(operations)
    return ops


@pytest.mark.parametrize("status", [404, 400])
async def test_a_forgotten_session_is_opened_again_and_the_call_is_made_once(serve: Serve, status: int) -> None:
    odd = Odd()
    odd.forgets_with = status
    async with serve(odd) as url, from_mcp(url) as operations:
        ops = registry_of(operations)
        odd.sessions += 1
        assert (await ops.execute("add", {})).data == [{"type": "text", "text": "done"}]
    assert odd.calls == ["add"]


@pytest.mark.parametrize(("tool", "retryable"), [("cut", False), ("read_cut", True)])
async def test_a_stream_that_breaks_off_is_not_asked_for_again(serve: Serve, tool: str, retryable: bool) -> None:
    odd = Odd()
    async with serve(odd) as url, from_mcp(url) as operations:
        with pytest.raises(CallError) as caught:
            await registry_of(operations).execute(tool, {})
    assert (caught.value.code, caught.value.retryable) == ("UNAVAILABLE", retryable)
    assert odd.calls == [tool]


async def test_a_stream_that_can_be_taken_up_again_is(serve: Serve) -> None:
    odd = Odd()
    async with serve(odd) as url, from_mcp(url) as operations:
        envelope = await registry_of(operations).execute("resumed", {})
    assert envelope.data == [{"type": "text", "text": "whole"}]
    assert odd.calls == ["resumed"]


async def test_a_page_instead_of_an_answer_is_reported(serve: Serve) -> None:
    async with serve(Odd()) as url, from_mcp(url) as operations:
        with pytest.raises(CallError) as caught:
            await registry_of(operations).execute("page", {})
    assert (caught.value.code, caught.value.details) == ("DATA_LOSS", {"status": 200, "content_type": "text/html"})


async def test_an_answer_over_the_limit_is_refused(serve: Serve) -> None:
    async with (
        serve(Odd()) as url,
        from_mcp(url, connection=Connection(limits=MCPLimits(message_bytes=100_000))) as operations,
    ):
        with pytest.raises(CallError) as caught:
            await registry_of(operations).execute("big", {})
    assert caught.value.code == "PAYLOAD_TOO_LARGE"


async def test_an_address_without_a_listener_is_unavailable(serve: Serve) -> None:
    async with serve(Odd()) as url:
        pass
    with pytest.raises(CallError) as caught:
        await from_mcp(url).__aenter__()
    assert (caught.value.code, caught.value.retryable) == ("UNAVAILABLE", True)


class OldestTransport:
    """A server that names the address of its answers first, and then answers on the stream that it named it on."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.posted: list[str] = []
        self._answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            await self.take(json.loads((await receive())["body"]), scope["path"], send)
        elif scope["type"] == "http":
            streaming = asyncio.create_task(self.stream(send, dict(scope["headers"])[b"host"].decode()))
            while (await receive())["type"] != "http.disconnect":
                pass
            streaming.cancel()

    async def take(self, message: dict[str, Any], path: str, send: Send) -> None:
        self.posted.append(path)
        facts = {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}, "serverInfo": {"name": "oldest"}}
        result: dict[str, Any] = {"tools": TOOLS} if message["method"] == "tools/list" else facts
        if "id" in message:
            self._answers.put_nowait({"jsonrpc": "2.0", "id": message["id"], "result": result})
        await plain(send, 202, "")

    async def stream(self, send: Send, host: str) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        text = f"event: endpoint\ndata: {self.endpoint.replace('HOST', host)}\n\n"
        while True:
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
            text = f"data: {json.dumps(await self._answers.get())}\n\n"


@pytest.mark.parametrize("endpoint", ["/messages", "messages", "http://HOST/messages", "HTTP://HOST/messages"])
async def test_messages_of_the_oldest_transport_go_to_the_address_that_its_server_names(
    serve: Serve, endpoint: str
) -> None:
    oldest = OldestTransport(endpoint)
    async with serve(oldest) as url, from_mcp({"url": f"{url}/sse", "transport": "sse"}) as operations:
        assert len(list(operations)) == len(TOOLS)
    assert set(oldest.posted) == {"/messages"}


@pytest.mark.parametrize(
    "endpoint",
    ["http://127.0.0.1:9/messages", "https://HOST/m", "//evil.test/m", "http://HOST@evil.test/", "http://[", "x:y"],
)
async def test_messages_of_the_oldest_transport_go_to_no_other_server(serve: Serve, endpoint: str) -> None:
    oldest = OldestTransport(endpoint)
    async with serve(oldest) as url:
        with pytest.raises(CallError, match="sends its messages to another server"):
            await from_mcp({"url": f"{url}/sse", "transport": "sse"}).__aenter__()
    assert oldest.posted == []


class HangingUp:
    """A server that reads the first call on a connection and hangs up, as one does that has just closed an idle one."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = re.search(rb"content-length: (\d+)", head.lower())
                message = json.loads(await reader.readexactly(int(length[1]) if length else 0) or b"{}")
                if message.get("method") == "tools/call":
                    self.calls.append(message["params"]["name"])
                    if len(self.calls) == 1:
                        break
                writer.write(self.response(message))
        except asyncio.IncompleteReadError:
            pass
        writer.close()

    def response(self, message: dict[str, Any]) -> bytes:
        if message.get("method") not in ("initialize", "tools/list", "tools/call"):
            return b"HTTP/1.1 %d OK\r\ncontent-length: 0\r\n\r\n" % (202 if message else 405)
        result: dict[str, Any] = {"tools": TOOLS, "content": [{"type": "text", "text": "done"}]}
        result |= {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
        text = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
        return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(text), text)


async def test_a_query_whose_connection_is_closed_without_an_answer_is_sent_again_and_a_mutation_is_not() -> None:
    for tool, calls in (("read_cut", 2), ("add", 1)):
        server = HangingUp()
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        url = "http://127.0.0.1:%d/mcp" % listening.sockets[0].getsockname()[1]
        async with listening, from_mcp(url, connection=Connection(protocol="2025-11-25")) as operations:
            executing = registry_of(operations).execute(tool, {})
            if calls == 2:
                assert (await executing).text() == "done"
            else:
                with pytest.raises(CallError, match="closed the connection early"):
                    await executing
        assert server.calls == [tool] * calls


class SlowAtFirst:
    """A server of both eras that answers its first request when it has got the second; it notes the revisions named."""

    def __init__(self) -> None:
        ops = OperationRegistry("shop")

        @ops.query
        def one() -> int:
            return 1

        self._app = to_mcp(ops)
        self._has_second, self._has_answered = asyncio.Event(), asyncio.Event()
        self.requests = 0
        self.revision = b""

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        if scope["type"] == "http":
            self.requests += 1
            self.revision = dict(scope["headers"]).get(b"mcp-protocol-version", b"")
        if self.requests == 1:
            await self._has_second.wait()
            await self._app(scope, receive, send)
            self._has_answered.set()
            return
        if self.requests > 1:
            self._has_second.set()
            await self._has_answered.wait()
        await self._app(scope, receive, send)


async def test_a_server_that_is_only_slow_is_spoken_to_in_the_newest_revision(serve: Serve) -> None:
    slow = SlowAtFirst()
    impatient = Connection(limits=MCPLimits(probe=0.1))
    async with serve(slow) as url, from_mcp(f"{url}/mcp", connection=impatient) as operations:
        assert (await registry_of(operations).execute("shop_one")).data == 1
    assert slow.revision == b"2026-07-28"
