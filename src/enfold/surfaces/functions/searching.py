"""`GET /operations?q=…`: the search over a registry as an operation of its own, so that it is read and answered like all others."""

from __future__ import annotations

from typing import Literal

from enfold.finding import Finder, Found
from enfold.operation import Context
from enfold.registry import OperationRegistry, Registry


def search_registry(registry: Registry) -> Registry:
    """A registry with one operation, `operations`, which searches the other."""
    finder = Finder(registry)
    own = OperationRegistry()

    @own.query
    def operations(
        context: Context,
        q: str = "",
        limit: int = 10,
        source: str | None = None,
        kind: Literal["query", "mutation", "subscription"] | None = None,
    ) -> list[Found]:
        """Find operations by what they do, in one source or of one kind if need be."""
        return finder.find(q, context.identity, limit, namespace=source, type=kind)

    return own.guarded()
