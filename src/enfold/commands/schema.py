"""The command `enfold schema`: the JSON Schema of an `enfold.toml`, for editors."""

from __future__ import annotations

from argparse import ArgumentParser

from enfold.app.keys import schema
from enfold.commands.shared.options import parse_options
from enfold.commands.shared.output import in_lines
from enfold.runtime.registry import Registry


def run(words: list[str], registry: Registry | None) -> int:
    """Print the schema, in lines: it is kept as a file beside the configuration."""
    del registry
    parse_options(
        ArgumentParser("enfold schema", description="Print the JSON Schema of enfold.toml, for your editor."), words
    )
    print(in_lines(schema()))
    return 0
