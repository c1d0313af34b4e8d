"""The envelope, its metas and content blocks as JSON Schema."""

from __future__ import annotations

from typing import Any, Final

# What a server says of its blocks passes as it came: audience, priority, lastModified, or something newer.
_ANNOTATIONS_SCHEMA: Final[dict[str, Any]] = {"type": "object"}


def _block_schema(kind: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    shared = {"annotations": _ANNOTATIONS_SCHEMA, "_meta": {"type": "object"}}
    return {
        "type": "object",
        "properties": {"type": {"const": kind}, **properties, **shared},
        "required": ["type", *required],
    }


_STRING: Final[dict[str, Any]] = {"type": "string"}
_MEDIA: Final[dict[str, Any]] = {"data": {"type": "string", "contentEncoding": "base64"}, "mimeType": _STRING}

MCP_CONTENT_BLOCK_SCHEMA: Final[dict[str, Any]] = {
    "anyOf": [
        _block_schema("text", {"text": _STRING}, ["text"]),
        _block_schema("image", _MEDIA, ["data", "mimeType"]),
        _block_schema("audio", _MEDIA, ["data", "mimeType"]),
        _block_schema(
            "resource",
            {
                "resource": {
                    "type": "object",
                    "properties": {"uri": _STRING, "mimeType": _STRING, "text": _STRING, "blob": _STRING},
                    "required": ["uri"],
                }
            },
            ["resource"],
        ),
        _block_schema(
            "resource_link",
            {
                "uri": _STRING,
                "name": _STRING,
                "title": _STRING,
                "description": _STRING,
                "mimeType": _STRING,
                "size": {"type": "integer"},
            },
            ["uri", "name"],
        ),
    ]
}

LOCAL_RESPONSE_META_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"source": {"const": "local"}, "operationId": _STRING, "timestamp": {"type": "integer"}},
    "required": ["source", "operationId", "timestamp"],
    "additionalProperties": False,
}

HTTP_RESPONSE_META_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "source": {"const": "http"},
        "statusCode": {"type": "integer"},
        "headers": {"type": "object", "additionalProperties": _STRING},
        "contentType": _STRING,
        "eventType": _STRING,
        "lastEventId": _STRING,
        "dataEncoding": {"const": "base64"},
    },
    "required": ["source", "statusCode", "headers", "contentType"],
    "additionalProperties": False,
}

MCP_RESPONSE_META_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "source": {"const": "mcp"},
        "isError": {"type": "boolean"},
        "content": {"type": "array", "items": MCP_CONTENT_BLOCK_SCHEMA},
        "structuredContent": {},
        "_meta": {"type": "object"},
    },
    "required": ["source", "isError", "content"],
    "additionalProperties": False,
}

RESPONSE_META_SCHEMA: Final[dict[str, Any]] = {
    "anyOf": [LOCAL_RESPONSE_META_SCHEMA, HTTP_RESPONSE_META_SCHEMA, MCP_RESPONSE_META_SCHEMA]
}

RESPONSE_ENVELOPE_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"data": {"description": "Operation output"}, "meta": RESPONSE_META_SCHEMA},
    "required": ["data", "meta"],
    "additionalProperties": False,
}
