"""What commands print: JSON for programs, indented for people; and who we are."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import msgspec

from enfold.operation import OperationSpec

__all__ = ["print_json", "print_operations", "version"]


def print_json(value: Any) -> None:
    """One line for a program, several for a person at a terminal."""
    text = msgspec.json.encode(value)
    print((msgspec.json.format(text, indent=2) if sys.stdout.isatty() else text).decode())


def print_operations(specs: Iterable[OperationSpec]) -> None:
    """A line for each operation: in columns for a person at a terminal, else with tabs."""
    rows = [(spec.id, spec.type.value, spec.description.partition("\n")[0]) for spec in specs]
    if rows:
        print(_table(rows) if sys.stdout.isatty() else "\n".join("\t".join(row) for row in rows))


def _table(rows: list[tuple[str, str, str]]) -> str:
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(2)]
    return "\n".join(f"{name:<{widths[0]}}  {kind:<{widths[1]}}  {text}".rstrip() for name, kind, text in rows)


def version() -> str:
    from importlib.metadata import version as installed_version

    return f"enfold {installed_version('enfold')}"
