"""What an operation is on an MCP server besides a tool: a resource, a prompt, or the completion of an argument.

All are ordinary operations, called through the same funnel on every surface; `meta["mcp"]` of the spec says the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from enfold.content import ContentBlock
from enfold.operation import OperationSpec
from enfold.operation.offers import facts_of, with_facts
from enfold.registry import OperationRegistry

F = TypeVar("F", bound=Callable[..., Any])


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
    """`registry.resource(uri)`, as a function."""
    return registry.resource(uri, mime_type=mime_type, size=size, annotations=annotations, icons=icons, **options)


def prompt(
    registry: OperationRegistry, *, icons: list[dict[str, Any]] | None = None, **options: Any
) -> Callable[[F], F]:
    """`registry.prompt`, as a function."""
    return registry.prompt(icons=icons, **options)


def completion(registry: OperationRegistry, of: str, argument: str | None = None, **options: Any) -> Callable[[F], F]:
    """Register a function that proposes values for an argument of a prompt or a resource of the same namespace.

    It may take `value` (what is typed so far), `argument` (its name) and `arguments` (the others), and gives texts.
    """
    facts = {"of": of, "argument": argument}
    return registry.query(**with_facts("completion", facts, options))


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
