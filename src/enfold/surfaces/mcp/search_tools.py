"""The three tools that replace a long list: they find, describe and call operations.

They are operations of a registry of their own, so that their arguments are read like all others. What `call_operation` calls
is run by `enfold.surfaces.mcp.tools` as if it had been called by its own name.
"""

from __future__ import annotations

from typing import Any, Final, TypedDict

from enfold.mcp.offers import find_by_tool_name
from enfold.operations import Context, Identity, OperationSpec
from enfold.operations.mcp_kind import kind_of
from enfold.runtime.registry import OperationRegistry, Registry, not_found
from enfold.search.finder import Description, Finder, Found
from enfold.surfaces.mcp.catalog import PREFIX, Catalog, ListedSchemas, MCPTool

INSTRUCTIONS: Final = (
    "Most operations of this server (there are {count}) are not listed as tools. Find one with search_operations,"
    " then run it with call_operation."
)


class CallArguments(TypedDict):
    """What `call_operation` was asked for."""

    id: str
    arguments: dict[str, Any] | None
    select: str | None


class SearchTools:
    """The tools of one registry; a user's own tool wins where it has the name of one of these."""

    def __init__(self, registry: Registry, format: str) -> None:
        self._registry = registry
        self._finder = Finder(registry, lambda spec: kind_of(spec) == "tool")
        self._own = OperationRegistry(coerce=True)
        facts = {"advertise_output": False}
        self._own.register(self.search_operations, type="query", meta=facts)
        self._own.register(self.describe_operation, type="query", meta=facts)
        # What it calls may change or destroy something: clients that ask their users before such a tool have to ask here.
        self._own.register(self.call_operation, type="mutation", destructive=True, meta=facts)
        self._format = format
        self._schemas = ListedSchemas()

    def tools(self, catalog: Catalog) -> list[MCPTool]:
        """Return the three search tools, under names that no tool of the catalog has."""
        served = self._own.guarded()
        names = {each.spec.id: each.spec.name for each in served}
        free = {own: f"{PREFIX}{name}" if catalog.tool(name) is not None else name for own, name in names.items()}
        tools = [MCPTool(each, free[each.spec.id], self._format, served, self._schemas) for each in served]
        tools[-1].find_target = self.find_target
        return tools

    def find_target(self, name: str, identity: Identity | None) -> OperationSpec:
        """Find the operation for `call_operation` by id, tool name or short name."""
        spec = find_by_tool_name(self._registry, name, identity)
        if kind_of(spec) != "tool":
            raise not_found(name)
        return spec

    def instructions(self) -> str:
        """Return the instructions for clients when most operations are not listed."""
        return INSTRUCTIONS.format(count=len(self._registry))

    # --- what they do

    def search_operations(self, query: str, context: Context, limit: int = 5) -> list[Found]:
        """Find operations by what they do.

        Args:
            query: What you want to do, in words. `source:github` or `kind:query` narrows it.
            limit: At most 50.
        """
        return self._finder.find(query, context.identity, limit)

    def describe_operation(self, id: str, context: Context) -> Description:
        """Describe every argument of an operation, and the fields of its result."""
        return self._finder.describe(id, context.identity)

    async def call_operation(
        self, id: str, arguments: dict[str, Any] | None = None, select: str | None = None
    ) -> CallArguments:
        """Run an operation.

        Args:
            id: As found.
            arguments: By their names.
            select: Only these fields of the result: `items(id,user/login),total`.
        """
        return {"id": id, "arguments": arguments, "select": select}
