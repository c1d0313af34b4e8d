"""The envelope of every result: `data`, and `meta` that describes its source."""

from enfold.envelope.envelope import (
    BODILESS,
    MISFITS,
    REPAIR_LIMIT,
    REPAIRS,
    RESPONSE_SOURCES,
    ROOT_MISMATCH,
    HTTPResponseMeta,
    LocalResponseMeta,
    MCPResponseMeta,
    ResponseEnvelope,
    ResultWarning,
    bounded_warnings,
    error_of,
    error_text,
    from_wire,
    has_no_content,
    has_own_schema,
    http_envelope,
    is_response_envelope,
    local_envelope,
    mcp_envelope,
    to_wire,
    unwrap,
    wire_data,
)

__all__ = [
    "BODILESS", "MISFITS", "REPAIRS", "REPAIR_LIMIT", "RESPONSE_SOURCES", "ROOT_MISMATCH", "HTTPResponseMeta",
    "LocalResponseMeta", "MCPResponseMeta", "ResponseEnvelope", "ResultWarning", "bounded_warnings", "error_of",
    "error_text", "from_wire", "has_no_content", "has_own_schema", "http_envelope", "is_response_envelope",
    "local_envelope", "mcp_envelope", "to_wire", "unwrap", "wire_data",
]  # fmt: skip
