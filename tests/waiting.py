"""Bounded waits: a condition that does not become true in time fails the test."""

import asyncio
import os
import time
from collections.abc import Callable
from select import select
from typing import IO, Any, Final

PATIENCE: Final = 60.0  # seconds, for a busy machine


def wait_for(is_true: Callable[[], Any], within: float = PATIENCE) -> Any:
    """Poll until the condition is true, and return its value."""
    ends_at = time.monotonic() + within
    while not (found := is_true()):
        assert time.monotonic() < ends_at, "The condition did not become true in time"
        time.sleep(0.01)
    return found


async def until(is_true: Callable[[], Any], within: float = PATIENCE) -> Any:
    """Poll until the condition is true while the event loop runs on, and return its value."""
    ends_at = time.monotonic() + within
    while not (found := is_true()):
        assert time.monotonic() < ends_at, "The condition did not become true in time"
        await asyncio.sleep(0.01)
    return found


class Said:
    """The output of a process, read from its pipe."""

    def __init__(self, pipe: IO[Any] | None) -> None:
        assert pipe is not None
        self._pipe = pipe
        self._unread = b""

    def line(self) -> str:
        """The next line; "" at the end."""
        while b"\n" not in self._unread:
            if not self._read_on():
                whole, self._unread = self._unread, b""
                return whole.decode()
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode() + "\n"

    def until(self, word: str) -> str:
        """The lines up to the first that contains a word."""
        said = ""
        while line := self.line():
            said += line
            if word in line:
                return said
        raise AssertionError(f"The process ended after writing: {said}")

    def rest(self) -> str:
        """The output until the pipe is closed."""
        while self._read_on():
            pass
        said, self._unread = self._unread.decode(), b""
        return said

    def _read_on(self) -> bytes:
        assert select([self._pipe], [], [], PATIENCE)[0], f"The process writes nothing after {self._unread!r}"
        piece = os.read(self._pipe.fileno(), 65_536)
        self._unread += piece
        return piece
