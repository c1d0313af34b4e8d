"""Our log, the one way to write to it. `logging` is loaded with the first line: most programs that start write none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

LONGEST: Final = 4000  # characters of one fact

_silent: set[str] = set()
_preparing: list[Callable[[], None]] = []


class Log:
    """The log of one room, under its name in the standard `logging`."""

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
        """What should not have happened, with the stack of an exception where there is one.

        A log for programs has the `request_id` as a field of its own.
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
        if self._name in _silent:
            return
        import logging  # with the first line that is written

        if _preparing and not logging.getLogger().handlers:
            _preparing.pop()()
        shown = [bounded_line(fact) for fact in facts]
        extra = None if request_id is None else {"request_id": request_id}
        getattr(logging.getLogger(self._name), level)(message, *shown, exc_info=error, stacklevel=3, extra=extra)


def bounded_line(fact: Any, longest: int = LONGEST) -> Any:
    """A fact that cannot be mistaken for a line of its own: it may be a stranger's, such as the key of a result."""
    if not isinstance(fact, str | BaseException):
        return fact
    text = str(fact)
    if text.isprintable() and len(text) <= longest:
        return text
    cut = text[:longest] + ("…" if len(text) > longest else "")
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in cut)


def printable(text: str) -> str:
    """The text on one line, without what a terminal would obey: a stranger's words may hold escapes and line ends."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else " " if each == "\n" else repr(each)[1:-1] for each in text)


def counted(number: int, one: str, many: str | None = None) -> str:
    """So many things, in the word for one or for many."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def before_the_first_line(set_up: Callable[[], None]) -> None:
    """What sets `logging` up where the program itself has not, for commands that most often write nothing."""
    _preparing[:] = [set_up]


def silence(*names: str) -> None:
    """Write nothing of these logs any more: for a command whose user is told the same in one sentence."""
    _silent.update(names)
