"""Which of a source's operations are taken: patterns over their names, or a function of their specs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import TypeAlias

from enfold.operation import OperationSpec

__all__ = ["Filter", "chooser"]

Filter: TypeAlias = str | Iterable[str] | Callable[[OperationSpec], bool]
Texts: TypeAlias = Callable[[OperationSpec], Iterable[str]]


def chooser(include: Filter | None, exclude: Filter | None, texts: Texts) -> Callable[[OperationSpec], bool]:
    """Whether an operation is taken; `texts` gives what a pattern may match."""
    wanted = None if include is None else _predicate(include, texts)
    unwanted = None if exclude is None else _predicate(exclude, texts)

    def takes(spec: OperationSpec) -> bool:
        return (wanted is None or wanted(spec)) and not (unwanted is not None and unwanted(spec))

    return takes


def _predicate(given: Filter, texts: Texts) -> Callable[[OperationSpec], bool]:
    if callable(given):
        return given
    patterns = [given] if isinstance(given, str) else list(given)
    return lambda spec: any(fnmatchcase(text, pattern) for pattern in patterns for text in texts(spec))
