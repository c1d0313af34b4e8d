"""The command `enfold inspect`: operations in detail, or the import report of an OpenAPI document."""

from __future__ import annotations

from typing import TYPE_CHECKING

from enfold.commands.shared.callers import LOCAL
from enfold.commands.shared.options import parse_command
from enfold.commands.shared.output import print_json, print_operations
from enfold.commands.shared.targets import imported, on_target
from enfold.errors import printable_lines
from enfold.runtime.registry import OperationRegistry, Registry
from enfold.surfaces.introspection import introduce

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def run(words: list[str], registry: Registry | None) -> int:
    """Show one operation, or all."""

    def add(parser: ArgumentParser) -> None:
        parser.add_argument("operation", nargs="?", help="an id or a unique name")
        parser.add_argument(
            "--json", action="store_true", help="print the import report of an OpenAPI document as JSON"
        )

    options = parse_command(
        "inspect", words, registry, "Show operations, or the import report of an OpenAPI document.", add
    )
    if options.target.kind == "document":
        return _inspect_document(options)
    return on_target(options.target, lambda found: _print_specs(found, options), options.operation)


def _print_specs(found: Registry, options: Namespace) -> int:
    introduce(found, {})
    specs = found.list() if options.operation is None else [found.find(options.operation, LOCAL)]
    print_json([spec.to_dict() for spec in specs] if options.operation is None else specs[0].to_dict())
    return 0


def _inspect_document(options: Namespace) -> int:
    """Print the import report of an OpenAPI document: its operations, what was skipped and why."""
    operations = imported(options.target)
    if options.operation is not None:
        chosen = OperationRegistry()
        chosen.register_all(operations)
        print_json(chosen.find(options.operation, LOCAL).to_dict())
    elif options.json:
        print_json(operations.report.to_dict())
    else:
        print_operations(operation.spec for operation in operations)
        print(printable_lines(str(operations.report)))
    return 0
