"""The server on the standard streams, as a real program."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

SHOP = """
import asyncio, sys, threading
from enfold import Context, OperationRegistry
from enfold.mcp import elicit
from enfold.surfaces.mcp import serve_stdio

ops = OperationRegistry("shop")
meeting = asyncio.Event()

@ops.query
async def add(x: int, y: int) -> int:
    print("thinking")
    return x + y

@ops.query
async def arrive(context: Context) -> str:
    context.progress(1)
    await meeting.wait()
    return "met"

@ops.query
async def meet() -> str:
    meeting.set()
    return "here"

@ops.query
async def wait(context: Context) -> str:
    context.progress(1)
    try:
        await asyncio.Event().wait()
    finally:
        print("gave up", file=sys.stderr, flush=True)

@ops.query
async def greet(context: Context) -> str:
    return (await elicit(context, "Your name?", key="name")).content["name"]

@ops.mutation
def grow() -> str:
    ops.query(name="new")(lambda: 1)
    return "grown"

serve_stdio(ops, name="Shop")
"""

Message: TypeAlias = dict[str, Any]
META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}


class Program:
    """A server and the pipes to it."""

    def __init__(self, path: Path, *options: str) -> None:
        command = [sys.executable, *options, str(path)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
        self._id = 0

    def write(self, *messages: Message | bytes) -> None:
        assert self.process.stdin is not None
        for message in messages:
            line = message if isinstance(message, bytes) else json.dumps(message).encode()
            self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def read(self) -> Message:
        assert self.process.stdout is not None
        message: Message = json.loads(self.process.stdout.readline())
        return message

    def send(self, method: str, params: Message | None = None, meta: Message | None = None) -> int:
        self._id += 1
        given = {**(params or {}), **({"_meta": meta} if meta else {})}
        self.write({"jsonrpc": "2.0", "id": self._id, "method": method, "params": given})
        return self._id

    def ask(self, method: str, params: Message | None = None, meta: Message | None = None) -> Message:
        request_id = self.send(method, params, meta)
        answer = self.read()
        assert answer["id"] == request_id
        return answer

    def call(self, tool: str, meta: Message | None = None, **arguments: Any) -> Message:
        result: Message = self.ask("tools/call", {"name": tool, "arguments": arguments}, meta)["result"]
        return result

    def initialize(self, **capabilities: Any) -> Message:
        params = {"protocolVersion": "2025-11-25", "capabilities": capabilities}
        result: Message = self.ask("initialize", params)["result"]
        self.write({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return result

    def end(self) -> tuple[int, str]:
        """Close its input, and wait until it ends: its exit code, and what it said to us."""
        _, said = self.process.communicate(timeout=20)
        return self.process.returncode, said.decode()


Start: TypeAlias = Callable[..., Program]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start the shop as a program, or another one."""
    programs: list[Program] = []

    def begin(*options: str, source: str = SHOP) -> Program:
        path = tmp_path / "shop.py"
        path.write_text(textwrap.dedent(source))
        programs.append(Program(path, *options))
        return programs[-1]

    yield begin
    for program in programs:
        program.process.kill()
        with program.process:  # closes its pipes, and waits for it
            pass


def test_a_handshake_then_calls(start: Start) -> None:
    program = start()
    assert program.initialize()["serverInfo"] == {"name": "Shop", "version": "0.0.0"}
    assert program.ask("tools/list")["result"]["tools"][0]["name"] == "shop_add"
    assert program.call("shop_add", x=1, y=2)["structuredContent"] == {"result": 3}
    assert program.ask("ping")["result"] == {}
    assert program.end()[0] == 0


def test_calls_without_a_handshake(start: Start) -> None:
    program = start()
    meta = {**META, "io.modelcontextprotocol/clientCapabilities": {}}
    assert program.ask("server/discover", meta=meta)["result"]["supportedVersions"] == ["2026-07-28"]
    result = program.call("shop_add", meta, x=1, y=2)
    assert (result["resultType"], result["structuredContent"]) == ("complete", {"result": 3})


