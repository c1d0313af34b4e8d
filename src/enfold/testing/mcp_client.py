"""The client of `to_mcp`, in either era of the protocol: each request by itself, or in a session after a handshake."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Final

import msgspec

from enfold.errors import CallError
from enfold.formats import Format
from enfold.mcp.json_rpc import CAPABILITIES_KEY, FORMAT_KEY, INVALID_PARAMS, VERSION_KEY
from enfold.mcp.revisions import KNOWN, LATEST, LATEST_HANDSHAKE
from enfold.operation import Identity
from enfold.registry import Registry
from enfold.surfaces.asgi.messages import ASGIApp
from enfold.surfaces.http import to_http
from enfold.surfaces.mcp import to_mcp
from enfold.surfaces.mcp.tool_results import ERROR_KEY
from enfold.testing.asgi_client import Conversation, living
from enfold.testing.named_callers import NamedCallers
from enfold.testing.replies import CallRequest, Reply, SurfaceClient

HANDSHAKE: Final = LATEST_HANDSHAKE.name

_CLIENT: Final = {"name": "enfold.testing", "version": "1"}
_DEFAULT_HEADERS: Final = {
    "host": "localhost:8000",
    "content-type": "application/json",
    "accept": "application/json, text/event-stream",
}


@asynccontextmanager
async def mcp(registry: Registry, *, revision: str = LATEST.name, **options: Any) -> AsyncIterator[MCPClient]:
    """The MCP server below the HTTP surface, as `enfold serve` has it; `options` are those of `to_mcp`.

    Tools go by their ids, as on the other surfaces, unless `tool_names` says otherwise.
    """
    own = options.pop("tokens", None)
    callers = NamedCallers(own)
    server = to_mcp(registry, **{"tool_names": "id", **options})
    app = to_http(registry, tokens=callers, allow_anonymous=own is None, mounts={"/mcp": server})
    async with living(app):
        yield MCPClient(app, revision, callers)


class MCPClient(SurfaceClient):
    """Calls the tools of an MCP server; in a revision with a handshake each identity has a session of its own."""

    def __init__(self, app: ASGIApp, revision: str, callers: NamedCallers) -> None:
        self.app = app
        self.revision = KNOWN[revision]
        self._callers = callers
        self._sessions: dict[str, str] = {}
        self._ids = count(1)

    async def _call(self, request: CallRequest) -> Reply:
        chosen = request.chosen_format
        params = {"name": request.operation, "arguments": request.input, "_meta": {FORMAT_KEY: chosen.name}}
        answer = await self._post("tools/call", params, request.identity)
        return _read(await _last(answer), answer, chosen)

    async def list(self, *, identity: Identity | None = None) -> Sequence[str]:
        found: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            page = await self.ask("tools/list", cursor, identity=identity)
            found += [tool["name"] for tool in page["tools"]]
            if "nextCursor" not in page:
                return found
            cursor = {"cursor": page["nextCursor"]}

    async def ask(
        self, method: str, params: Mapping[str, Any] | None = None, *, identity: Identity | None = None
    ) -> Any:
        """The result of any request of the protocol; an error of the protocol is raised."""
        message = await _last(await self._post(method, params or {}, identity))
        if "error" in message:
            raise _protocol_error(message["error"])
        return message["result"]

    async def _post(self, method: str, params: Mapping[str, Any], identity: Identity | None) -> Conversation:
        caller = self._callers.header(identity)
        headers = {**_DEFAULT_HEADERS, **caller, "mcp-protocol-version": self.revision.name}
        if self.revision.is_stateless:
            named = {"mcp-name": params["name"]} if "name" in params else {}
            own = {VERSION_KEY: self.revision.name, CAPABILITIES_KEY: {}}
            params = {**params, "_meta": {**own, **params.get("_meta", {})}}
            return await self._send(method, params, {**headers, "mcp-method": method, **named})
        return await self._send(method, params, {**headers, "mcp-session-id": await self._session(caller)})

    async def _session(self, caller: dict[str, str]) -> str:
        """The session of a caller, begun with their first request."""
        key = caller.get("authorization", "")
        if key not in self._sessions:
            hello = {"protocolVersion": self.revision.name, "capabilities": {}, "clientInfo": _CLIENT}
            answer = await self._send("initialize", hello, {**_DEFAULT_HEADERS, **caller})
            await answer.body()
            self._sessions[key] = answer.headers["mcp-session-id"]
        return self._sessions[key]

    async def _send(self, method: str, params: Mapping[str, Any], headers: Mapping[str, str]) -> Conversation:
        message = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}
        return await Conversation(self.app, "POST", "/mcp", headers, msgspec.json.encode(message)).began()


async def _last(answer: Conversation) -> Any:
    """The response itself, which comes last where others come before it."""
    if answer.headers.get("content-type") == "application/json":
        return await answer.json()
    return [json.loads(event.data) async for event in answer.events() if event.data.strip()][-1]


def _read(message: Any, answer: Conversation, format: Format) -> Reply:
    if "error" in message:
        return Reply(None, _protocol_error(message["error"]), answer.status, answer.headers, message)
    result = message["result"]
    wire = result if format.is_content else json.loads(result["content"][0]["text"])
    told = result.get("_meta", {}).get(ERROR_KEY, {})
    try:
        return Reply(format.read(wire), None, answer.status, answer.headers, result)
    except CallError as error:
        failed = CallError(
            told.get("code", error.code), error.message, told.get("details", error.details), told.get("retryable")
        )
        return Reply(None, failed, answer.status, answer.headers, result)


def _protocol_error(error: Any) -> CallError:
    """An error of the protocol as a code of ours: with wrong parameters there is no such tool."""
    code = "OPERATION_NOT_FOUND" if error["code"] == INVALID_PARAMS else "UNKNOWN_ERROR"
    return CallError(code, error["message"], {"code": error["code"], "data": error.get("data")})
