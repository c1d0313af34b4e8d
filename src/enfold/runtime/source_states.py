"""The table of a registry's sources: their states at this moment, and callbacks for changes.

Sources and the code that opens them write it; readiness, metrics and the console read it. It opens nothing itself.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Final, Literal, Protocol, TypeAlias, TypedDict, Unpack

import msgspec

from enfold.errors import counted, invalid_argument
from enfold.observability.log import Log

SourceKind: TypeAlias = Literal["functions", "openapi", "mcp", "calls"]
State: TypeAlias = Literal["starting", "up", "down"]

_log: Final = Log("enfold.sources")

MAX_EVENTS: Final = 50  # changes of state that are remembered of one source
REQUIRED: Final[frozenset[SourceKind]] = frozenset({"functions"})  # unless a source says otherwise


class Problem(msgspec.Struct, frozen=True):
    """Something that could not be imported, and the reason."""

    where: str
    why: str


class DefinitionChange(Problem, frozen=True):
    """An operation whose definition an upstream has changed: which parts, when, and what they said before and after."""

    time: int = 0  # Unix milliseconds
    before: str = ""  # "" if the earlier text was not kept
    after: str = ""


class SourceEvent(msgspec.Struct, frozen=True):
    """A moment at which a source changed its state."""

    time: int  # Unix milliseconds
    state: State
    why: str = ""


class SourceState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one source at this moment."""

    name: str
    kind: SourceKind
    state: State = "starting"
    why: str = ""  # the reason if it is not up
    operations: int = 0
    skipped: tuple[Problem, ...] = ()  # what could not be imported
    needs: tuple[str, ...] = ()  # sentences about the credentials that it lacks
    changed: tuple[DefinitionChange, ...] = ()  # the last operations whose definitions it has changed, and what of each
    changes: int = 0  # of definitions, since the process began
    instructions: str = ""  # how it wants to be used, for MCP clients
    required: bool = False  # whether the server is not ready without it
    since: float = 0.0  # Unix time at which it came into this state


# Called with the state before (None for a new source) and after (None for a removed one).
SourceWatcher: TypeAlias = Callable[[SourceState | None, SourceState | None], None]

# Called with the name of a source, and the parameters of a log message (`notifications/message` of MCP).
LogWatcher: TypeAlias = Callable[[str, dict[str, Any]], None]


class SourceFacts(TypedDict, total=False):
    """What a source says of itself, as the fields of its state."""

    why: str
    operations: int
    skipped: tuple[Problem, ...]
    needs: tuple[str, ...]
    changed: tuple[DefinitionChange, ...]
    changes: int
    instructions: str
    required: bool


class Watched(Protocol):
    """A source that can lose its connection and get it back.

    It may have `needs`, the credentials that it lacks; `instructions`; `changed` and `changes`, what it has changed of its operations;
    and `is_closed`: it was closed on purpose, not lost.
    """

    @property
    def is_up(self) -> bool: ...
    @property
    def why(self) -> str:
        """Why it is not up; "" if unknown."""

    @property
    def skipped(self) -> Iterable[Problem]: ...
    def __len__(self) -> int: ...
    def watch(self, callback: Callable[[], None]) -> Any:
        """Call back whenever something of this may have changed."""


_OPTIONAL: Final = ("instructions", "changed", "changes")