def test_a_probe_that_says_too_little_is_refused(start: Start) -> None:
    program = start()
    assert program.ask("server/discover")["error"]["code"] == -32602
    assert program.ask("server/discover", meta={**META, "io.modelcontextprotocol/protocolVersion": "9"})["error"]
    assert program.ask("tools/call", {"name": "shop_add"}, META)["error"]["code"] == -32602


def test_output_of_handlers_does_not_corrupt_the_protocol(start: Start) -> None:
    program = start()
    program.call("shop_add", x=1, y=2)
    assert "thinking" in program.end()[1]


def test_the_loop_is_loaded_only_by_a_call(start: Start) -> None:
    source = """
        from enfold import OperationRegistry
        from enfold.surfaces.mcp import serve_stdio
        ops = OperationRegistry()
        ops.query(name="one")(lambda: 1)
        serve_stdio(ops)
    """
    quiet = start("-X", "importtime", source=source)
    quiet.initialize()
    quiet.ask("tools/list")
    busy = start("-X", "importtime", source=source)
    assert busy.call("one")["structuredContent"] == {"result": 1}
    assert "asyncio" not in quiet.end()[1]
    assert "asyncio" in busy.end()[1]


def test_calls_run_side_by_side(start: Start) -> None:
    program = start()
    first = program.send("tools/call", {"name": "shop_arrive"}, {"progressToken": "t"})
    assert program.read()["method"] == "notifications/progress"
    second = program.send("tools/call", {"name": "shop_meet"})
    assert [program.read()["id"], program.read()["id"]] == [second, first]


def test_a_call_can_be_cancelled(start: Start) -> None:
    program = start()
    waiting = program.send("tools/call", {"name": "shop_wait"}, {"progressToken": "t"})
    assert program.read()["method"] == "notifications/progress"
    program.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": waiting}})
    assert program.ask("ping")["result"] == {}
    assert "gave up" in program.end()[1]


def test_the_client_is_asked_and_answers(start: Start) -> None:
    program = start()
    program.initialize(elicitation={})
    greeting = program.send("tools/call", {"name": "shop_greet"})
    question = program.read()
    assert question["method"] == "elicitation/create"
    answer = {"action": "accept", "content": {"name": "Ann"}}
    program.write({"jsonrpc": "2.0", "id": question["id"], "result": answer})
    reply = program.read()
    assert (reply["id"], reply["result"]["structuredContent"]) == (greeting, {"result": "Ann"})


def test_changes_are_notified_after_the_handshake(start: Start) -> None:
    program = start()
    program.initialize()
    program.send("tools/call", {"name": "shop_grow"})
    methods = {program.read().get("method") for _ in range(2)}
    assert methods == {"notifications/tools/list_changed", None}


def test_a_subscription_is_notified_of_changes_until_it_is_cancelled(start: Start) -> None:
    program = start()
    meta = {**META, "io.modelcontextprotocol/clientCapabilities": {}}
    listening = program.send("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, meta)
    assert program.read()["method"] == "notifications/subscriptions/acknowledged"
    program.send("tools/call", {"name": "shop_grow"})
    told = [program.read() for _ in range(2)]
    [change] = [message for message in told if "method" in message]
    assert change["params"]["_meta"] == {"io.modelcontextprotocol/subscriptionId": listening}
    program.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": listening}})
    assert program.ask("ping")["result"] == {}


JUNK = {"no JSON": (b"hello", -32700), "no message": (b"{}", -32600), "a number": (b"7", -32600)}


@pytest.mark.parametrize(("line", "code"), JUNK.values(), ids=JUNK)
def test_junk_is_answered_and_survived(start: Start, line: bytes, code: int) -> None:
    program = start()
    program.write(b"", line)
    answer = program.read()
    assert (answer["id"], answer["error"]["code"]) == (None, code)
    assert program.ask("ping")["result"] == {}


def test_an_array_of_messages_is_answered_one_by_one(start: Start) -> None:
    program = start()
    batch = [{"jsonrpc": "2.0", "id": number, "method": "ping"} for number in (1, 2)]
    program.write(json.dumps(batch).encode())
    assert [program.read()["id"], program.read()["id"]] == [1, 2]


def test_a_large_message_comes_and_goes(start: Start) -> None:
    source = """
        from enfold import OperationRegistry
        from enfold.surfaces.mcp import serve_stdio
        ops = OperationRegistry()
        ops.query(name="echo")(lambda text: text)
        serve_stdio(ops)
    """
    text = "ä" * 1_500_000
    assert start(source=source).call("echo", text=text)["structuredContent"] == {"result": text}


@pytest.mark.parametrize("request_id", [99, {}, None], ids=["unknown", "no id", "nothing"])
def test_a_cancellation_of_nothing_is_ignored(start: Start, request_id: Any) -> None:
    program = start()
    program.call("shop_add", x=1, y=2)
    program.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request_id}})
    assert program.ask("ping")["result"] == {}


