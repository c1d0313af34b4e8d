"""One call on each surface, in this process: what came out, as a reader of that surface sees it."""

import asyncio
import json
from collections.abc import Callable
from io import BytesIO, StringIO
from typing import Any, TypeAlias

import msgspec
from tests.surfaces.mcp.conftest import STATELESS, Client

from enfold import testing
from enfold.runtime.registry import Registry
from enfold.surfaces.cgi import to_cgi
from enfold.surfaces.command_line import to_command_line
from enfold.surfaces.http import to_http
from enfold.surfaces.mcp import to_mcp


class Seen(msgspec.Struct, frozen=True):
    """An answer: its status (an exit code in the shell, 0 or 1 for MCP's isError), headers and body."""

    status: int
    body: Any
    headers: dict[str, str] = {}
    messages: str = ""  # what the shell says on standard error


Call: TypeAlias = Callable[..., Seen]


def over_http(registry: Registry, operation: str, format: str, input: Any = None, **headers: str) -> Seen:
    body = input if isinstance(input, bytes) else json.dumps(input or {}).encode()
    path = operation if operation.startswith("/") else f"/functions/{operation}"
    given = {"host": "localhost", "content-type": "application/json", "enfold-format": format, **headers}
    sent = {name.replace("_", "-"): value for name, value in given.items()}

    async def run() -> Seen:
        answer = testing.Conversation(to_http(registry), "POST", path, sent, body)
        text = await answer.body()
        return Seen(answer.status, _body(text), answer.headers)

    return asyncio.run(run())


def over_cgi(registry: Registry, operation: str, format: str, input: Any = None) -> Seen:
    out = BytesIO()
    body = input if isinstance(input, bytes) else json.dumps(input or {}).encode()
    environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": operation if operation.startswith("/") else f"/functions/{operation}",
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": str(len(body)),
        "HTTP_ENFOLD_FORMAT": format,
    }
    to_cgi(registry, environ=environ, stdin=BytesIO(body), stdout=out)
    head, _, text = out.getvalue().partition(b"\r\n\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head.decode().split("\r\n"))}
    return Seen(int(headers["status"].split()[0]), _body(text), headers)


def over_mcp(registry: Registry, operation: str, format: str, input: Any = None) -> Seen:
    """The blocks of a result, with what stands beside them under `meta` and `structured`."""

    async def run() -> Any:
        return await Client(to_mcp(registry, format=format), STATELESS).call(operation, input)

    result = asyncio.run(run())
    body = {"content": result["content"], "structured": result.get("structuredContent"), "meta": result.get("_meta")}
    return Seen(int(result["isError"]), body)


def in_the_shell(registry: Registry, operation: str, format: str, input: Any = None) -> Seen:
    out, messages = StringIO(), StringIO()
    words = [operation, "--json", json.dumps(input or {}), "--format", format]
    exit_code = to_command_line(registry, words, stdin=StringIO(), stdout=out, stderr=messages)
    return Seen(exit_code, _body(out.getvalue().encode()), messages=messages.getvalue())


def _body(text: bytes) -> Any:
    lines = text.splitlines()
    return json.loads(text) if len(lines) == 1 else [json.loads(line) for line in lines if line.strip()]
