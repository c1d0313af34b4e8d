"""One registry of typed operations: many sources in, many surfaces out, one envelope."""

from __future__ import annotations

TYPE_CHECKING = False  # as `typing` has it, which would take most of the time that importing us takes
if TYPE_CHECKING:
    from typing import Any

    from enfold.app.app import App
    from enfold.auth.tokens import Tokens
    from enfold.envelope import (
        RESPONSE_SOURCES,
        HTTPResponseMeta,
        LocalResponseMeta,
        MCPResponseMeta,
        ResponseEnvelope,
        from_wire,
        http_envelope,
        is_response_envelope,
        local_envelope,
        mcp_envelope,
        to_wire,
        unwrap,
    )
    from enfold.envelope.content import (
        HTTP_RESPONSE_META_SCHEMA,
        LOCAL_RESPONSE_META_SCHEMA,
        MCP_CONTENT_BLOCK_SCHEMA,
        MCP_RESPONSE_META_SCHEMA,
        RESPONSE_ENVELOPE_SCHEMA,
        RESPONSE_META_SCHEMA,
        AudioContent,
        EmbeddedResource,
        ImageContent,
        ResourceLink,
        TextContent,
    )
    from enfold.errors import CallError, FormatError
    from enfold.operations import AccessControl, Context, Identity, OperationSpec, OperationType
    from enfold.operations.call import Call, Middleware, Next
    from enfold.operations.dependencies import Depends
    from enfold.operations.outcomes import Deferred, NeedsInput, Outcome
    from enfold.runtime.env import build_env
    from enfold.runtime.registry import OperationRegistry
    from enfold.schema.cast import CastError, cast
    from enfold.schema.compiled import repair
    from enfold.schema.files import MediaType

    __version__: str

__all__ = [
    "HTTP_RESPONSE_META_SCHEMA",
    "LOCAL_RESPONSE_META_SCHEMA",
    "MCP_CONTENT_BLOCK_SCHEMA",
    "MCP_RESPONSE_META_SCHEMA",
    "RESPONSE_ENVELOPE_SCHEMA",
    "RESPONSE_META_SCHEMA",
    "RESPONSE_SOURCES",
    "AccessControl",
    "App",
    "AudioContent",
    "Call",
    "CallError",
    "CastError",
    "Context",
    "Deferred",
    "Depends",
    "EmbeddedResource",
    "FormatError",
    "HTTPResponseMeta",
    "Identity",
    "ImageContent",
    "LocalResponseMeta",
    "MCPResponseMeta",
    "MediaType",
    "Middleware",
    "NeedsInput",
    "Next",
    "OperationRegistry",
    "OperationSpec",
    "OperationType",
    "Outcome",
    "ResourceLink",
    "ResponseEnvelope",
    "TextContent",
    "Tokens",
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

# Each is loaded when it is first used: a command that only prints its help, a plugin that finds nothing to do and a
# program that only catches our errors start without the rest.
_PLACES = {
    "app.app": ("App",),
    "auth.tokens": ("Tokens",),
    "envelope.content": (
        "HTTP_RESPONSE_META_SCHEMA",
        "LOCAL_RESPONSE_META_SCHEMA",
        "MCP_CONTENT_BLOCK_SCHEMA",
        "MCP_RESPONSE_META_SCHEMA",
        "RESPONSE_ENVELOPE_SCHEMA",
        "RESPONSE_META_SCHEMA",
        "AudioContent",
        "EmbeddedResource",
        "ImageContent",
        "ResourceLink",
        "TextContent",
    ),
    "runtime.env": ("build_env",),
    "envelope": (
        "RESPONSE_SOURCES",
        "HTTPResponseMeta",
        "LocalResponseMeta",
        "MCPResponseMeta",
        "ResponseEnvelope",
        "from_wire",
        "http_envelope",
        "is_response_envelope",
        "local_envelope",
        "mcp_envelope",
        "to_wire",
        "unwrap",
    ),
    "errors": ("CallError", "FormatError"),
    "operations.call": ("Call", "Middleware", "Next"),
    "operations.dependencies": ("Depends",),
    "operations.outcomes": ("Deferred", "NeedsInput", "Outcome"),
    "operations": ("AccessControl", "Context", "Identity", "OperationSpec", "OperationType"),
    "runtime.registry": ("OperationRegistry",),
    "schema.cast": ("CastError", "cast"),
    "schema.compiled": ("repair",),
    "schema.files": ("MediaType",),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module  # with the first name

    place = next((place for place, names in _PLACES.items() if name in names), None)
    if place is not None:
        value = globals()[name] = getattr(import_module(f"enfold.{place}"), name)
        return value
    if name == "__version__":
        return _version()
    missing = f"enfold.{name}"
    try:
        if not name.startswith("_"):
            return import_module(missing)  # `enfold.errors` after `import enfold`
    except ModuleNotFoundError as error:
        if error.name != missing:
            raise
    raise AttributeError(f"module 'enfold' has no attribute {name!r}")


def _version() -> str:
    """Return the installed version; `0` when run from source without installation."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and few ask

    try:
        return version("enfold")
    except PackageNotFoundError:
        return "0"


def __dir__() -> list[str]:
    """All public names, including those not loaded yet, for completion at a prompt."""
    return sorted({*globals(), *__all__})
