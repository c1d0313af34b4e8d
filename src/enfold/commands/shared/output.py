"""What commands print: JSON for programs, indented for people."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TextIO, TypeAlias

import msgspec

from enfold.errors import printable, printable_json
from enfold.operations import OperationSpec


def print_json(value: Any) -> None:
    """Print one line for a program, several at a terminal."""
    print(in_lines(value) if sys.stdout.isatty() else printable_json(msgspec.json.encode(value).decode()))


def in_lines(value: Any) -> str:
    """Format JSON for people and files."""
    return printable_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_operations(specs: Iterable[OperationSpec]) -> None:
    """Print the operations: at a terminal by namespace, in columns; else one per line, with tabs."""
    found = list(specs)
    if sys.stdout.isatty():
        from shutil import get_terminal_size

        print(table(found, get_terminal_size().columns, paint=painter(sys.stdout)))
    else:
        for spec in found:
            print("\t".join((spec.id, spec.type.value, _summary(spec))))


def table(specs: Sequence[OperationSpec], width: int, paint: Paint) -> str:
    """Format the operations below their namespaces; descriptions are cut to the line."""
    groups: dict[str, list[OperationSpec]] = {}
    for spec in specs:
        groups.setdefault(spec.namespace, []).append(spec)
    widest = min(max((len(spec.name) for spec in specs), default=0), max(width // 2, 20))
    lines: list[str] = []
    for namespace, inside in groups.items():
        lines.append(f"{paint(namespace or 'without a namespace', 'bold')}  {paint(str(len(inside)), 'dim')}")
        lines += [_row(spec, widest, width, paint) for spec in inside]
    return "\n".join(lines)


def _row(spec: OperationSpec, widest: int, width: int, paint: Paint) -> str:
    kind = spec.type.value
    text = _summary(spec)
    room = width - widest - 18  # of two spaces before, between and after, and the longest kind
    shown = text if len(text) <= room else text[: max(room - 1, 0)].rstrip() + "…"
    return f"  {spec.name:<{widest}}  {paint(f'{kind:<12}', _KIND_COLOURS[kind])}  {shown}".rstrip()


def _summary(spec: OperationSpec) -> str:
    """Return the first line of a description, which may be untrusted text."""
    return printable(spec.description.partition("\n")[0])


# --- colours ------------------------------------------------------------------------------------------------------

Paint: TypeAlias = Callable[[str, str], str]

_COLOURS: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35"}
_KIND_COLOURS: Final = {"query": "green", "mutation": "yellow", "subscription": "magenta"}


def painter(stream: TextIO) -> Paint:
    """Return a function that colours text; it does nothing without a terminal or with `NO_COLOR`."""
    if not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return lambda text, _: text
    return lambda text, colour: f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"