def test_a_client_that_stops_reading_ends_the_program(start: Start) -> None:
    program = start()
    program.call("shop_add", x=1, y=2)
    assert program.process.stdout is not None
    assert program.process.stderr is not None
    assert program.process.stdin is not None
    program.process.stdout.close()
    program.send("tools/call", {"name": "shop_add", "arguments": {"x": 1, "y": 2}})
    program.process.stdin.close()
    program.process.stderr.close()
    assert program.process.wait(20) == 0


def test_an_id_that_is_in_use_is_refused(start: Start) -> None:
    program = start()
    call = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "shop_wait"}}
    program.write(call, call)
    answer = program.read()
    assert (answer["id"], answer["error"]["code"]) == (5, -32600)


def test_answers_to_requests_piped_in_are_not_lost(start: Start) -> None:
    program = start()
    call = {"name": "shop_add", "arguments": {"x": 1, "y": 2}}
    program.write({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call})
    out, _ = program.process.communicate(timeout=20)
    assert json.loads(out)["result"]["structuredContent"] == {"result": 3}
    assert program.process.returncode == 0


def test_a_line_that_is_too_long_is_reported_and_skipped(start: Start) -> None:
    program = start(
        source=SHOP.replace('name="Shop"', "limits=Limits(line_bytes=200_000)").replace(
            "from enfold.mcp import", "from enfold.surfaces.limits import Limits\nfrom enfold.mcp import"
        )
    )
    program.initialize()
    program.write(b'{"text": "' + b"x" * 500_000 + b'"}')
    told = program.read()
    assert told["error"]["message"] == "The message exceeds the limit of 200000 bytes and was ignored"
    assert program.call("shop_add", x=1, y=2)["structuredContent"] == {"result": 3}
    program.write(b"y" * 500_000)
    assert "was ignored" in program.read()["error"]["message"]
    assert program.call("shop_add", x=1, y=2)["structuredContent"] == {"result": 3}


def test_the_server_survives_any_exception_of_a_handler(start: Start) -> None:
    odd = """
    import asyncio
    from enfold import OperationRegistry
    from enfold.surfaces.mcp import serve_stdio

    ops = OperationRegistry("odd")

    class Silent(Exception):
        def __str__(self):
            raise SystemExit(3)

    def register(number, kind):
        async def waiting() -> int:
            raise kind
        def plain() -> int:
            raise kind
        ops.query(name=f"a{number}")(waiting)
        ops.query(name=f"t{number}")(plain)
        ops.query(name=f"i{number}", inline=True)(plain)

    kinds = (KeyboardInterrupt, GeneratorExit, SystemExit, StopIteration, asyncio.CancelledError, MemoryError, Silent)
    for number, kind in enumerate(kinds):
        register(number, kind)

    serve_stdio(ops)
    """
    program = start(source=odd)
    program.initialize()
    for number in range(7):
        for kind in "ati":
            assert program.call(f"odd_{kind}{number}")["isError"] is True
    assert program.ask("ping")["result"] == {}
