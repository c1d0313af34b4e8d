"""Which tools a client is shown: all of them, or in their place a search and the few that are pinned. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import msgspec

if TYPE_CHECKING:
    from enfold.surfaces.mcp.catalog import MCPTool

Mode: TypeAlias = Literal["all", "search", "auto"]

PREFIX: Final = "enfold_"  # of the tools that search, where a user's own tool has the name of one of them
DEFAULT_BUDGET: Final = 10_000  # tokens that a list may cost before `auto` puts a search in its place


class Exposure(msgspec.Struct, frozen=True):
    """What the operator chose for each namespace, and which operations are listed whatever they chose."""

    by_namespace: dict[str, Mode]  # that of "" is of all others
    pinned: tuple[str, ...]
    budget: int

    @property
    def is_all(self) -> bool:
        """Whether every tool is listed, so that nobody has to search."""
        return set(self.by_namespace.values()) == {"all"}

    def shown(self, tools: list[MCPTool], cost: Callable[[MCPTool], int]) -> list[MCPTool]:
        """The tools of a list, of which `cost` tells what each costs; fewer than there are means that one may search."""
        modes = [self._mode(tool) for tool in tools]
        if "auto" in modes:
            fits = self._fits(cost(tool) for tool, mode in zip(tools, modes, strict=True) if mode != "search")
            modes = [("all" if fits else "search") if mode == "auto" else mode for mode in modes]
        return [tool for tool, mode in zip(tools, modes, strict=True) if mode == "all"]

    def _mode(self, tool: MCPTool) -> Mode:
        from fnmatch import fnmatchcase  # where not all are listed

        names = (tool.id, tool.spec.name, tool.name)
        if any(fnmatchcase(name, pattern) for pattern in self.pinned for name in names):
            return "all"
        namespace = tool.spec.namespace
        while namespace and namespace not in self.by_namespace:
            namespace = namespace.rpartition(".")[0]
        return self.by_namespace[namespace]

    def _fits(self, costs: Iterable[int]) -> bool:
        spent = 0
        return all((spent := spent + cost) <= self.budget for cost in costs)  # the rest need not be written to know it


def read_exposure(expose: Any, pinned: Iterable[str] = (), budget: int = DEFAULT_BUDGET) -> Exposure:
    """What the operator wrote: a word for the whole surface, or one for each namespace."""
    modes = {"": "all", **expose} if isinstance(expose, Mapping) else {"": expose}
    for namespace, mode in modes.items():
        if mode not in get_args(Mode):
            where = f" for {namespace}" if namespace else ""
            raise ValueError(f"There is no way {mode!r} to expose operations{where}: use all, search or auto")
    return Exposure(modes, (pinned,) if isinstance(pinned, str) else tuple(pinned), budget)
