"""The command `enfold list`: the operations of a target, as a table, as tab-separated lines, or as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from enfold.commands.callers import local_caller
from enfold.commands.command_options import parse
from enfold.commands.printing import print_json, print_operations
from enfold.commands.targets import on_target
from enfold.errors import CallError
from enfold.introspection import introduce
from enfold.registry import Registry

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

__all__ = ["run"]


def run(words: list[str], registry: Registry | None) -> int:
    """List the operations."""

    def add(parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="the specs in full, as JSON")
        parser.add_argument("--namespace", help="only what lies in it; `enfold` is that of Enfold's own operations")
        parser.add_argument("--tokens", metavar="FILE", help="list what ENFOLD_TOKEN, of this file, may call")

    options = parse("list", words, registry, "List the operations.", add)
    return on_target(options.target, registry, lambda found: _print_list(found, options))


def _print_list(registry: Registry, options: Namespace) -> int:
    introduce(registry, {})
    specs = registry.visible(local_caller(options.tokens), namespace=options.namespace)
    if not specs:
        raise CallError("OPERATION_NOT_FOUND", "There are no operations")
    if options.json:
        print_json([spec.to_dict() for spec in specs])
        return 0
    print_operations(specs)
    return 0
