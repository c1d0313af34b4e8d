"""How the log of a server is written: lines for people or JSON for programs, each with its time and level, on standard error."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from enfold.observing import CallRecord
from enfold.observing.lines import call_fields, call_line

__all__ = ["LEVELS", "access_observer", "set_up_log"]

LEVELS: Final = ("debug", "info", "warning", "error")
LONGEST: Final = 20_000  # characters of one entry, its stack included


def set_up_log(level: str = "info", format: str = "text") -> None:
    """Write everything from a level on; what libraries say, from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONLines() if format == "json" else PlainLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING if level in ("debug", "info") else level.upper())
    logging.getLogger("enfold").setLevel(level.upper())


class PlainLines(logging.Formatter):
    """Lines for people. What goes on below an entry is marked, so that nobody's text can pass for an entry of its own."""

    def format(self, record: logging.LogRecord) -> str:
        call: CallRecord | None = getattr(record, "call", None)
        if call is not None:
            return f"{_clock(call.time)} {call_line(call)}"
        text = _bounded(super().format(record))
        return f"{_clock(record.created)} {record.levelname:<7} {text}"


class JSONLines(logging.Formatter):
    """An object a line, for programs."""

    def format(self, record: logging.LogRecord) -> str:
        call: CallRecord | None = getattr(record, "call", None)
        entry: dict[str, Any] = {
            "time": _timestamp(record.created if call is None else call.time),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if call is not None:
            entry |= call_fields(call)
        else:
            entry["message"] = record.getMessage()[:LONGEST]
            entry |= {"request_id": record.request_id} if hasattr(record, "request_id") else {}
        if record.exc_info:
            entry["stack"] = self.formatException(record.exc_info)[-LONGEST:]
        return msgspec.json.encode(_without_half_characters(entry)).decode()


def access_observer() -> Callable[[CallRecord], None]:
    """Writes a line for each call that has ended."""
    log = logging.getLogger("enfold.access")
    log.setLevel(logging.INFO)

    def write(record: CallRecord) -> None:
        log.info("%s", record.operation, extra={"call": record})

    return write


def _bounded(text: str) -> str:
    lines = text[:LONGEST].split("\n")
    return "\n  | ".join("".join(each if each.isprintable() else repr(each)[1:-1] for each in line) for line in lines)


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) + f".{int(seconds * 1000) % 1000:03}"


def _timestamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds * 1000) % 1000:03}Z"


def _without_half_characters(entry: dict[str, Any]) -> dict[str, Any]:
    """UTF-8 has no place for half of a pair of surrogates, which an exception's words may hold."""
    return {
        name: value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
        for name, value in entry.items()
    }
