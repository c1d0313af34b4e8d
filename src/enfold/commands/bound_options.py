"""The bounds of a server: those of its configuration, and over them those of the command line."""

from __future__ import annotations

import os
from collections.abc import Iterable

from enfold.commands.targets import Target
from enfold.errors import CallError
from enfold.surfaces.bounds import Bounds, read_bounds

__all__ = ["bounds_of"]


def bounds_of(target: Target | None, words: Iterable[str] = ()) -> Bounds:
    """The bounds for a target, with `NAME=NUMBER` for each that the command line sets."""
    written = _configured(target) if target is not None and target.kind == "configuration" else {}
    return read_bounds({**written, **dict(map(_bound, words))})


def _configured(target: Target) -> dict[str, object]:
    from enfold.config import read_config

    return read_config(target.text, os.environ).bounds


def _bound(words: str) -> tuple[str, object]:
    name, _, number = words.partition("=")
    try:
        return name.strip(), float(number) if "." in number else int(number)
    except ValueError:
        raise CallError("VALIDATION_ERROR", f"{words[:100]} must be NAME=NUMBER, as in headers=50") from None
