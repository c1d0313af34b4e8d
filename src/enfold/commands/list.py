"""The command `enfold list`: the operations of a target, as a table, as tab-separated lines, or as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from enfold.commands.shared.callers import local_caller
from enfold.commands.shared.options import parse_command
from enfold.commands.shared.output import print_json, print_operations
from enfold.commands.shared.targets import on_target
from enfold.errors import CallError
from enfold.operations import Identity
from enfold.runtime.registry import Registry
from enfold.surfaces.introspection import introduce

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

COSTS = "\0"  # instead of a file name; no file can have it


def run(words: list[str], registry: Registry | None) -> int:
    def add(parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print the complete specs as JSON")
        parser.add_argument(
            "--namespace", help="only operations of this namespace; `enfold` for Enfold's own operations"
        )
        parser.add_argument(
            "--tokens",
            nargs="?",
            const=COSTS,
            metavar="FILE",
            help="without FILE: show the cost of each operation as a tool; with FILE: list what the identity of ENFOLD_TOKEN may call",
        )

    options = parse_command("list", words, registry, "List the operations.", add)
    return on_target(options.target, lambda found: _print_list(found, options))


def _print_list(registry: Registry, options: Namespace) -> int:
    introduce(registry, {})
    caller = local_caller(None if options.tokens == COSTS else options.tokens)
    specs = registry.visible(caller, namespace=options.namespace)
    if not specs:
        raise CallError("OPERATION_NOT_FOUND", "The target has no operations that you may call")
    if options.tokens == COSTS:
        return _print_costs(registry, caller, as_json=options.json)
    if options.json:
        print_json([spec.to_dict() for spec in specs])
        return 0
    print_operations(specs)
    return 0


def _print_costs(registry: Registry, caller: Identity, *, as_json: bool) -> int:
    """Print the tokens of each tool, the dearest first, and of all; they are estimates."""
    from enfold.surfaces.mcp.catalog import tool_costs

    costs = tool_costs(registry, caller)
    if as_json:
        print_json(costs)
        return 0
    for name, tokens in sorted(costs.items(), key=lambda each: -each[1]):
        print(f"{tokens:>8}  {name}")
    print(f"{sum(costs.values()):>8}  tokens in total (estimate: four bytes each)")
    return 0
