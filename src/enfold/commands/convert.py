"""The command `enfold convert`: a file or standard input from one format, or from what a tool prints today, to another."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import msgspec

from enfold.commands.shared.options import parse_options
from enfold.envelope import local_envelope
from enfold.errors import CallError, FormatError, printable, printable_json
from enfold.formats import FORMATS
from enfold.formats.conversion import Conversion, convert
from enfold.runtime.registry import Registry


def run(words: list[str], registry: Registry | None) -> int:
    """Convert the input; without a format it becomes a result: JSON as it is, or the text itself."""
    del registry
    options = parse_options(_parser(), words)
    try:
        text = sys.stdin.read() if options.file == "-" else Path(options.file).read_text(encoding="utf-8")
        target = FORMATS[options.target]
        value = text if options.source == "text" else _wire_value(text)
        converted = (
            Conversion(target.write(local_envelope(value, "")))
            if options.source in ("text", "json")
            else convert(value, FORMATS[options.source], target)
        )
        wire = msgspec.json.encode(converted.wire).decode()
    except FormatError as error:
        raise CallError("VALIDATION_ERROR", str(error)) from None
    except UnicodeError as error:
        raise CallError("VALIDATION_ERROR", f"The input is not UTF-8 text: {error}") from None
    for warning in converted.lost:
        print(f"{options.target} cannot represent {printable(warning.path)}", file=sys.stderr)
    print(printable_json(wire))
    return 0


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        "enfold convert",
        description="Convert a result from one format, or from the plain output of a tool, to another.",
    )
    parser.add_argument(
        "--from",
        dest="source",
        required=True,
        choices=[*FORMATS, "json", "text"],
        help="json, text: plain output without a format",
    )
    parser.add_argument("--to", dest="target", required=True, choices=list(FORMATS))
    parser.add_argument("file", nargs="?", default="-", help="a file, or - for standard input")
    return parser


def _wire_value(text: str) -> Any:
    """Return the JSON value of a text; the second block of a ToolEnvelope is read as it is."""
    if text.lstrip().startswith("__ENVELOPE_V"):
        return text.strip()
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise FormatError(f"Not JSON: {error}") from error