class SourceTable:
    """The sources of one registry by name, in the order in which they were added."""

    __slots__ = ("_followed", "_history", "_log_watchers", "_states", "_watchers", "away", "reopen", "unread")

    def __init__(self) -> None:
        self._states: dict[str, SourceState] = {}
        self._followed: dict[str, Watched] = {}
        self._watchers: dict[int, SourceWatcher] = {}
        self._log_watchers: list[LogWatcher] = []
        self._history: dict[str, deque[SourceEvent]] = {}
        # Opens a source of the configuration anew; sources that a program opens itself have a `wake` of their own.
        self.reopen: dict[str, Callable[[], Awaitable[None]]] = {}
        # By source that is down: the short names of its operations, which must not run another source's until it is back.
        self.away: dict[str, frozenset[str]] = {}
        # Sources that were never up: until they are, a short name may be that of one of their operations.
        self.unread: set[str] = set()

    def __iter__(self) -> Iterator[SourceState]:
        return iter(list(self._states.values()))

    def __len__(self) -> int:
        return len(self._states)

    def __getitem__(self, name: str) -> SourceState:
        return self._states[name]

    def name_of(self, kind: str, name: str) -> str:
        """Return the name of an operation's source; an origin without a name means the first of its kind."""
        return name or next((state.name for state in self._states.values() if state.kind == kind), kind)

    @property
    def missing(self) -> list[SourceState]:
        """The required sources that are not up: the server is not ready without them."""
        return [source for source in self if source.required and source.state != "up"]

    def history(self, name: str) -> list[SourceEvent]:
        """Return the last changes of a source's state, oldest first."""
        return list(self._history.get(name, ()))

    def can_reconnect(self, name: str) -> bool:
        return name in self.reopen or hasattr(self._followed.get(name), "wake")

    async def reconnect(self, name: str) -> None:
        """Connect to a source now; raises the CallError of a source that cannot be reached."""
        wake = self.reopen.get(name) or getattr(self._followed.get(name), "wake", None)
        if wake is None:
            known = ", ".join(each for each in self._states if self.can_reconnect(each)) or "none"
            raise invalid_argument("name", "constraint", f"a source that has a connection: {known}")
        await wake()

    def watch(self, callback: SourceWatcher) -> Callable[[], None]:
        """Call back after every change; call what is returned to stop."""
        key = id(callback)
        self._watchers[key] = callback
        return lambda: self._watchers.pop(key, None) and None

    def watch_logs(self, callback: LogWatcher) -> Callable[[], None]:
        """Call back with what sources log outside of calls; call what is returned to stop."""
        self._log_watchers.append(callback)
        return lambda: self._log_watchers.remove(callback)

    def log(self, name: str, params: dict[str, Any]) -> None:
        """Pass on a log message of a source that belongs to no call."""
        for callback in list(self._log_watchers):
            callback(name, params)

    def enter(
        self, name: str, kind: SourceKind, state: State = "starting", **facts: Unpack[SourceFacts]
    ) -> SourceState:
        """Enter a source, or what has become of one; what it has changed, and whether it is required, stay as they were."""
        before = self._states.get(name)
        known = before or SourceState(name=name, kind=kind, required=kind in REQUIRED)
        made = SourceState(
            name=name,
            kind=kind,
            state=state,
            changed=known.changed,
            changes=known.changes,
            required=known.required,
            since=time.time() if known is not before or known.state != state else known.since,
        )
        made = msgspec.structs.replace(made, **{**facts, "why": "" if state == "up" else facts.get("why", "")})
        if made != before:
            self._states[name] = made
            if before is None or (before.state, before.why) != (made.state, made.why):
                events = self._history.setdefault(name, deque(maxlen=MAX_EVENTS))
                events.append(SourceEvent(time.time_ns() // 1_000_000, made.state, made.why))
            self._notify(before, made)
        return made

    def follow(self, name: str, kind: SourceKind, source: Watched) -> Callable[[], None]:
        """Add a source and keep its state current. Returns a function that stops this.

        Its loss and its return are logged; for peers the transport logs them.
        """
        entry = self._free_name(name)
        self._followed[entry] = source

        def update() -> None:
            if self._followed.get(entry) is source:
                before = self._states.get(entry)
                after = self.enter(
                    entry,
                    kind,
                    "up" if source.is_up else "down",
                    why=source.why or "the connection was lost",
                    operations=len(source),
                    skipped=tuple(source.skipped),
                    needs=tuple(getattr(source, "needs", ())),
                    **{name: getattr(source, name) for name in _OPTIONAL if hasattr(source, name)},
                )
                if before is not None and kind != "calls" and not getattr(source, "is_closed", False):
                    _log_change(before, after)

        def stop() -> None:
            if self._followed.get(entry) is source:
                del self._followed[entry]

        update()
        source.watch(update)
        return stop

    def _free_name(self, name: str) -> str:
        """Return the name, with a number appended if another source already has it."""
        numbered = (f"{name} {number}" for number in range(2, len(self._followed) + 3))
        return next(each for each in (name, *numbered) if each not in self._followed)

    def remove(self, name: str) -> None:
        """Remove a source that is no longer configured."""
        self._followed.pop(name, None)
        self._history.pop(name, None)
        self.away.pop(name, None)
        self.unread.discard(name)
        before = self._states.pop(name, None)
        if before is not None:
            self._notify(before, None)

    def _notify(self, before: SourceState | None, after: SourceState | None) -> None:
        for callback in list(self._watchers.values()):
            callback(before, after)


def _log_change(before: SourceState, after: SourceState) -> None:
    if (before.state, after.state) == ("up", "down"):
        _log.warning("%s is down: %s", after.name, after.why)
    elif (before.state, after.state) == ("down", "up"):
        _log.warning("%s is up: %s", after.name, counted(after.operations, "operation"))
