"""What commands print: JSON for programs, indented for people; and who we are."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["print_json", "version"]


def print_json(value: Any) -> None:
    """One line for a program, several for a person at a terminal."""
    import msgspec

    text = msgspec.json.encode(value)
    print((msgspec.json.format(text, indent=2) if sys.stdout.isatty() else text).decode())


def version() -> str:
    from importlib.metadata import version as installed_version

    return f"enfold {installed_version('enfold')}"
