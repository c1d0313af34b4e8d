"""What an operation is on an MCP server besides a tool: a resource, a prompt, or the completion of an argument.

All are ordinary operations, called through the same funnel on every surface; `meta["mcp"]` of the spec says the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from enfold.content import ContentBlock
from enfold.mcp.uri_template import is_template, match_uri, names_of
from enfold.operation import OperationSpec
from enfold.registry import OperationRegistry

F = TypeVar("F", bound=Callable[..., Any])
# `updates` tells when the resources of its namespace change: a subscription, whose input is a URI.
Kind: TypeAlias = Literal["tool", "resource", "prompt", "completion", "updates"]

META: Final = "mcp"
KINDS: Final = ("tool", "resource", "prompt", "completion", "updates")


class PromptMessage(msgspec.Struct, frozen=True):
    """One message of a prompt: who says it, and a text or a content block."""

    content: ContentBlock | str
    role: Literal["user", "assistant"] = "user"


def resource(
    registry: OperationRegistry,
    uri: str,
    *,
    mime_type: str | None = None,
    size: int | None = None,
    annotations: dict[str, Any] | None = None,
    icons: list[dict[str, Any]] | None = None,
    **options: Any,
) -> Callable[[F], F]:
    """Register what a function returns as the resource at a URI; names in braces are its arguments.

    Text and JSON go out as text, `bytes` as a blob; `options` are those of `registry.query`.
    """
    facts = {"uri": uri, "mimeType": mime_type, "size": size, "annotations": annotations, "icons": icons}

    def decorate(function: F) -> F:
        made = registry.register(function, type="query", **_with_facts("resource", facts, options))
        try:
            _check_template(uri, made.spec)
        except ValueError:
            registry.unregister(made.spec.id)
            raise
        return function

    return decorate


def prompt(
    registry: OperationRegistry, *, icons: list[dict[str, Any]] | None = None, **options: Any
) -> Callable[[F], F]:
    """Register a function as a prompt: a text, one content block or message, or a list of these."""
    return registry.query(**_with_facts("prompt", {"icons": icons}, options))


def completion(registry: OperationRegistry, of: str, argument: str | None = None, **options: Any) -> Callable[[F], F]:
    """Register a function that proposes values for an argument of a prompt or a resource of the same namespace.

    It may take `value` (what is typed so far), `argument` (its name) and `arguments` (the others), and gives texts.
    """
    facts = {"of": of, "argument": argument}
    return registry.query(**_with_facts("completion", facts, options))


def kind_of(spec: OperationSpec) -> Kind:
    """What the operation is on an MCP server; a tool, where nothing else is said."""
    kind = facts_of(spec).get("kind", "tool")
    return kind if kind in KINDS else "tool"


def facts_of(spec: OperationSpec) -> dict[str, Any]:
    """What is known of the operation only for MCP: its kind, a resource's URI, annotations and icons."""
    facts = spec.meta.get(META)
    return facts if isinstance(facts, dict) else {}


def _with_facts(kind: Kind, facts: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    said = {name: value for name, value in facts.items() if value is not None}
    return {**options, "meta": {**(options.get("meta") or {}), META: {"kind": kind, **said}}}


def _check_template(uri: str, spec: OperationSpec) -> None:
    """Refuse a template with a name that the function does not take, before a reader of the resource finds out."""
    match_uri(uri, "")  # a template that cannot be read is told here
    arguments = spec.input_schema.get("properties", {})
    unknown = [name for name in names_of(uri) if name not in arguments] if is_template(uri) else []
    if unknown:
        raise ValueError(f"{spec.id} has no argument {unknown[0]!r}, which {uri} names")


# --- a prompt's result --------------------------------------------------------------------------------------------


def prompt_messages(data: Any) -> list[dict[str, Any]]:
    """The messages of a prompt, from what its operation gave."""
    items = data if isinstance(data, list) else [data]
    return [_message(item) for item in items]


def _message(item: Any) -> dict[str, Any]:
    if isinstance(item, dict) and item.get("role") in ("user", "assistant") and "content" in item:
        return {**item, "content": _block(item["content"])}
    return {"role": "user", "content": _block(item)}


def _block(content: Any) -> dict[str, Any]:
    if isinstance(content, dict) and isinstance(content.get("type"), str):
        return content
    text = content if isinstance(content, str) else msgspec.json.encode(content).decode()
    return {"type": "text", "text": text}


# --- a resource's contents ----------------------------------------------------------------------------------------


def resource_contents(
    spec: OperationSpec, uri: str, data: Any, blocks: tuple[ContentBlock, ...]
) -> list[dict[str, Any]]:
    """The contents of a resource: those its handler made itself, or one of text or of bytes."""
    own = [block.to_wire()["resource"] for block in blocks if block.type == "resource"]
    if own:
        return own
    mime_type = facts_of(spec).get("mimeType", UNSET)
    return [_contents(uri, mime_type, data, is_blob=spec.output_schema.get("contentEncoding") == "base64")]


def _contents(uri: str, mime_type: str | UnsetType, data: Any, *, is_blob: bool) -> dict[str, Any]:
    if isinstance(data, str):
        kind = mime_type or ("application/octet-stream" if is_blob else "text/plain")
        return {"uri": uri, "mimeType": kind, "blob" if is_blob else "text": data}
    text = msgspec.json.encode(data).decode()
    return {"uri": uri, "mimeType": mime_type or "application/json", "text": text}
