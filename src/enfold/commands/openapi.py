"""The command `enfold openapi`: the OpenAPI document of the HTTP surface."""

from __future__ import annotations

from typing import TYPE_CHECKING

from enfold.commands.shared.options import parse_command
from enfold.commands.shared.output import print_json
from enfold.commands.shared.targets import on_target
from enfold.formats import DEFAULT_FORMAT
from enfold.runtime.registry import Registry
from enfold.surfaces.introspection import introduce
from enfold.surfaces.openapi import Excerpt, to_openapi

if TYPE_CHECKING:
    from argparse import ArgumentParser


def run(words: list[str], registry: Registry | None) -> int:
    """Print the document, with every operation in it."""
    options = parse_command("openapi", words, registry, "Print the OpenAPI document of the HTTP surface.", _add_options)

    def show(found: Registry) -> int:
        introduce(found, {})
        names = {"title": options.title, "version": options.app_version}
        excerpt = Excerpt(options.namespace)
        print_json(to_openapi(found, format=options.format, everything=True, excerpt=excerpt, **names))
        return 0

    return on_target(options.target, show)


def _add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--format", default=DEFAULT_FORMAT, help="the format of the responses it describes")
    parser.add_argument("--namespace", help="only operations of this namespace; `enfold` for Enfold's own operations")
    parser.add_argument("--title", help="application name")
    parser.add_argument("--app-version", metavar="TEXT", help="application version")
