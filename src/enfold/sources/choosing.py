"""Which of a source's operations are taken, and what they are called here: one meaning for every source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TypeAlias

import msgspec

from enfold.operation import OperationSpec

Filter: TypeAlias = str | Iterable[str] | Callable[[OperationSpec], bool]


def choosing(include: Filter | None, exclude: Filter | None, rename: Mapping[str, str] | None = None) -> Choice:
    """The choice of a user: one pattern, several, or a function of the spec each.

    A pattern (`get_*`) matches a name, an id, the name in the source, `METHOD /path` or `#tag`. Without `include`
    everything is taken; with an empty one, nothing.
    """
    return Choice(_read(include, "include"), _read(exclude, "exclude"), rename or {})


class Choice(msgspec.Struct, frozen=True):
    """What is taken and what is not, and the new names."""

    include: _Rule | None
    exclude: _Rule | None
    rename: Mapping[str, str]

    def takes(self, spec: OperationSpec, *known_as: str) -> bool:
        """Whether an operation is taken; `known_as` are names it has besides those of its spec."""
        return self.may_take((*_texts(spec), *known_as)) and self.approves(spec)

    def may_take(self, texts: Iterable[str]) -> bool:
        """Whether the patterns take what has these names; a function of the spec has no say yet."""
        known = list(texts)
        if isinstance(self.include, list) and not _matches(self.include, known):
            return False
        return not (isinstance(self.exclude, list) and _matches(self.exclude, known))

    def approves(self, spec: OperationSpec) -> bool:
        """Whether the functions of the spec take an operation; patterns have no say here."""
        if callable(self.include) and not self.include(spec):
            return False
        return not (callable(self.exclude) and self.exclude(spec))

    def name(self, *known_as: str) -> str:
        """The new name of what goes by these names, the first of which it keeps where nobody gave it another."""
        return next((self.rename[name] for name in known_as if name in self.rename), known_as[0])


_Rule: TypeAlias = list[str] | Callable[[OperationSpec], bool]


def _read(given: Filter | None, option: str) -> _Rule | None:
    if given is None or callable(given):
        return given
    patterns = [given] if isinstance(given, str) else list(given)
    if not all(isinstance(each, str) for each in patterns):
        raise TypeError(f"{option} takes patterns such as 'get_*', or a function of the spec")
    return patterns


def _matches(patterns: list[str], texts: list[str]) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns for text in texts)


def _texts(spec: OperationSpec) -> Iterator[str]:
    """The texts a pattern may match."""
    yield spec.name
    yield spec.id
    yield str(spec.meta.get("original_name", spec.name))
    if "method" in spec.meta:
        yield f"{spec.meta['method']} {spec.meta.get('path', '')}"
    yield from (f"#{tag}" for tag in spec.tags)
