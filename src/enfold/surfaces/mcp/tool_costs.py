"""What the tools of a registry cost a model that is shown them: estimates, of the text that `tools/list` gives."""

from __future__ import annotations

from enfold.access import may_list
from enfold.costs import estimate_tokens
from enfold.formats import DEFAULT_FORMAT
from enfold.mcp.revisions import LATEST
from enfold.operation import Identity
from enfold.registry import Registry
from enfold.surfaces.mcp.catalog import Catalog


def tool_costs(registry: Registry, identity: Identity | None = None) -> dict[str, int]:
    """The tokens of each tool that a caller sees, by the id of its operation."""
    tools = Catalog(registry.guarded(), DEFAULT_FORMAT, "safe").tools
    seen = (tool for tool in tools if may_list(tool.spec.access_control, identity))
    return {tool.id: estimate_tokens(tool.text(LATEST)) for tool in seen}
