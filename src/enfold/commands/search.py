"""The command `enfold search`: the operations of a target that match a query, as callable signatures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from enfold.commands.shared.callers import local_caller
from enfold.commands.shared.options import add_number, parse_command
from enfold.commands.shared.output import print_json
from enfold.commands.shared.targets import on_target
from enfold.errors import CallError, printable_lines
from enfold.runtime.registry import Registry

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def run(words: list[str], registry: Registry | None) -> int:
    def add(parser: ArgumentParser) -> None:
        parser.add_argument("query", nargs="*", help="what you want to do")
        add_number(parser, "--limit", default=10, help="maximum number of results (default 10)")
        parser.add_argument("--source", metavar="NAMESPACE", help="only operations of this namespace")
        parser.add_argument(
            "--kind", choices=("query", "mutation", "subscription"), help="only operations of this type"
        )
        parser.add_argument("--json", action="store_true", help="as JSON")
        parser.add_argument(
            "--tokens", metavar="FILE", help="search what the identity of ENFOLD_TOKEN in this file may call"
        )

    options = parse_command("search", words, registry, "Search operations by what they do.", add)
    return on_target(options.target, lambda found: _print_found(found, options))


def _print_found(registry: Registry, options: Namespace) -> int:
    from enfold.search.finder import Finder

    caller = local_caller(options.tokens)
    query = " ".join(options.query)
    found = Finder(registry).find(query, caller, options.limit, namespace=options.source, type=options.kind)
    if options.json:
        print_json(msgspec.to_builtins(found))
    elif not found:
        raise CallError("OPERATION_NOT_FOUND", f"No operation matches {query!r}: try other words, or enfold list")
    else:
        lines = (f"{each.id}{each.signature}\n    {each.description}".rstrip() for each in found)
        print(printable_lines("\n".join(lines)))
    return 0
