"""A JSON value for a reader: Markdown with a table of records, a short list of fields, or the text itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

__all__ = ["summarize"]

MAX_ROWS: Final = 20
MAX_COLUMNS: Final = 8
MAX_FIELDS: Final = 30
MAX_CELL: Final = 80
MAX_TEXT: Final = 2000


def summarize(payload: Any, title: str = "") -> str:
    """The payload for a reader, as Markdown: a table of records, a short list of an object's fields, or the text."""
    heading = f"## {_line(title, MAX_CELL)}\n\n" if title else ""
    if isinstance(payload, list) and payload and all(isinstance(item, Mapping) and item for item in payload):
        return heading + _table(payload)
    if isinstance(payload, Mapping):
        return heading + _fields(payload)
    if isinstance(payload, list):
        return heading + _list(payload)
    return heading + _scalar(payload)


def _table(records: list[Mapping[str, Any]]) -> str:
    columns = list(dict.fromkeys(name for record in records[:MAX_ROWS] for name in record))
    shown = columns[:MAX_COLUMNS]
    rows = [[_cell(record[name]) if name in record else "" for name in shown] for record in records[:MAX_ROWS]]
    lines = [_row([_line(name, MAX_CELL) for name in shown]), _row(["---"] * len(shown)), *map(_row, rows)]
    return (
        "\n".join(lines) + _left_out(len(records) - MAX_ROWS, "row") + _left_out(len(columns) - MAX_COLUMNS, "column")
    )


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _fields(payload: Mapping[str, Any]) -> str:
    shown = list(payload.items())[:MAX_FIELDS]
    lines = [f"- **{_line(name, MAX_CELL)}**: {_cell(value)}" for name, value in shown]
    return ("\n".join(lines) or "(empty)") + _left_out(len(payload) - MAX_FIELDS, "field")


def _list(items: list[Any]) -> str:
    lines = [f"- {_cell(item)}" for item in items[:MAX_FIELDS]]
    return ("\n".join(lines) or "(empty)") + _left_out(len(items) - MAX_FIELDS, "item")


def _left_out(count: int, word: str) -> str:
    return f"\n\n… {count} more {word}{'' if count == 1 else 's'}" if count > 0 else ""


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT else f"{value[:MAX_TEXT]}…"
    return "Done." if value is None else _json_text(value)


def _cell(value: Any) -> str:
    """A value on one line: a list or an object only by its size, when it is too long to be shown."""
    if isinstance(value, str):
        return _line(value, MAX_CELL)
    if isinstance(value, list | Mapping) and value:
        text = _json_text(value)
        return _line(text, MAX_CELL) if len(text) <= MAX_CELL else _counted(value)
    return _json_text(value)


def _counted(value: Any) -> str:
    word = "item" if isinstance(value, list) else "field"
    return f"({len(value)} {word}{'' if len(value) == 1 else 's'})"


def _line(text: str, length: int) -> str:
    """A text that can neither end the line nor the cell it stands in."""
    flat = " ".join(text.split())
    shown = flat if len(flat) <= length else f"{flat[: length - 1]}…"
    return shown.replace("\\", "\\\\").replace("|", "\\|")


def _json_text(value: Any) -> str:
    return msgspec.json.encode(value).decode(errors="replace")
