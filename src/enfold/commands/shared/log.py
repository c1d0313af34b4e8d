"""What operators see of a server: its log on stderr, as text or JSON, and `/metrics`."""

from __future__ import annotations

import logging
import sys
import time
from asyncio import CancelledError
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from enfold.errors import printable_json
from enfold.observability.log import bounded_line
from enfold.observability.records import CallRecord, call_fields, call_line
from enfold.runtime.registry import Registry

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


MAX_ENTRY: Final = 20_000  # characters of one entry, its stack included


def add_log_options(parser: ArgumentParser) -> None:
    from argparse import BooleanOptionalAction

    levels = ("debug", "info", "warning", "error")
    parser.add_argument("--log-level", choices=levels, default="info", help="log level (default info)")
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help="text or JSON")
    parser.add_argument(
        "--access-log",
        action=BooleanOptionalAction,
        default=None,
        help="log a line for each call (default: at log level info and below)",
    )


def set_up_log(level: str = "info", format: str = "text", *, is_dated: bool = True) -> None:
    """Write everything from a level on; what libraries say, from warnings on. A person at a shell needs no date."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONLines() if format == "json" else PlainLines(is_dated=is_dated))
    handler.addFilter(_should_log)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING if level in ("debug", "info") else level.upper())
    logging.getLogger("enfold").setLevel(level.upper())
    logging.captureWarnings(True)


def announce(lines: Iterable[str]) -> None:
    """Print a startup message regardless of the log level, as text or, if the log is JSON, as JSON."""
    shown: Iterable[str] = map(bounded_line, lines)
    if any(isinstance(handler.formatter, JSONLines) for handler in logging.getLogger().handlers):
        shown = [JSONLines().format(_entry(line.strip())) for line in shown]
    print("\n".join(shown), file=sys.stderr, flush=True)


def _entry(message: str) -> logging.LogRecord:
    return logging.LogRecord("enfold.start", logging.INFO, "", 0, message, None, None)


def _should_log(record: logging.LogRecord) -> bool:
    """False for what is logged elsewhere: a server that ends says how many calls it cancels, its parent which worker died."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, CancelledError) and not getattr(error, "is_told", False)


class PlainLines(logging.Formatter):
    """Formats entries as text; continuation lines are marked, so that foreign text cannot imitate an entry."""

    def __init__(self, *, is_dated: bool) -> None:
        super().__init__()
        self._is_dated = is_dated

    def format(self, record: logging.LogRecord) -> str:
        call: CallRecord | None = getattr(record, "call", None)
        if call is not None:
            return f"{_clock(call.time)} {call_line(call)}"
        text = _bounded(super().format(record))
        return f"{_clock(record.created)} {record.levelname:<7} {text}" if self._is_dated else text


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
            entry["message"] = record.getMessage()[:MAX_ENTRY]
            entry |= {"request_id": record.request_id} if hasattr(record, "request_id") else {}
        if record.exc_info:
            entry["stack"] = self.formatException(record.exc_info)[-MAX_ENTRY:]
        # Exceptions may contain unpaired surrogates, which UTF-8 lacks.
        texts = {name: value for name, value in entry.items() if isinstance(value, str)}
        entry |= {name: text.encode("utf-8", "backslashreplace").decode() for name, text in texts.items()}
        return printable_json(msgspec.json.encode(entry).decode())


def write_calls(registry: Registry, options: Namespace) -> None:
    """Write a line for each call at the level info; where the operator asks for them, whatever the level."""
    log = logging.getLogger("enfold.operations.access")
    if options.access_log:
        log.setLevel(logging.INFO)
    elif options.access_log is False or not log.isEnabledFor(logging.INFO):
        return
    registry.services.observers.add(lambda record: log.info("%s", record.operation, extra={"call": record}))


def _bounded(text: str) -> str:
    return "\n  | ".join(bounded_line(line, MAX_ENTRY) for line in text[:MAX_ENTRY].split("\n"))


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) + f".{int(seconds * 1000) % 1000:03}"


def _timestamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds * 1000) % 1000:03}Z"
