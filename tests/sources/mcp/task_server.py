"""An MCP server of 2026-07-28 whose tools answer with tasks: a script says what each `tasks/get` finds."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

Message = dict[str, Any]

EXTENSION = "io.modelcontextprotocol/tasks"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
QUESTION = {
    "method": "elicitation/create",
    "params": {"message": "Sure?", "requestedSchema": {"type": "object", "properties": {"yes": {"type": "boolean"}}}},
}


def text(words: str, **more: Any) -> Message:
    return {"content": [{"type": "text", "text": words}], **more}


def working(interval: Any = 20, **more: Any) -> Message:
    return {"status": "working", "pollIntervalMs": interval, **more}


def asking(*keys: str) -> Message:
    return {"status": "input_required", "pollIntervalMs": 20, "inputRequests": dict.fromkeys(keys, QUESTION)}


def completed(result: Any) -> Message:
    return {"status": "completed", "result": result}


class TaskServer:
    """Each tool is a script: the answer to the call, then that to every `tasks/get`, of which the last stays."""

    def __init__(self, scripts: dict[str, list[Message]]) -> None:
        self.scripts = scripts
        self.requests: list[Message] = []
        self.times: list[float] = []  # of each `tasks/get`
        self.cancelled = asyncio.Event()
        self._places: dict[str, int] = {}

    def said(self, method: str) -> list[Message]:
        return [each["params"] for each in self.requests if each["method"] == method]

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            event = await receive()
            body += event.get("body", b"")
            if not event.get("more_body"):
                break
        message = json.loads(body)
        message["headers"] = {name.decode(): value.decode() for name, value in scope["headers"]}
        answer = self._answer(message)
        status = answer.pop("http", 200)
        await send(
            {"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]}
        )
        told = json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}) if status < 500 else ""
        await send({"type": "http.response.body", "body": told.encode()})

    def _answer(self, message: Message) -> Message:
        method, params = message["method"], message["params"]
        if method == "server/discover":
            capabilities: Message = {"tools": {}, "prompts": {}, "extensions": {EXTENSION: {}}}
            return {"result": {"supportedVersions": ["2026-07-28"], "capabilities": capabilities}}
        if method == "tools/list":
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in self.scripts if name != "a_prompt"]
            return {"result": {"tools": tools}}
        if method == "prompts/list":
            return {"result": {"prompts": [{"name": "a_prompt"}]}}
        if method == "subscriptions/listen":
            return {"result": {"resultType": "complete"}}
        self.requests.append(message)
        if method in ("tools/call", "prompts/get"):
            return self._step(params["name"], 0)
        name = params["taskId"].removeprefix("id-of-")
        if method == "tasks/get":
            self.times.append(time.monotonic())
            self._places[name] = self._places.get(name, 0) + 1
            return self._step(name, self._places[name])
        if method == "tasks/cancel":
            self.cancelled.set()
        return {"result": {"resultType": "complete"}}

    def _step(self, name: str, place: int) -> Message:
        script = self.scripts[name]
        state = script[min(place, len(script) - 1)]
        if "error_now" in state:
            return {"error": state["error_now"]}
        if "http" in state:
            return {"http": state["http"]}
        if "status" not in state:
            return {"result": state}
        kind = "complete" if place else "task"
        task = {"createdAt": "2026-11-16T00:00:00Z", "lastUpdatedAt": "2026-11-16T00:00:00Z", "ttlMs": None}
        return {"result": {"resultType": kind, "taskId": f"id-of-{name}", **task, **state}}
