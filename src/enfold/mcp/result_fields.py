"""What a server says beside the messages of a prompt, the contents of a resource and the values of a completion.

The `_meta` of an envelope carries it from the source to the MCP surface.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import UNSET, UnsetType

from enfold.envelope import MCPResponseMeta, ResponseEnvelope
from enfold.mcp.json_rpc import fields_of, passed_meta

FIELDS_KEY: Final = "enfold/fields"


def meta_of_result(result: Mapping[str, Any], *names: str) -> dict[str, Any] | UnsetType:
    """The `_meta` for an envelope: that of the server's result, and the fields of these names."""
    fields = {name: result[name] for name in names if name in result}
    meta = passed_meta(fields_of(result.get("_meta")))
    return {**meta, FIELDS_KEY: fields} if fields else meta or UNSET


def fields_of_result(envelope: ResponseEnvelope[Any]) -> dict[str, Any]:
    """What `meta_of_result` kept, as fields of a result; nothing where no server gave it."""
    if not isinstance(envelope.meta, MCPResponseMeta) or envelope.meta._meta is UNSET:
        return {}
    meta = dict(envelope.meta._meta)
    fields = dict(fields_of(meta.pop(FIELDS_KEY, None)))
    return {**fields, "_meta": meta} if meta else fields
