"""Our log, the one way to write to it. `logging` is loaded with the first line: most programs that start write none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

MAX_FACT: Final = 4000  # characters

_silent: set[str] = set()
_set_ups: list[Callable[[], None]] = []


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

        if _set_ups and not logging.getLogger().handlers:
            _set_ups.pop()()
        shown = [bounded_line(fact) for fact in facts]
        extra = None if request_id is None else {"request_id": request_id}
        getattr(logging.getLogger(self._name), level)(message, *shown, exc_info=error, stacklevel=3, extra=extra)


def bounded_line(fact: Any, longest: int = MAX_FACT) -> Any:
    """A fact cut to a length and without line ends: a stranger's text must not look like a log line of its own."""
    if not isinstance(fact, str | BaseException):
        return fact
    text = str(fact)
    if text.isprintable() and len(text) <= longest:
        return text
    cut = text[:longest] + ("…" if len(text) > longest else "")
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in cut)


def printable(text: str) -> str:
    """The text on one line, its control characters escaped: a terminal would obey those of a stranger's text."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else " " if each == "\n" else repr(each)[1:-1] for each in text)


def printable_lines(text: str) -> str:
    """The text with its line ends, other control characters escaped."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def printable_json(text: str) -> str:
    """The same JSON with escapes for control characters that JSON allows and terminals obey; line ends are kept."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each == "\n" else _json_escape(each) for each in text)


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun in singular or plural: `1 tool`, `2 tools`."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def before_the_first_line(set_up: Callable[[], None]) -> None:
    """Run a function before the first line is logged, unless the program has set `logging` up itself."""
    _set_ups[:] = [set_up]


def silence(*names: str) -> None:
    """Drop the lines of these logs: for a command that prints the same facts itself."""
    _silent.update(names)
