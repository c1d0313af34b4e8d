"""MCP as legs of the parity table: mounted beside HTTP in both eras."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.parity_app import ops
from tests.serving import Answer, serve
from tests.test_parity import ANN, Call, Outcome, Run

from enfold.formats import find_format
from enfold.surfaces.http import to_http
from enfold.surfaces.mcp import to_mcp
from enfold.tokens import Tokens


@contextmanager
def mcp() -> Iterator[Run]:
    """Without a handshake, each request by itself."""
    with _leg("2026-07-28") as run:
        yield run


@contextmanager
def mcp_handshake() -> Iterator[Run]:
    """As clients spoke before, here without a session."""
    with _leg("2025-11-25") as run:
        yield run


@contextmanager
def _leg(revision: str) -> Iterator[Run]:
    app = to_http(ops, tokens=Tokens({"token-of-ann": ANN}), mounts={"/mcp": to_mcp(ops)})
    with serve(app) as client:

        def run(call: Call, format: str) -> Outcome:
            meta = {
                "enfold/format": format,
                "io.modelcontextprotocol/protocolVersion": revision,
                "io.modelcontextprotocol/clientCapabilities": {},
            }
            if revision < "2026-07-28":
                meta = {"enfold/format": format}
            params = {"name": call.operation, "arguments": call.input, "_meta": meta}
            message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            return _outcome(client.post("/mcp", message, **_headers(call, revision)), format)

        yield run


def _headers(call: Call, revision: str) -> dict[str, str]:
    headers = {"Mcp-Protocol-Version": revision, "Mcp-Method": "tools/call", "Mcp-Name": call.operation}
    return {**headers, "Authorization": "Bearer token-of-ann"} if call.is_ann else headers


def _outcome(answer: Answer, format: str) -> Outcome:
    message = answer.json
    if "error" in message:
        assert message["error"]["code"] == -32602
        return Outcome(code="OPERATION_NOT_FOUND")
    result = message["result"]
    if result["isError"]:
        return Outcome(code=result["_meta"]["enfold/error"]["code"])
    return Outcome(find_format(format).read(_wire(result, format)).data)


def _wire(result: dict[str, Any], format: str) -> Any:
    if format == "tool_envelope_v1":
        return {"content": result["content"], "isError": False}
    return json.loads(result["content"][0]["text"])
