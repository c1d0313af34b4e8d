"""The command `enfold list`: the operations of a target, as a table, as tab-separated lines, or as JSON."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from enfold.commands.printing import print_json
from enfold.commands.targets import on_target, parse
from enfold.registry import Registry

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

__all__ = ["run"]


def run(words: list[str], registry: Registry | None) -> int:
    """List the operations."""

    def add(parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="the specs in full, as JSON")

    options = parse("list", words, registry, "List the operations.", add)
    return on_target(options, registry, lambda found: _print_list(found, options))


def _print_list(registry: Registry, options: Namespace) -> int:
    specs = registry.list()
    if options.json:
        print_json([spec.to_dict() for spec in specs])
        return 0
    rows = [(spec.id, spec.type.value, spec.description.partition("\n")[0]) for spec in specs]
    if rows:
        print(_table(rows) if sys.stdout.isatty() else "\n".join("\t".join(row) for row in rows))
    return 0


def _table(rows: list[tuple[str, str, str]]) -> str:
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(2)]
    return "\n".join(f"{name:<{widths[0]}}  {kind:<{widths[1]}}  {text}".rstrip() for name, kind, text in rows)
