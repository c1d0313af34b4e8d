"""What became of a server's offers: the operations imported, and what was left out and why."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["ImportReport", "Problem"]


class Problem(msgspec.Struct, frozen=True):
    """Something that was left out, and the reason."""

    where: str
    why: str


class ImportReport(msgspec.Struct, frozen=True):
    """What an import did."""

    imported: list[str] = []
    skipped: list[Problem] = []
    degraded: list[Problem] = []  # imported, though not quite as the server has it

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON data."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found

    def __str__(self) -> str:
        lines = [f"{len(self.imported)} imported, {len(self.skipped)} skipped"]
        lines += [f"  skipped {each.where}: {each.why}" for each in self.skipped]
        return "\n".join([*lines, *(f"  degraded {each.where}: {each.why}" for each in self.degraded)])
