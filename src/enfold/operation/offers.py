"""What an operation is on an MCP server besides a tool: `meta["mcp"]` of its spec says it, and its URI, icons and annotations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from enfold.operation.spec import OperationSpec
from enfold.operation.uri_template import is_template, match_uri, names_of

# `updates` tells when the resources of its namespace change: a subscription, whose input is a URI.
Kind: TypeAlias = Literal["tool", "resource", "prompt", "completion", "updates"]

META: Final = "mcp"
KINDS: Final = ("tool", "resource", "prompt", "completion", "updates")


def kind_of(spec: OperationSpec) -> Kind:
    """What the operation is on an MCP server; a tool, where nothing else is said."""
    kind = facts_of(spec).get("kind", "tool")
    return kind if kind in KINDS else "tool"


def facts_of(spec: OperationSpec) -> dict[str, Any]:
    """What is known of the operation only for MCP: its kind, a resource's URI, annotations and icons."""
    facts = spec.meta.get(META)
    return facts if isinstance(facts, dict) else {}


def with_facts(kind: Kind, facts: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an operation that is of a kind, with what else is known of it for MCP."""
    said = {name: value for name, value in facts.items() if value is not None}
    return {**options, "meta": {**(options.get("meta") or {}), META: {"kind": kind, **said}}}


def check_template(uri: str, spec: OperationSpec) -> None:
    """Refuse a template with a name that the function does not take, before a reader of the resource finds out."""
    match_uri(uri, "")  # a template that cannot be read is told here
    arguments = spec.input_schema.get("properties", {})
    unknown = [name for name in names_of(uri) if name not in arguments] if is_template(uri) else []
    if unknown:
        raise ValueError(f"{spec.id} has no argument {unknown[0]!r}, which {uri} names")
