"""MCP content blocks, and the JSON Schemas of blocks, metas and the envelope."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal, TypeAlias, cast

import msgspec
from msgspec import UNSET, UnsetType


class _Block(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of all blocks; `extra` keeps fields added by newer protocol revisions."""

    annotations: dict[str, Any] | UnsetType = UNSET  # audience, priority, lastModified
    _meta: dict[str, Any] | UnsetType = UNSET
    extra: dict[str, Any] | UnsetType = UNSET

    def to_wire(self) -> dict[str, Any]:
        wire: dict[str, Any] = msgspec.to_builtins(self)
        wire.update(wire.pop("extra", {}))
        return wire


class TextContent(_Block, frozen=True, rename="camel", tag_field="type", tag="text"):
    """Text for a reader or a model."""

    type: ClassVar[Literal["text"]] = "text"
    text: str


class ImageContent(_Block, frozen=True, rename="camel", tag_field="type", tag="image"):
    """An image as base64 text."""

    type: ClassVar[Literal["image"]] = "image"
    data: str
    mime_type: str


class AudioContent(_Block, frozen=True, rename="camel", tag_field="type", tag="audio"):
    """Audio as base64 text."""

    type: ClassVar[Literal["audio"]] = "audio"
    data: str
    mime_type: str


class EmbeddedResource(_Block, frozen=True, rename="camel", tag_field="type", tag="resource"):
    """An embedded resource: `uri`, optionally `mimeType`, and `text` or `blob`."""

    type: ClassVar[Literal["resource"]] = "resource"
    resource: dict[str, Any]


class ResourceLink(_Block, frozen=True, rename="camel", tag_field="type", tag="resource_link"):
    """A link to a resource."""

    type: ClassVar[Literal["resource_link"]] = "resource_link"
    uri: str
    name: str
    title: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    mime_type: str | UnsetType = UNSET
    size: int | UnsetType = UNSET


ContentBlock: TypeAlias = TextContent | ImageContent | AudioContent | EmbeddedResource | ResourceLink

_BLOCK_TYPES: Final[dict[str, type[_Block]]] = {
    "text": TextContent,
    "image": ImageContent,
    "audio": AudioContent,
    "resource": EmbeddedResource,
    "resource_link": ResourceLink,
}


def is_content_block(value: object) -> bool:
    return isinstance(value, _Block)


def content_block(value: Any) -> ContentBlock:
    """Convert a value to a block; a block of an unknown type becomes a text block with its JSON."""
    if isinstance(value, _Block):
        return value  # type: ignore[return-value]  # the five subclasses are all there are
    if type(value) is dict and len(value) == 2 and value.get("type") == "text" and type(value.get("text")) is str:
        return TextContent(text=value["text"])  # as nearly all are
    try:
        return _read_block(value)
    except (msgspec.ValidationError, AttributeError, KeyError, TypeError):
        return TextContent(text=json_text(value))


def _read_block(value: Mapping[str, Any]) -> ContentBlock:
    kind = _BLOCK_TYPES[value["type"]]
    if kind is EmbeddedResource and not isinstance(value["resource"]["uri"], str):
        raise TypeError("a resource requires a URI")
    fields = set(kind.__struct_encode_fields__) - {"extra"} | {"type"}
    known = {key: item for key, item in value.items() if key in fields and item is not None}
    block: Any = msgspec.convert(known, kind)
    extra = {key: item for key, item in value.items() if key not in fields}
    return cast("ContentBlock", msgspec.structs.replace(block, extra=extra) if extra else block)


def json_text(value: Any) -> str:
    """Encode any value as JSON; other objects are written as text, unpaired surrogates are escaped."""
    try:
        return msgspec.json.encode(value, enc_hook=str).decode()
    except (ValueError, TypeError, RecursionError):
        import json  # for the few values that msgspec rejects

    try:
        return json.dumps(value, default=str, skipkeys=True)
    except (ValueError, TypeError, RecursionError):
        return json.dumps(type(value).__name__)


_STRING: Final[dict[str, Any]] = {"type": "string"}
_INTEGER: Final[dict[str, Any]] = {"type": "integer"}
_ANY_OBJECT: Final[dict[str, Any]] = {"type": "object"}


def _object(properties: dict[str, Any], optional: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the schema of an object with required and optional properties."""
    return {"type": "object", "properties": {**properties, **optional}, "required": list(properties), **more}


def _block_schema(kind: str, properties: dict[str, Any], **optional: Any) -> dict[str, Any]:
    # Annotations of a server are passed through: audience, priority, lastModified, or newer fields.
    shared = {"annotations": _ANY_OBJECT, "_meta": _ANY_OBJECT}
    return _object({"type": {"const": kind}, **properties}, {**optional, **shared})


_MEDIA: Final[dict[str, Any]] = {"data": {"type": "string", "contentEncoding": "base64"}, "mimeType": _STRING}
_RESOURCE: Final = _object({"uri": _STRING}, {"mimeType": _STRING, "text": _STRING, "blob": _STRING})
_LINK: Final = {"title": _STRING, "description": _STRING, "mimeType": _STRING, "size": _INTEGER}

MCP_CONTENT_BLOCK_SCHEMA: Final[dict[str, Any]] = {
    "anyOf": [
        _block_schema("text", {"text": _STRING}),
        _block_schema("image", _MEDIA),
        _block_schema("audio", _MEDIA),
        _block_schema("resource", {"resource": _RESOURCE}),
        _block_schema("resource_link", {"uri": _STRING, "name": _STRING}, **_LINK),
    ]
}

LOCAL_RESPONSE_META_SCHEMA: Final[dict[str, Any]] = _object(
    {"source": {"const": "local"}, "operationId": _STRING, "timestamp": _INTEGER}, {}, additionalProperties=False
)

HTTP_RESPONSE_META_SCHEMA: Final[dict[str, Any]] = _object(
    {
        "source": {"const": "http"},
        "statusCode": _INTEGER,
        "headers": {"type": "object", "additionalProperties": _STRING},
        "contentType": _STRING,
    },
    {"eventType": _STRING, "lastEventId": _STRING, "dataEncoding": {"const": "base64"}},
    additionalProperties=False,
)

MCP_RESPONSE_META_SCHEMA: Final[dict[str, Any]] = _object(
    {
        "source": {"const": "mcp"},
        "isError": {"type": "boolean"},
        "content": {"type": "array", "items": MCP_CONTENT_BLOCK_SCHEMA},
    },
    {"structuredContent": {}, "_meta": _ANY_OBJECT},
    additionalProperties=False,
)

RESPONSE_META_SCHEMA: Final[dict[str, Any]] = {
    "anyOf": [LOCAL_RESPONSE_META_SCHEMA, HTTP_RESPONSE_META_SCHEMA, MCP_RESPONSE_META_SCHEMA]
}

RESPONSE_ENVELOPE_SCHEMA: Final[dict[str, Any]] = _object(
    {"data": {"description": "Operation output"}, "meta": RESPONSE_META_SCHEMA}, {}, additionalProperties=False
)
