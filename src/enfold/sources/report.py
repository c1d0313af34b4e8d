"""What became of an import: what was taken, what was left out and why, and what is not quite as declared."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from enfold.source_states import Problem

__all__ = ["ImportReport", "Problem", "SchemeNeed"]

MAX_LISTED: Final = 50


class SchemeNeed(msgspec.Struct, frozen=True):
    """What a person has to know to fill a security scheme: a variable, and whether a credential is there already."""

    name: str
    kind: str
    variable: str
    is_filled: bool


class ImportReport:
    """What an import did. What is degraded may take long to find, and is looked for when somebody asks."""

    def __init__(
        self,
        imported: Iterable[str] = (),
        skipped: Iterable[Problem] = (),
        degraded: Iterable[Problem] | Callable[[], Iterable[Problem]] = (),
        schemes: Iterable[SchemeNeed] = (),
    ) -> None:
        self.imported: list[str] = list(imported)
        self.skipped: list[Problem] = list(skipped)
        self.schemes: list[SchemeNeed] = list(schemes)
        self._degraded = degraded

    @property
    def degraded(self) -> list[Problem]:
        """Places that were imported with less than was declared: a schema counted as `{}`, a scheme we cannot do."""
        if not isinstance(self._degraded, list):
            found = self._degraded() if callable(self._degraded) else self._degraded
            self._degraded = list(dict.fromkeys(found))
        return self._degraded

    @property
    def needs(self) -> list[str]:
        """What the credentials lack, as a sentence; nothing where one of the schemes is filled, which may be enough."""
        if not self.schemes or any(each.is_filled for each in self.schemes):
            return []
        return [f"no credentials: set {' or '.join(dict.fromkeys(each.variable for each in self.schemes))}"]

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON data."""
        return {
            "imported": self.imported,
            "skipped": msgspec.to_builtins(self.skipped),
            "degraded": msgspec.to_builtins(self.degraded),
            **({"schemes": msgspec.to_builtins(self.schemes)} if self.schemes else {}),
        }

    def __str__(self) -> str:
        lines = [f"{len(self.imported)} imported, {len(self.skipped)} skipped, {len(self.degraded)} degraded"]
        for word, problems in (("skipped", self.skipped), ("degraded", self.degraded)):
            lines += [f"  {word} {each.where}: {each.why}" for each in problems[:MAX_LISTED]]
            if len(problems) > MAX_LISTED:
                lines.append(f"  … and {len(problems) - MAX_LISTED} more")
        for each in self.schemes:
            lines.append(f"  scheme {each.name} ({each.kind}): {'there' if each.is_filled else f'set {each.variable}'}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<ImportReport {len(self.imported)} imported, {len(self.skipped)} skipped>"
