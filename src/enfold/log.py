"""Our log. The logging module is loaded when the first line is written: most programs that start never write one."""

from __future__ import annotations

from typing import Any, Literal

__all__ = ["log", "silence"]

_is_silent = False


def log(
    name: str, level: Literal["warning", "error"], message: str, *facts: Any, error: BaseException | None = None
) -> None:
    """Write a line, with the stack of an error where there is one."""
    if _is_silent:
        return
    import logging

    getattr(logging.getLogger(name), level)(message, *facts, exc_info=error)


def silence() -> None:
    """Write nothing any more: for a command whose user is told everything in one sentence."""
    global _is_silent  # noqa: PLW0603  # one log for the process
    _is_silent = True
