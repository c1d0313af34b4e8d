"""The work for one request, from its body to its answer; it ends early when the client leaves or cancels it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

import msgspec

__all__ = ["Receive", "TooLargeError", "Work", "Works"]

Receive: TypeAlias = Callable[[], Awaitable[Any]]

# Most requests are answered sooner; for the others it is worth a task to notice that the client has gone.
SOON: Final = 0.02
# For how many looks a body may be on its way: half a minute.
PATIENCE: Final = 1_500
# After how many looks something must be sent, or a proxy on the way takes the connection for dead: ten seconds.
SILENCE: Final = 500


class TooLargeError(Exception):
    """The body is larger than it may be."""


class Works:
    """All the work that is going on, and one timer to look after what takes long: a timer for each would cost more."""

    __slots__ = ("_open", "_timer")

    def __init__(self) -> None:
        self._open: set[Work] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, work: Work) -> None:
        self._open.add(work)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SOON, self._look)

    def discard(self, work: Work) -> None:
        self._open.discard(work)

    def _look(self) -> None:
        self._open = {work for work in self._open if work.look()}
        again = asyncio.get_running_loop().call_later(SOON, self._look) if self._open else None
        self._timer = again


class Work(msgspec.Struct, eq=False):
    """While it is open, `cancel` ends what the running task does, and the block ends quietly.

    A client that leaves cancels, unless it may come back for its answer.
    """

    _works: Works
    _receive: Receive
    _break_silence: Callable[[], None] | None = None
    _looks: int = 0
    _is_reading: bool = False
    _listener: asyncio.Task[None] | None = None
    _task: asyncio.Task[Any] | None = None
    outlives_client: bool = False
    is_cancelled: bool = False

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        self._works.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._works.discard(self)
        if self._listener is not None:
            self._listener.cancel()
        task, self._task = self._task, None
        if task is None or not self.is_cancelled:
            return False
        # The cancellation was ours, so it ends here; one that somebody else has asked for goes on.
        ours = task.uncancel() == 0
        return ours and kind is asyncio.CancelledError

    def cancel(self) -> None:
        if self._task is not None and not self.is_cancelled:
            self.is_cancelled = True
            self._task.cancel()

    async def read(self, limit: int) -> bytes | bytearray:
        """The whole body of the request; one that does not come in time cancels the work."""
        self._is_reading = True
        message = await self._receive()
        body: bytes | bytearray = message.get("body", b"")
        if message.get("more_body"):
            body = await self._read_rest(bytearray(body), limit)
        if len(body) > limit:
            raise TooLargeError
        self._is_reading = False
        return body

    async def _read_rest(self, body: bytearray, limit: int) -> bytearray:
        more = True
        while more and len(body) <= limit:
            message = await self._receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        return body

    def look(self) -> bool:
        """See what has become of it, at every tick of the one timer; whether there is still something to look for."""
        self._looks += 1
        if self._is_reading:
            if self._looks > PATIENCE:
                self.cancel()
            return not self.is_cancelled
        if self._looks > 1 and self._listener is None and not self.outlives_client:
            self._listener = asyncio.get_running_loop().create_task(self._until_gone())
        if self._looks < SILENCE:
            return self._looks < 2 or self._break_silence is not None
        if self._break_silence is not None:
            self._break_silence()
        return False

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.cancel()
