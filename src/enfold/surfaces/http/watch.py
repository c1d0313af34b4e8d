"""Looks after a request while it is worked on: its body must come in time, and its client must still be there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias

from enfold.errors import CallError

__all__ = ["Ended", "Receive", "Watch", "Watchman", "late_body"]

Receive: TypeAlias = Callable[[], Awaitable[Any]]
Ended: TypeAlias = Literal["late", "gone"]
_Task: TypeAlias = asyncio.Task[Any]

# Most requests are over by then, and have cost one timer; only for the others is it worth a task to listen.
SOON: Final = 0.02


class Watch:
    """While it is open, the running task is cancelled when the body takes too long, the client goes, or `stop` is called.

    With `patience` the body is still to come, until `body_is_read`. A body that is late raises a TIMEOUT; the other two
    ends are quiet, and `ended` tells of them.
    """

    __slots__ = ("_is_slow", "_listener", "_loop", "_patience", "_receive", "_task", "_timer", "ended", "is_open")

    def __init__(self, receive: Receive, patience: float | None = None) -> None:
        self._receive = receive
        self._patience = patience
        self._is_slow = False
        self.is_open = False
        self._listener: asyncio.Task[None] | None = None
        self.ended: Literal["late", "gone", "stopped"] | None = None

    def __enter__(self) -> Self:
        self.is_open = True
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task(self._loop)
        self._timer = self._loop.call_later(SOON, self._take_care)
        return self

    def body_is_read(self) -> None:
        self._patience = None
        if self._is_slow:
            self._timer.cancel()
            self._take_care()

    def stop(self) -> None:
        """End the work although the client is still there."""
        self._end("stopped")

    def _take_care(self) -> None:
        self._is_slow = True
        if self._patience is None:
            self._listener = self._loop.create_task(self._until_gone())
        else:
            self._timer = self._loop.call_later(self._patience, self._end, "late")

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._end("gone")

    def _end(self, how: Literal["late", "gone", "stopped"]) -> None:
        if self.ended is None and self._task is not None:
            self.ended = how
            self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._timer.cancel()
        if self._listener is not None:
            self._listener.cancel()
        task, self._task = self._task, None
        # A cancellation of ours ends here; one that somebody else has asked for goes on.
        if self.ended is None or task is None or task.uncancel() > 0 or kind is not asyncio.CancelledError:
            return False
        if self.ended == "late":
            raise late_body() from None
        return True


def late_body() -> CallError:
    return CallError("TIMEOUT", "The body did not arrive in time", {"reason": "body"})


class Watchman:
    """Looks after all plain calls with one timer: nearly all are over before he has come by, and must not pay for it.

    `calls` are those going on, by their task: how their client is listened to, or None while the body is on its way.
    `cares` is what he does for those that take long.
    """

    __slots__ = ("_met", "_patience", "calls", "cares", "is_awake")

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._met: set[_Task] = set()  # when he last came by
        self.cares: dict[_Task, Care] = {}
        self.calls: dict[_Task, Receive | None] = {}
        self.is_awake = False

    def wake(self) -> None:
        """Come by again and again, as long as anything is going on."""
        self.is_awake = True
        asyncio.get_running_loop().call_later(SOON, self._come_by)

    def _come_by(self) -> None:
        for task in self._met.intersection(self.calls):
            care = self.cares.setdefault(task, Care(task))
            care.look(self.calls[task], self._patience)
        self._met = set(self.calls)
        self.is_awake = False
        if self.calls:
            self.wake()

    def leave(self, task: _Task) -> Ended | None:
        """How a call that is over was ended, if it was from here; only where he `cares` for any this has to be asked."""
        care = self.cares.pop(task, None)
        return None if care is None else care.leave()


class Care:
    """What is done for a call that takes long."""

    __slots__ = ("_ended", "_listener", "_looks", "_task")

    def __init__(self, task: _Task) -> None:
        self._task: _Task | None = task
        self._looks = 0
        self._listener: asyncio.Task[None] | None = None
        self._ended: Ended | None = None

    def look(self, receive: Receive | None, patience: float) -> None:
        """See whether the body takes too long, or begin to listen for the end of the client."""
        self._looks += 1
        if receive is None:
            if self._looks * SOON > patience:
                self._end("late")
        elif self._listener is None:
            self._listener = asyncio.get_running_loop().create_task(self._until_gone(receive))

    async def _until_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._end("gone")

    def _end(self, how: Ended) -> None:
        if self._ended is None and self._task is not None:
            self._ended = how
            self._task.cancel()

    def leave(self) -> Ended | None:
        """A cancellation of ours ends here; one that somebody else has asked for goes on."""
        if self._listener is not None:
            self._listener.cancel()
        task, self._task = self._task, None
        is_ours = self._ended is not None and task is not None and task.uncancel() == 0
        return self._ended if is_ours else None
