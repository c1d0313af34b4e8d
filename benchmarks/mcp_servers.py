"""The MCP servers that are compared: the same two tools on a hand-written floor, on Enfold, on the MCP SDK and on FastMCP.

`python -m benchmarks.mcp_servers NAME stdio` serves one on the standard streams, `... NAME PORT` over HTTP.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from benchmarks import work

FLOOR: Final = "floor"
ENFOLD: Final = "enfold"
ENFOLD_1000: Final = "enfold, 1,000 tools"
SDK: Final = "mcp SDK"
FASTMCP: Final = "FastMCP"

REVISION: Final = "2026-07-28"
HANDSHAKE: Final = "2025-11-25"


# --- the floor ----------------------------------------------------------------------------------------------------


class _Request(msgspec.Struct):
    method: str
    id: int | str = 0
    params: msgspec.Raw = msgspec.Raw(b"{}")


class _Call(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


class Floor:
    """The least that answers a call: read, check the input, run, check the result, write. Nothing else works."""

    def __init__(self) -> None:
        self._tools = {
            "add": _tool(work.add, work.AddInputStruct, work.SumStruct),
            "mid": _tool(work.mid, work.MidInputStruct, work.InvoicesStruct),
        }
        self._request = msgspec.json.Decoder(_Request).decode
        self._call = msgspec.json.Decoder(_Call).decode
        self._encode = msgspec.json.Encoder().encode

    async def answer(self, text: bytes, name: bytes | None = None) -> bytes:
        request = self._request(text)
        if request.method != "tools/call":
            result: dict[str, Any] = {"protocolVersion": HANDSHAKE, "capabilities": {"tools": {}}, "serverInfo": {}}
            return self._encode({"jsonrpc": "2.0", "id": request.id, "result": result})
        call = self._call(request.params)
        if name is not None and name != call.name.encode():
            return b'{"jsonrpc":"2.0","id":0,"error":{"code":-32020,"message":"Header mismatch"}}'
        written = await self._tools[call.name](call.arguments)
        content = [{"type": "text", "text": written.decode()}]
        result = {"content": content, "structuredContent": msgspec.Raw(written), "isError": False}
        return self._encode({"jsonrpc": "2.0", "id": request.id, "result": {**result, "resultType": "complete"}})


def _tool(
    handler: Callable[..., Any], input_struct: type[msgspec.Struct], output_struct: type[msgspec.Struct]
) -> Callable[[msgspec.Raw], Coroutine[Any, Any, bytes]]:
    read, encode = msgspec.json.Decoder(input_struct).decode, msgspec.json.Encoder().encode
    convert, as_dict = msgspec.convert, msgspec.structs.asdict

    async def call(arguments: msgspec.Raw) -> bytes:
        result = await handler(**as_dict(read(arguments)))
        return encode({"result": convert(result, output_struct)})

    return call


def _floor_app() -> Any:
    floor = Floor()

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        body = await floor.answer((await receive())["body"], headers[b"mcp-name"])
        answer = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": answer})
        await send({"type": "http.response.body", "body": body})

    return app


def _floor_stdio() -> None:
    floor = Floor()
    for line in sys.stdin.buffer:
        if b'"id"' not in line:
            continue
        try:
            floor.answer(line).send(None)
        except StopIteration as done:
            sys.stdout.buffer.write(done.value + b"\n")
            sys.stdout.buffer.flush()


# --- Enfold -------------------------------------------------------------------------------------------------------


def _registry(more: int) -> Any:
    from enfold import OperationRegistry

    ops = OperationRegistry()
    ops.query(work.add)
    ops.query(work.mid)
    for number in range(more):
        ops.query(name=f"tool{number}")(work.add)
    return ops


def _enfold_app(more: int) -> Any:
    from enfold.surfaces.mcp import to_mcp

    return to_mcp(_registry(more))


def _enfold_stdio() -> None:
    from enfold.surfaces.mcp import serve_stdio

    serve_stdio(_registry(0))


# --- peers --------------------------------------------------------------------------------------------------------


def _sdk() -> Any:
    from mcp.server import MCPServer

    server = MCPServer("bench", log_level="WARNING")
    server.tool(name="add")(work.add)
    server.tool(name="mid")(work.mid)
    return server


def _fastmcp() -> Any:
    # By name: the type checker works in the project's own environment, where FastMCP is not.
    from importlib import import_module

    server = import_module("fastmcp").FastMCP("bench")
    server.tool(work.add, name="add")
    server.tool(work.mid, name="mid")
    return server


APPS: Final[dict[str, Callable[[], Any]]] = {
    FLOOR: _floor_app,
    ENFOLD: lambda: _enfold_app(0),
    ENFOLD_1000: lambda: _enfold_app(1_000),
    SDK: lambda: _sdk().streamable_http_app(json_response=True),
    FASTMCP: lambda: _fastmcp().http_app(path="/mcp", json_response=True),
}
PROGRAMS: Final[dict[str, Callable[[], None]]] = {
    FLOOR: _floor_stdio,
    ENFOLD: _enfold_stdio,
    SDK: lambda: _sdk().run("stdio"),
    FASTMCP: lambda: _fastmcp().run("stdio", show_banner=False),
}


def main(name: str, where: str) -> None:
    logging.disable(logging.WARNING)
    os.environ["FASTMCP_LOG_LEVEL"] = "ERROR"
    if where == "stdio":
        PROGRAMS[name]()
        return
    import uvicorn

    uvicorn.run(APPS[name](), host="127.0.0.1", port=int(where), log_level="error", access_log=False)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
