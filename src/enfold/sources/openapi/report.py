"""What became of a document: the operations imported, those left out and why, and what is not quite as declared."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from enfold.sources.openapi.schemas import Problem

MAX_LISTED: Final = 50


class ImportReport:
    """What an import did. What is degraded is found by reading every schema, and so only when somebody asks."""

    def __init__(
        self, imported: Iterable[str], skipped: Iterable[Problem], find_degraded: Callable[[], list[Problem]]
    ) -> None:
        self.imported: list[str] = list(imported)
        self.skipped: list[Problem] = list(skipped)
        self._find_degraded = find_degraded
        self._degraded: list[Problem] | None = None

    @property
    def degraded(self) -> list[Problem]:
        """Places that were imported with less than the document says: a schema counted as `{}`, a scheme we cannot do."""
        if self._degraded is None:
            self._degraded = list(dict.fromkeys(self._find_degraded()))
        return self._degraded

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON data."""
        return {
            "imported": self.imported,
            "skipped": msgspec.to_builtins(self.skipped),
            "degraded": msgspec.to_builtins(self.degraded),
        }

    def __str__(self) -> str:
        lines = [f"{len(self.imported)} imported, {len(self.skipped)} skipped, {len(self.degraded)} degraded"]
        for word, problems in (("skipped", self.skipped), ("degraded", self.degraded)):
            lines += [f"  {word} {each.where}: {each.why}" for each in problems[:MAX_LISTED]]
            if len(problems) > MAX_LISTED:
                lines.append(f"  … and {len(problems) - MAX_LISTED} more")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<ImportReport {len(self.imported)} imported, {len(self.skipped)} skipped>"
