"""The names of operations where dots are not allowed, as MCP clients want them."""

from __future__ import annotations

from enfold.access import is_hidden
from enfold.operation import Identity, OperationSpec, legal_names
from enfold.registry import Registry

__all__ = ["find_by_tool_name", "tool_names"]


def tool_names(registry: Registry) -> dict[str, str]:
    """The tool name of each operation, by its id."""
    return legal_names(spec.id for spec in registry.list())


def find_by_tool_name(registry: Registry, name: str, identity: Identity | None) -> OperationSpec:
    """The spec of an id, of a tool name, or of a name that only one operation has of those that the caller may see."""
    if name not in registry:
        for operation_id, tool in tool_names(registry).items():
            if tool == name and not is_hidden(registry.get_spec(operation_id).access_control, identity):
                return registry.get_spec(operation_id)
    return registry.find(name, identity)
