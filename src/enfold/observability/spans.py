"""Span names and attributes by OpenTelemetry's semantic conventions, and trace context propagation.

HTTP: semantic conventions 1.44.0 (stable). MCP: the generative AI conventions (in development). Our own attributes begin
with `enfold.`. Arguments and results never become attributes. This module does not need OpenTelemetry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from enfold.observability.records import INPUT_REQUIRED, OK, REFUSALS, CallRecord, SpanStart

NAMES: Final = ("traceparent", "tracestate", "baggage")

# Returns `traceparent`, and optionally `tracestate` and `baggage`, of the current call.
inject: Callable[[], dict[str, str]] | None = None


_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY"})
_MAX_TEXT: Final = 200  # characters of untrusted text


def http_span(scope: Mapping[str, Any], headers: Mapping[bytes, bytes]) -> SpanStart:
    """Return the span of a request to the HTTP server; its name gets the route once known."""
    attributes = _request(scope["method"], scope["path"], headers)
    attributes["url.scheme"] = scope.get("scheme", "http")
    attributes["network.protocol.version"] = scope.get("http_version", "1.1")
    server, client = scope.get("server"), scope.get("client")
    if server:
        attributes["server.address"], attributes["server.port"] = server[0], server[1] or 0
    if client:
        attributes["client.address"] = client[0]
    return SpanStart(attributes["http.request.method"], "server", attributes, headers)


def cgi_span(method: str, path: str, headers: Mapping[bytes, bytes]) -> SpanStart:
    """Return the span of a CGI request."""
    attributes = _request(method, path, headers) | {"url.scheme": "http"}
    return SpanStart(attributes["http.request.method"], "server", attributes, headers)


def _request(method: str, path: str, headers: Mapping[bytes, bytes]) -> dict[str, Any]:
    known = method in _METHODS
    attributes: dict[str, Any] = {
        "http.request.method": method if known else "_OTHER",
        "url.path": path[:_MAX_TEXT],
    }
    if not known:
        attributes["http.request.method_original"] = method[:_MAX_TEXT]
    agent = headers.get(b"user-agent")
    if agent is not None:
        attributes["user_agent.original"] = agent.decode("latin-1")[:_MAX_TEXT]
    return attributes


def http_outcome(method: str, record: CallRecord, status: int | None, rest_path: str | None = None) -> dict[str, Any]:
    """Return the attributes after the response; `name` is the span's."""
    route = rest_path or (f"/functions/{record.operation}" if record.operation else None)
    attributes: dict[str, Any] = {"name": f"{method if method in _METHODS else 'HTTP'} {route or ''}".strip()}
    if route is not None:
        attributes["http.route"] = route
    if status is not None or record.items is not None:
        attributes["http.response.status_code"] = status or 200
    if record.request_bytes is not None:
        attributes["http.request.body.size"] = record.request_bytes
    if record.response_bytes is not None:
        attributes["http.response.body.size"] = record.response_bytes
    if record.code != OK and record.code not in _NOT_OUR_FAULT:
        attributes["error.type"] = record.code
    return attributes


# Caller errors and cancellations, which by convention are not server errors.
_NOT_OUR_FAULT: Final = REFUSALS | {"ABORTED"}


def mcp_span(
    method: str,
    subject: object,
    request_id: int | str,
    revision: str,
    carrier: Mapping[Any, Any],
    *,
    is_over_http: bool,
) -> SpanStart:
    """Return the span of a request to the MCP server; `subject` is the requested name.

    The URI of a resource is omitted because it may contain arguments.
    """
    attributes: dict[str, Any] = {
        "mcp.method.name": method,
        "jsonrpc.request.id": str(request_id)[:_MAX_TEXT],
        "mcp.protocol.version": revision,
        "network.transport": "tcp" if is_over_http else "pipe",
    }
    if is_over_http:
        attributes["network.protocol.name"] = "http"
    if isinstance(subject, str) and method in _SUBJECTS:
        attributes[_SUBJECTS[method]] = subject[:_MAX_TEXT]
    if method == "tools/call":
        attributes["gen_ai.operation.name"] = "execute_tool"
    return SpanStart(method, "server", attributes, carrier)


_SUBJECTS: Final = {"tools/call": "gen_ai.tool.name", "prompts/get": "gen_ai.prompt.name"}


def mcp_outcome(record: CallRecord, method: str, subject: object, status: int | None) -> dict[str, Any]:
    """Return the attributes after the response; `status` is the code of a protocol error.

    An unknown name is not part of the span's name.
    """
    is_named = record.operation and method in _SUBJECTS and isinstance(subject, str)
    attributes = {"name": f"{method} {subject}" if is_named else method}
    if status is not None:
        return attributes | {"error.type": str(status), "rpc.response.status_code": str(status)}
    is_failed = record.code not in (OK, INPUT_REQUIRED)
    return attributes | {"error.type": "tool_error"} if is_failed else attributes


def record_attributes(record: CallRecord) -> dict[str, Any]:
    """Return the attributes common to spans of all surfaces."""
    attributes: dict[str, Any] = {
        "enfold.operation": record.operation,
        "enfold.surface": record.surface,
        "enfold.source.kind": record.origin.kind,
        "enfold.source.name": record.origin.name,
        "enfold.code": record.code,
        "enfold.request_id": record.request_id,
        "enfold.warnings": record.warnings,
    }
    named = {
        "enfold.parent_request_id": record.parent_request_id,
        "enfold.first_warning": record.first_warning,
        "enfold.request.size": record.request_bytes,
        "enfold.response.size": record.response_bytes,
        "enfold.items": record.items,
    }
    return attributes | {name: value for name, value in named.items() if value is not None}
