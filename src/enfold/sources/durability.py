"""Which operations of a source may or must run as tasks: one meaning for every source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from enfold.operation import Durable, OnCrash, OperationSpec, OperationType
from enfold.sources.choosing import Choice, choosing

DurableChoice: TypeAlias = bool | str | Iterable[str] | Mapping[str, Durable]


def durability(durable: DurableChoice | None, on_crash: OnCrash | None = None) -> Durability:
    """What a user says: True for all, a pattern or several (`export_*`), or a table of patterns and words."""
    if durable is None or isinstance(durable, bool):
        table: Mapping[str, Durable] = {"*": "optional"} if durable else {}
    elif isinstance(durable, Mapping):
        table = durable
    else:
        table = dict.fromkeys([durable] if isinstance(durable, str) else durable, "optional")
    return Durability([(choosing(pattern, None), word) for pattern, word in table.items()], on_crash)


class Durability(msgspec.Struct, frozen=True):
    """The patterns, of which the first that fits counts, and what becomes of tasks whose worker died."""

    rules: list[tuple[Choice, Durable]]
    on_crash: OnCrash | None

    def apply(self, spec: OperationSpec) -> OperationSpec:
        """The spec as the user wants it; a subscription stays as it is."""
        if spec.type is OperationType.SUBSCRIPTION:
            return spec
        chosen = next((word for choice, word in self.rules if choice.takes(spec)), None)
        changes = {"durable": chosen, "on_crash": self.on_crash}
        wanted = {name: value for name, value in changes.items() if value is not None}
        return spec.replace(**wanted) if wanted else spec
