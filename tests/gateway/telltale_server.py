"""An MCP server on the standard streams that repeats its secrets in everything it sends."""

import base64
import json
import os
import sys
from typing import Any
from urllib.parse import quote

KNOWN = [os.environ["SERVICE_TOKEN"], *sys.argv[2:], os.environ["DATABASE_URL"]]
ids = iter(range(1000, 2000))


def write(message: dict[str, Any]) -> None:
    text = json.dumps({"jsonrpc": "2.0", **message})
    sys.stdout.write(text.replace("/", "\\/") + "\n")  # which JSON allows
    sys.stdout.flush()


def ask(method: str, params: Any) -> None:
    """Ask the client something, and wait for its answer."""
    mine = next(ids)
    write({"id": mine, "method": method, "params": params})
    for line in sys.stdin:
        if json.loads(line).get("id") == mine:
            return


def spelled(secrets: list[str]) -> dict[str, Any]:
    """The secrets in all ways in which a service repeats them."""
    said = " ".join(secrets)
    return {
        "plain": said,
        "nested": json.dumps(json.dumps(said)),
        "query": [quote(each, safe="") for each in secrets],
        "base64": [
            base64.b64encode(f"{' ' * pad}{each} and more".encode()).decode() for each in secrets for pad in (0, 1, 2)
        ],
        said: "as a key",
        "numbers": [int(each) for each in secrets if each.isdigit()],
    }


def answer(method: str, params: Any) -> dict[str, Any]:
    said = " ".join(KNOWN)
    if method == "initialize":
        write({"method": "notifications/message", "params": {"level": "info", "data": said}})
        capabilities: dict[str, Any] = {"tools": {}, "logging": {}, "resources": {}, "prompts": {}}
        info = {"name": "telltale", "version": "1"}
        return {"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": info, "instructions": said}
    if method == "tools/list":
        properties = {name: {"type": "string", "description": said} for name in ("token", "pin_code", "text")}
        schema = {"type": "object", "properties": properties, "required": ["token"]}
        tools = [
            {"name": name, "description": f"{name} {said}", "inputSchema": schema} for name in ("tell", "fail", "die")
        ]
        return {"tools": tools}
    if method == "resources/list":
        return {"resources": [{"uri": "note://one", "name": "one", "description": said}]}
    if method == "resources/templates/list":
        return {"resourceTemplates": []}
    if method == "resources/read":
        blob = base64.b64encode(f"x{said}".encode()).decode()
        return {"contents": [{"uri": "note://one", "text": said}, {"uri": "note://one", "blob": blob}]}
    if method == "prompts/list":
        return {"prompts": [{"name": "hello", "description": said}]}
    if method == "prompts/get":
        return {"description": said, "messages": [{"role": "user", "content": {"type": "text", "text": said}}]}
    if method == "tools/call":
        return call(params)
    return {}


def call(params: Any) -> dict[str, Any]:
    secrets = [*KNOWN, *params["arguments"].values()]
    said = " ".join(secrets)
    sys.stderr.write(f"stderr {said}\n")
    sys.stderr.flush()
    if params["name"] == "die":
        sys.exit(3)
    token = params.get("_meta", {}).get("progressToken")
    write({"method": "notifications/message", "params": {"level": "warning", "logger": said, "data": spelled(secrets)}})
    if token is not None:
        write(
            {
                "method": "notifications/progress",
                "params": {"progressToken": token, "progress": 1, "message": f"progress {said}"},
            }
        )
    form = {"type": "object", "properties": {"ok": {"type": "boolean", "title": said}}}
    ask("elicitation/create", {"message": f"question {said}", "requestedSchema": form})
    messages = [{"role": "user", "content": {"type": "text", "text": f"sample {said}"}}]
    ask("sampling/createMessage", {"messages": messages, "maxTokens": 10, "systemPrompt": said})
    if params["name"] == "fail":
        raise LookupError(said)
    block = {"type": "text", "text": f"result {said}"}
    return {"content": [block], "structuredContent": spelled(secrets), "_meta": {"telltale/said": said}}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message and "method" in message:
        try:
            result = answer(message["method"], message.get("params") or {})
            write({"id": message["id"], "result": result})
        except LookupError as error:
            write({"id": message["id"], "error": {"code": -32000, "message": str(error), "data": [str(error)]}})
