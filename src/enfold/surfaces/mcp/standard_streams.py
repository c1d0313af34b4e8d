"""The standard streams: messages as lines, read without a loop or on one, and written whole."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Self

from enfold.mcp.json_rpc import INTERNAL_ERROR, INVALID_REQUEST, ProtocolError, encode, error_message

if TYPE_CHECKING:
    import asyncio

_CHUNK: Final = 1 << 16
_ATOMIC: Final = 4096  # bytes that a pipe or socket takes at once if it takes anything
MAX_UNREAD: Final = 64_000_000  # bytes that wait for a client that does not read; with more it is given up
CONGESTED: Final = 1_000_000  # bytes that wait before nothing more is read
DRAIN_SECONDS: Final = 5.0  # that a client may stop reading for before the rest of our output is dropped


def take_streams(line_bytes: int) -> MessageStreams:
    """Copies of the standard streams for messages alone; what handlers print then goes to stderr, and they read nothing."""
    sys.stdout.flush()
    source, target = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return MessageStreams(source, target, line_bytes)


def flush_output() -> None:
    """Flush what handlers printed; where nobody reads it any more, the program still ends without an error."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class MessageStreams:
    """Our input by lines, and our output by messages, which any thread may write.

    Without a loop a write waits for the client to read. With one it never does: what the client has not read waits here,
    so that signals, timeouts and other calls have their turn.
    """

    def __init__(self, source: int, target: int, line_bytes: int) -> None:
        self.source = source
        self._target = target
        self._line_bytes = line_bytes
        self._rest = bytearray()
        self._is_skipping = False  # the rest of a line that was too long
        self._lock = threading.Lock()
        self._is_broken = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unread = bytearray()
        self._is_watched = False  # whether the loop tells when the client reads on
        self.on_drained: Callable[[], None] = lambda: None  # called when little is left that waits

    def read(self) -> list[bytes] | None:
        """The lines that have come, after waiting for at least a part of one; None at the end."""
        try:
            chunk = os.read(self.source, _CHUNK)
        except OSError:
            chunk = b""
        if not chunk:
            return None
        if self._is_skipping:
            chunk = self._after_skipped(chunk)
        self._rest += chunk
        if b"\n" not in chunk:
            if len(self._rest) > self._line_bytes:
                self._skip()
            return []
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        return [line for line in lines if line and not line.isspace()]

    def _skip(self) -> None:
        message = f"A message is at most {self._line_bytes} bytes long: this one was passed over"
        self.write(error_message(None, ProtocolError(INVALID_REQUEST, message)))
        self._rest, self._is_skipping = bytearray(), True

    def _after_skipped(self, chunk: bytes) -> bytes:
        _, end, rest = chunk.partition(b"\n")
        self._is_skipping = not end
        return rest

    def write(self, message: dict[str, Any]) -> None:
        """Write a message; once the client reads no more, nothing happens: our input will end too."""
        data = _encoded(message) + b"\n"
        with self._lock:
            if self._loop is None:
                self._write_all(data)
                return
            self._unread += data
            self._write_some()
            if self._unread and not self._is_watched:
                self._is_watched = True
                self._loop.call_soon_threadsafe(self._watch)

    def _write_all(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest and not self._is_broken:
                rest = rest[os.write(self._target, rest) :]
        except OSError:
            self._is_broken = True

    # with a loop

    def use_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Write without waiting from now on, where the output is something that a loop can watch."""
        try:
            loop.add_writer(self._target, lambda: None)
            loop.remove_writer(self._target)
        except (OSError, NotImplementedError):  # a file, which never makes us wait
            return
        self._loop = loop

    @property
    def is_congested(self) -> bool:
        """Whether the client leaves so much unread that it is to be asked nothing, and read from no more."""
        return len(self._unread) > CONGESTED

    async def drain(self) -> None:
        """Wait until everything is written, for as long as the client reads on."""
        import asyncio

        left = len(self._unread)
        while left and not self._is_broken:
            for _ in range(round(DRAIN_SECONDS / 0.01)):
                await asyncio.sleep(0.01)
                if len(self._unread) < left:
                    break
            else:
                return
            left = len(self._unread)

    def _watch(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.add_writer(self._target, self._write_more)

    def _write_more(self) -> None:
        with self._lock:
            self._write_some()
            if not self._unread and self._loop is not None:
                self._loop.remove_writer(self._target)
                self._is_watched = False
        if not self.is_congested:
            self.on_drained()

    def _write_some(self) -> None:
        """Write what can be written without waiting; a write that is small enough never waits."""
        written = 0
        try:
            while written < len(self._unread) and select.select((), (self._target,), (), 0)[1]:
                written += os.write(self._target, self._unread[written : written + _ATOMIC])
        except OSError:
            self._is_broken = True
        del self._unread[:written]
        if self._is_broken or len(self._unread) > MAX_UNREAD:
            self._is_broken = True
            self._unread.clear()


def _encoded(message: dict[str, Any]) -> bytes:
    try:
        return encode(message)
    except (TypeError, ValueError, RecursionError):
        error = ProtocolError(INTERNAL_ERROR, "The result has no JSON form")
        return encode(error_message(message.get("id"), error))


class InputReader:
    """While it is open, hands on lines as they come: read on the loop where it can watch our input, else by a thread."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, streams: MessageStreams, handle: Callable[[list[bytes]], None]
    ) -> None:
        self._loop = loop
        self._streams = streams
        self._handle = handle
        self._is_watched = False
        self._is_paused = False  # until the client has read what it was sent
        self.ended: asyncio.Future[None] = loop.create_future()

    def __enter__(self) -> Self:
        try:
            self._loop.add_reader(self._streams.source, self._read)
            self._is_watched = True
            self._streams.on_drained = self._resume
        except (OSError, NotImplementedError):  # a file, or a system whose loop watches only sockets
            threading.Thread(target=self._read_all, name="enfold-stdin", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_watched:
            self._is_watched = False
            self._loop.remove_reader(self._streams.source)

    def _read(self) -> None:
        self._deliver(self._streams.read())
        if self._streams.is_congested:
            self._loop.remove_reader(self._streams.source)
            self._is_paused = True

    def _resume(self) -> None:
        if self._is_paused and self._is_watched:
            self._is_paused = False
            self._loop.add_reader(self._streams.source, self._read)

    def _read_all(self) -> None:
        lines: list[bytes] | None = []
        while lines is not None:
            lines = self._streams.read()
            self._loop.call_soon_threadsafe(self._deliver, lines)

    def _deliver(self, lines: list[bytes] | None) -> None:
        if lines is not None:
            self._handle(lines)
        elif not self.ended.done():
            self.ended.set_result(None)
