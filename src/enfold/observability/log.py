"""The log. `logging` is imported with the first message, because most short programs log nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

MAX_FACT: Final = 4000  # characters

silenced: Final[set[str]] = set()  # the names of loggers whose lines are dropped
_set_ups: list[Callable[[], None]] = []


class Log:
    """A logger of the standard `logging` module, resolved on first use."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def debug(self, message: str, *facts: Any) -> None:
        self._write("debug", message, facts)

    def info(self, message: str, *facts: Any) -> None:
        self._write("info", message, facts)

    def warning(self, message: str, *facts: Any) -> None:
        self._write("warning", message, facts)

    def error(
        self, message: str, *facts: Any, error: BaseException | None = None, request_id: str | None = None
    ) -> None:
        """Log an unexpected failure, with the stack trace of an exception if there is one.

        JSON logs have the `request_id` as a separate field.
        """
        self._write("error", message, facts, request_id, error)

    def _write(
        self,
        level: str,
        message: str,
        facts: tuple[Any, ...],
        request_id: str | None = None,
        error: BaseException | None = None,
    ) -> None:
        if self._name in silenced:
            return
        import logging  # with the first line

        if _set_ups and not logging.getLogger().handlers:
            _set_ups.pop()()
        shown = [bounded_line(fact) for fact in facts]
        extra = None if request_id is None else {"request_id": request_id}
        getattr(logging.getLogger(self._name), level)(message, *shown, exc_info=error, stacklevel=3, extra=extra)


def bounded_line(fact: Any, longest: int = MAX_FACT) -> Any:
    """Truncate a fact and escape line ends, so that foreign text cannot forge a log line."""
    if not isinstance(fact, str | BaseException):
        return fact
    text = str(fact)
    if text.isprintable() and len(text) <= longest:
        return text
    cut = text[:longest] + ("…" if len(text) > longest else "")
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in cut)


def before_the_first_line(set_up: Callable[[], None]) -> None:
    """Run a function before the first line is logged, unless the program has configured `logging`."""
    _set_ups[:] = [set_up]


def silence(*names: str) -> None:
    """Drop the lines of these loggers, for a command that prints the same facts itself."""
    silenced.update(names)
