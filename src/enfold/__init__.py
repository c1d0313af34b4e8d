"""One registry of typed operations: many sources in, many surfaces out, one envelope."""

from typing import TYPE_CHECKING, Any

from enfold.envelope import (
    HTTP_RESPONSE_META_SCHEMA,
    LOCAL_RESPONSE_META_SCHEMA,
    MCP_CONTENT_BLOCK_SCHEMA,
    MCP_RESPONSE_META_SCHEMA,
    RESPONSE_ENVELOPE_SCHEMA,
    RESPONSE_META_SCHEMA,
    RESPONSE_SOURCES,
    AudioContent,
    EmbeddedResource,
    HTTPResponseMeta,
    ImageContent,
    LocalResponseMeta,
    MCPResponseMeta,
    ResourceLink,
    ResponseEnvelope,
    TextContent,
    from_wire,
    http_envelope,
    is_response_envelope,
    local_envelope,
    mcp_envelope,
    to_wire,
    unwrap,
)
from enfold.errors import CallError, FormatError
from enfold.operation import AccessControl, Context, Identity, OperationSpec, OperationType
from enfold.registry import OperationRegistry

if TYPE_CHECKING:
    from enfold.env import build_env
    from enfold.schema.cast import CastError, cast
    from enfold.schema.repair import repair

__all__ = [
    "HTTP_RESPONSE_META_SCHEMA",
    "LOCAL_RESPONSE_META_SCHEMA",
    "MCP_CONTENT_BLOCK_SCHEMA",
    "MCP_RESPONSE_META_SCHEMA",
    "RESPONSE_ENVELOPE_SCHEMA",
    "RESPONSE_META_SCHEMA",
    "RESPONSE_SOURCES",
    "AccessControl",
    "AudioContent",
    "CallError",
    "CastError",
    "Context",
    "EmbeddedResource",
    "FormatError",
    "HTTPResponseMeta",
    "Identity",
    "ImageContent",
    "LocalResponseMeta",
    "MCPResponseMeta",
    "OperationRegistry",
    "OperationSpec",
    "OperationType",
    "ResourceLink",
    "ResponseEnvelope",
    "TextContent",
    "build_env",
    "cast",
    "from_wire",
    "http_envelope",
    "is_response_envelope",
    "local_envelope",
    "mcp_envelope",
    "repair",
    "to_wire",
    "unwrap",
]

# These are loaded when first used: a program that only imports the registry starts without them.
_LATE = {
    "CastError": "enfold.schema.cast",
    "build_env": "enfold.env",
    "cast": "enfold.schema.cast",
    "repair": "enfold.schema.repair",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'enfold' has no attribute {name!r}")
    from importlib import import_module  # with the first late name

    value = getattr(import_module(_LATE[name]), name)
    globals()[name] = value
    return value
