"""The levels of log messages, from the least to the most urgent."""

from typing import Final

LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
_PLACES: Final = {level: place for place, level in enumerate(LEVELS)} | {"warn": 3, "fatal": 5}


def urgency_of(level: str) -> int:
    """How urgent a level is; one that nobody knows is as urgent as `info`."""
    return _PLACES.get(level.lower(), 1)
