"""Operations that MCP clients see not as tools but as resources, prompts or completions.

They are called through the same funnel on every surface; `meta["mcp"]` of the spec has the details.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from enfold.envelope import MCPResponseMeta, ResponseEnvelope
from enfold.envelope.content import ContentBlock
from enfold.mcp.json_rpc import fields_of, passed_meta
from enfold.operations import Identity, OperationSpec, legal_name, legal_names, with_hash
from enfold.operations.access import is_hidden
from enfold.operations.mcp_kind import facts_of, with_facts
from enfold.runtime.registry import OperationRegistry, Registry
from enfold.runtime.reserved import RESERVED

F = TypeVar("F", bound=Callable[..., Any])


class PromptMessage(msgspec.Struct, frozen=True):
    """One message of a prompt: its role, and a text or a content block."""

    content: ContentBlock | str
    role: Literal["user", "assistant"] = "user"


def completion(registry: OperationRegistry, of: str, argument: str | None = None, **options: Any) -> Callable[[F], F]:
    """Register a function that suggests values for an argument of a prompt or a resource in the same namespace.

    It can take `value` (the text typed so far), `argument` (its name) and `arguments` (the others), and returns strings.
    """
    facts = {"of": of, "argument": argument}
    return registry.query(**with_facts("completion", facts, options))


# --- a prompt's result --------------------------------------------------------------------------------------------


def prompt_messages(data: Any) -> list[dict[str, Any]]:
    """Return the messages of a prompt from its operation's result."""
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
    """Return the contents of a resource: those its handler made, or one of text or bytes."""
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


FIELDS_KEY: Final = "enfold/fields"


def meta_of_result(meta: Any, **others: Any) -> dict[str, Any] | UnsetType:
    """Return the `_meta` for an envelope: that of the server's result, and its other fields as far as they are set."""
    fields = {name: value for name, value in others.items() if value is not UNSET}
    meta = passed_meta(fields_of(meta))
    return {**meta, FIELDS_KEY: fields} if fields else meta or UNSET


def fields_of_result(envelope: ResponseEnvelope[Any]) -> tuple[Mapping[str, Any], dict[str, Any] | UnsetType]:
    """Return the fields of a server's result that `meta_of_result` kept, and its `_meta`."""
    if not isinstance(envelope.meta, MCPResponseMeta) or envelope.meta._meta is UNSET:
        return {}, UNSET
    meta = dict(envelope.meta._meta)
    fields = fields_of(meta.pop(FIELDS_KEY, None))
    return fields, meta or UNSET


def tool_names(registry: Registry) -> dict[str, str]:
    """Return the tool name of each operation by id; those of `enfold` get names that users leave free."""
    names = legal_names(spec.id for spec in registry.list())
    taken = set(names.values())
    for spec in registry.list(namespace=RESERVED):
        name = wanted = legal_name(spec.id)
        salt = spec.id
        while name in taken:  # a user's operation may have the hashed name, too
            name, salt = with_hash(wanted, salt), f"{salt} "
        taken.add(name)
        names[spec.id] = name
    return names


def find_by_tool_name(registry: Registry, name: str, identity: Identity | None) -> OperationSpec:
    """Find a spec by id, tool name, or a name that is unique among the operations the caller may see."""
    if name not in registry:
        for operation_id, tool in tool_names(registry).items():
            if tool == name and not is_hidden(registry.get_spec(operation_id).access_control, identity):
                return registry.get_spec(operation_id)
    return registry.find(name, identity)
