"""The command `enfold convert`: a file or standard input from one format to another, losses told on standard error."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import msgspec

from enfold.commands.command_options import parsed
from enfold.errors import FormatError
from enfold.formats import FORMATS
from enfold.formats.conversion import convert
from enfold.registry import Registry

__all__ = ["run"]


def run(words: list[str], registry: Registry | None) -> int:
    """Convert what the words name; exit code 0, or 2 where the input is not of the format it is said to be."""
    del registry
    options = parsed(_parser(), words)
    text = sys.stdin.read() if options.file == "-" else Path(options.file).read_text(encoding="utf-8")
    try:
        converted = convert(_wire_value(text), FORMATS[options.source], FORMATS[options.target])
    except FormatError as error:
        print(f"VALIDATION_ERROR: {error}", file=sys.stderr)
        return 2
    for warning in converted.lost:
        print(f"{options.target} has no place for {warning.path}", file=sys.stderr)
    print(msgspec.json.encode(converted.wire).decode())
    return 0


def _parser() -> ArgumentParser:
    parser = ArgumentParser("enfold convert", description="Convert a result from one format to another.")
    parser.add_argument("--from", dest="source", required=True, choices=list(FORMATS))
    parser.add_argument("--to", dest="target", required=True, choices=list(FORMATS))
    parser.add_argument("file", nargs="?", default="-", help="a file, or - for standard input")
    return parser


def _wire_value(text: str) -> Any:
    """The JSON value of a text; the second block of a ToolEnvelope is read as it stands."""
    if text.lstrip().startswith("__ENVELOPE_V"):
        return text.strip()
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise FormatError(f"Not JSON: {error}") from error
