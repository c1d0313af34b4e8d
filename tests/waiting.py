"""Waits of tests, each with an end: what does not come in time fails its test, and says what came instead."""

import os
import time
from collections.abc import Callable
from select import select
from typing import IO, Any, Final

PATIENCE: Final = 60.0  # seconds, on a machine that has much else to do


def wait_for(is_true: Callable[[], Any], within: float = PATIENCE) -> Any:
    """What a question gives as soon as that is true."""
    ends_at = time.monotonic() + within
    while not (found := is_true()):
        assert time.monotonic() < ends_at, "it did not come to be"
        time.sleep(0.01)
    return found


class Said:
    """What a process writes into a pipe, which nobody else reads."""

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
        """The lines up to the first that holds a word."""
        said = ""
        while line := self.line():
            said += line
            if word in line:
                return said
        raise AssertionError(f"It ended after saying: {said}")

    def rest(self) -> str:
        """What is said until nobody holds the pipe any more."""
        while self._read_on():
            pass
        said, self._unread = self._unread.decode(), b""
        return said

    def _read_on(self) -> bytes:
        assert select([self._pipe], [], [], PATIENCE)[0], f"nothing more is said after {self._unread!r}"
        piece = os.read(self._pipe.fileno(), 65_536)
        self._unread += piece
        return piece
