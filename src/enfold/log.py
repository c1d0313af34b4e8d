"""Our log, the one way to write to it. `logging` is loaded with the first line: most programs that start write none."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["Log", "silence"]

LONGEST: Final = 4000  # characters of one fact

_silent: set[str] = set()


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

    def error(self, message: str, *facts: Any, error: BaseException | None = None) -> None:
        """What should not have happened, with the stack of an exception where there is one."""
        self._write("error", message, facts, error)

    def _write(self, level: str, message: str, facts: tuple[Any, ...], error: BaseException | None = None) -> None:
        if self._name in _silent:
            return
        import logging  # with the first line that is written

        shown = [_on_one_line(fact) for fact in facts]
        getattr(logging.getLogger(self._name), level)(message, *shown, exc_info=error, stacklevel=3)


def _on_one_line(fact: Any) -> Any:
    """A fact that cannot be mistaken for a line of its own: it may be a stranger's, such as the key of a result."""
    if not isinstance(fact, str | BaseException):
        return fact
    text = str(fact)
    if text.isprintable() and len(text) <= LONGEST:
        return text
    cut = text[:LONGEST] + ("…" if len(text) > LONGEST else "")
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in cut)


def silence(*names: str) -> None:
    """Write nothing of these logs any more: for a command whose user is told the same in one sentence."""
    _silent.update(names)
