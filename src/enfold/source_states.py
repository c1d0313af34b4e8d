"""The table of a registry's sources: which there are, how each is at this moment, and who is told when that changes.

Sources and whoever opens them write it; readiness, metrics and the console read it. It opens nothing itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgspec

from enfold.log import Log, counted

SourceKind: TypeAlias = Literal["functions", "openapi", "mcp", "calls"]
State: TypeAlias = Literal["starting", "up", "down"]

_log: Final = Log("enfold.sources")

REQUIRED: Final[frozenset[SourceKind]] = frozenset({"functions"})  # unless a source says otherwise


class Problem(msgspec.Struct, frozen=True):
    """A place that could not be honoured, and why."""

    where: str
    why: str


class SourceState(msgspec.Struct, frozen=True, kw_only=True):
    """How a source is at this moment."""

    name: str
    kind: SourceKind
    state: State = "starting"
    why: str = ""  # it is not up
    operations: int = 0
    skipped: tuple[Problem, ...] = ()  # what it has, and we could not take
    needs: tuple[str, ...] = ()  # what a person could give it, in sentences: credentials that it lacks
    required: bool = False  # whether the server is not ready without it
    since: float = 0.0  # Unix time at which it came into this state


# Called with a source as it was and as it is; it was None before it came, and is None after it went.
SourceWatcher: TypeAlias = Callable[[SourceState | None, SourceState | None], None]


class Watched(Protocol):
    """A source that can lose what its operations come from, and get it back.

    One that has `needs` tells what it lacks; one that `is_closed` has not been lost.
    """

    @property
    def is_up(self) -> bool: ...
    @property
    def why(self) -> str:
        """Why it is not up; "" where nothing is known."""

    @property
    def skipped(self) -> Iterable[Problem]: ...
    def __len__(self) -> int: ...
    def watch(self, callback: Callable[[], None]) -> Any:
        """Call back whenever something of this may have changed."""


class SourceTable:
    """The sources of one registry by their names, in the order in which they came."""

    __slots__ = ("_followed", "_states", "_watchers", "away")

    def __init__(self) -> None:
        self._states: dict[str, SourceState] = {}
        self._followed: dict[str, Watched] = {}
        self._watchers: dict[int, SourceWatcher] = {}
        # The names of operations whose source is down: until it is back, no other source's operation answers to them.
        self.away: dict[str, frozenset[str]] = {}

    def __iter__(self) -> Iterator[SourceState]:
        return iter(list(self._states.values()))

    def __len__(self) -> int:
        return len(self._states)

    def __getitem__(self, name: str) -> SourceState:
        return self._states[name]

    def name_of(self, kind: str, name: str) -> str:
        """What the source of an operation is called here: by its name; of one that names none, the first of its kind."""
        return name or next((state.name for state in self._states.values() if state.kind == kind), kind)

    @property
    def missing(self) -> list[SourceState]:
        """The sources without which the server is not ready, and that are not up."""
        return [source for source in self if source.required and source.state != "up"]

    def watch(self, callback: SourceWatcher) -> Callable[[], None]:
        """Call back after every change; the answer ends the watching."""
        key = id(callback)
        self._watchers[key] = callback
        return lambda: self._watchers.pop(key, None) and None

    def enter(
        self,
        name: str,
        kind: SourceKind,
        state: State = "starting",
        *,
        why: str = "",
        operations: int = 0,
        skipped: Iterable[Problem] = (),
        needs: Iterable[str] = (),
        required: bool | None = None,
    ) -> SourceState:
        """Enter a source, or what has become of one; where nobody says whether it is required, that stays as it was."""
        before = self._states.get(name)
        if required is None:
            required = kind in REQUIRED if before is None else before.required
        made = SourceState(
            name=name,
            kind=kind,
            state=state,
            why="" if state == "up" else why,
            operations=operations,
            skipped=tuple(skipped),
            needs=tuple(needs),
            required=required,
            since=time.time() if before is None or before.state != state else before.since,
        )
        if made != before:
            self._states[name] = made
            self._tell(before, made)
        return made

    def follow(self, name: str, kind: SourceKind, source: Watched) -> Callable[[], None]:
        """Enter a source that lives, and keep its entry true; the answer leaves the entry as it is from then on.

        Its loss and its return are one line each; where peers are, their transport tells that.
        """
        entry = self._free_name(name)
        self._followed[entry] = source

        def look() -> None:
            if self._followed.get(entry) is source:
                before = self._states.get(entry)
                after = self.enter(
                    entry,
                    kind,
                    "up" if source.is_up else "down",
                    why=source.why or "the connection was lost",
                    operations=len(source),
                    skipped=source.skipped,
                    needs=getattr(source, "needs", ()),
                )
                if before is not None and kind != "calls" and not getattr(source, "is_closed", False):
                    _log_change(before, after)

        def leave() -> None:
            if self._followed.get(entry) is source:
                del self._followed[entry]

        look()
        source.watch(look)
        return leave

    def _free_name(self, name: str) -> str:
        """The name, with a number where another source that lives is called the same."""
        numbered = (f"{name} {number}" for number in range(2, len(self._followed) + 3))
        return next(each for each in (name, *numbered) if each not in self._followed)

    def remove(self, name: str) -> None:
        """Forget a source that is no longer wanted."""
        self._followed.pop(name, None)
        self.away.pop(name, None)
        before = self._states.pop(name, None)
        if before is not None:
            self._tell(before, None)

    def _tell(self, before: SourceState | None, after: SourceState | None) -> None:
        for callback in list(self._watchers.values()):
            callback(before, after)


def _log_change(before: SourceState, after: SourceState) -> None:
    if (before.state, after.state) == ("up", "down"):
        _log.warning("%s is down: %s", after.name, after.why)
    elif (before.state, after.state) == ("down", "up"):
        _log.warning("%s is up: %s", after.name, counted(after.operations, "operation"))
