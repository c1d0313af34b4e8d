"""The names of operations where dots are not allowed, as MCP clients want them."""

from __future__ import annotations

from enfold.access import is_hidden
from enfold.operation import Identity, OperationSpec, legal_name, legal_names, with_hash
from enfold.registry import Registry
from enfold.reserved import RESERVED


def tool_names(registry: Registry) -> dict[str, str]:
    """The tool name of each operation, by its id; those of `enfold` have the names that users leave to them."""
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
    """The spec of an id, of a tool name, or of a name that only one operation has of those that the caller may see."""
    if name not in registry:
        for operation_id, tool in tool_names(registry).items():
            if tool == name and not is_hidden(registry.get_spec(operation_id).access_control, identity):
                return registry.get_spec(operation_id)
    return registry.find(name, identity)
