"""A server on the standard streams whose definitions have every field of the protocol, and unknown ones.

`python raw_server.py`: the tool `shout` logs before it answers, and once more a moment after.
"""

import json
import sys
import threading
from typing import Any

ICONS = [{"src": "https://example.org/i.png", "mimeType": "image/png", "sizes": ["48x48"]}]
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/a"}, "b": {"type": "string", "pattern": "^[\\w-.]+$", "examples": ["x"]}},
    "$defs": {"a": {"type": "integer"}, "unused": {"type": "null"}},
    "x-own": {"deep": [1, None]},
}
TOOLS: list[dict[str, Any]] = [
    {"name": "bare", "inputSchema": {"type": "object"}},
    {"name": "hinted", "inputSchema": SCHEMA, "annotations": {"title": "Hint", "openWorldHint": False, "x": 1}},
    {
        "name": "full",
        "title": "Full",
        "description": "All of it",
        "inputSchema": SCHEMA,
        "outputSchema": {"type": "object", "properties": {"r": {"type": "string", "format": "x"}}, "$defs": {"z": {}}},
        "annotations": {"readOnlyHint": True},
        "icons": ICONS,
        "execution": {"taskSupport": "forbidden"},
        "_meta": {"example.org/x": {"y": [1]}},
        "x-unknown": {"kept": True},
    },
    {"name": "review", "description": "", "inputSchema": {"type": "object"}},
    {"name": "shout", "description": "Log", "inputSchema": {"type": "object"}},
]
PROMPTS: list[dict[str, Any]] = [
    {"name": "bare"},
    {
        "name": "review",
        "title": "Review",
        "description": "Reviews",
        "arguments": [
            {"name": "style", "description": "How", "default": "short", "x": 1},
            {"name": "code", "required": True, "title": "Code"},
        ],
        "icons": ICONS,
        "_meta": {"a": 1},
        "x-unknown": 2,
    },
    {"name": "empty", "arguments": []},
]
RESOURCES: list[dict[str, Any]] = [
    {"uri": "raw://bare", "name": "bare"},
    {
        "uri": "raw://full",
        "name": "full name",
        "title": "T",
        "description": "D",
        "mimeType": "text/plain",
        "size": 3,
        "annotations": {"audience": ["user"], "priority": 0.5, "lastModified": "2025-01-12T15:00:58Z"},
        "icons": ICONS,
        "_meta": {"b": 2},
        "x-unknown": 3,
    },
]
TEMPLATES: list[dict[str, Any]] = [
    {"uriTemplate": "raw://t/{id}", "name": "bare"},
    {
        "uriTemplate": "raw://u/{id}",
        "name": "u",
        "title": "U",
        "mimeType": "a/b",
        "annotations": {"priority": 1},
        "x": 4,
    },
]
ANSWERS: dict[str, dict[str, Any]] = {
    "tools/list": {"tools": TOOLS},
    "prompts/list": {"prompts": PROMPTS},
    "resources/list": {"resources": RESOURCES},
    "resources/templates/list": {"resourceTemplates": TEMPLATES},
    "logging/setLevel": {},
    "prompts/get": {
        "description": "Of this review",
        "messages": [{"role": "user", "content": {"type": "text", "text": "Review"}}],
        "_meta": {"c": 3},
    },
    "resources/read": {"contents": [{"uri": "raw://full", "text": "abc", "_meta": {"d": 4}}], "_meta": {"e": 5}},
    "completion/complete": {"completion": {"values": ["short", "sharp"], "total": 5000, "hasMore": True}},
}


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        method, own_id = message.get("method"), message.get("id")
        if method == "initialize":
            capabilities: dict[str, Any] = {
                "tools": {},
                "prompts": {},
                "resources": {},
                "logging": {},
                "completions": {},
            }
            result: dict[str, Any] = {"protocolVersion": "2025-11-25", "capabilities": capabilities}
            write(
                id=own_id, result={**result, "serverInfo": {"name": "raw"}, "instructions": "Use raw tools with care."}
            )
        elif method in ANSWERS:
            write(id=own_id, result=ANSWERS[method])
        elif method == "tools/call":
            write(method="notifications/message", params={"level": "warning", "data": "inside", "logger": "raw"})
            write(id=own_id, result={"content": []})
            told = {"level": "warning", "data": {"about": "outside"}, "logger": "raw", "_meta": {"k": 1}}
            threading.Timer(0.3, write, kwargs={"method": "notifications/message", "params": told}).start()
        elif own_id is not None:
            write(id=own_id, error={"code": -32601, "message": "There is no such method"})


def write(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
