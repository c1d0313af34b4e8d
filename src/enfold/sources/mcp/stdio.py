"""A server that is a child process: started, used over stdin and stdout, and ended with its own child processes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

from enfold.errors import CallError
from enfold.mcp.json_rpc import OutgoingMessage, RPCRequest, encode
from enfold.observability.log import Log
from enfold.sources.mcp.callers import OutgoingCall
from enfold.sources.mcp.failures import LostError, message_too_large
from enfold.sources.mcp.session import Session
from enfold.sources.mcp.settings import Command

log: Final = Log("enfold.mcp")

OUTPUT_SECONDS: Final = 0.5  # between a process's end and the end of its output, or the reverse
EXIT_SECONDS: Final = 0.5  # for a process whose input was closed, which ends one that behaves
SIGNAL_SECONDS: Final = 2.0  # for one that was asked to end by a signal
MAX_STDERR: Final = 4000  # bytes at the end of it that are kept
MAX_SHOWN: Final = 1000  # characters of it that are shown
_EDGE: Final = 4096  # bytes at both ends of a line that is too long
_OURS: Final = "ENFOLD_"  # settings and secrets of this process
_NEEDED: Final = frozenset({"PATH", "HOME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TEMP", "TMP"})
_PROXIES: Final = frozenset({"http_proxy", "https_proxy", "all_proxy", "no_proxy"})
_CERTIFICATES: Final = frozenset(  # files of those that a company trusts, without which `npx` and `uvx` fetch nothing
    {"SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"}
)


async def start_process(command: Command, session: Session) -> None:
    """Start the server and connect the session to it; one that cannot be started at all is UNAVAILABLE."""
    loop = asyncio.get_running_loop()
    connection = StdioConnection(session)
    try:
        await loop.subprocess_exec(
            lambda: connection,
            *command.words,
            env=_environment(command),
            cwd=command.cwd,
            start_new_session=True,  # so that what it starts can be ended with it
        )
    except (OSError, ValueError) as error:
        details = {"reason": "start", "command": command.words[0]}
        why = _why_not(command, error)
        raise CallError("UNAVAILABLE", f"{session.name} cannot be started: {why}", details) from None


def _why_not(command: Command, error: Exception) -> str:
    if not isinstance(error, FileNotFoundError):
        return f"{command.words[0]}: {getattr(error, 'strerror', None) or error}"
    if command.cwd is not None and not Path(command.cwd).is_dir():
        return f"there is no folder {command.cwd}"
    return f"there is no command {command.words[0]}"


def _environment(command: Command) -> dict[str, str]:
    """What a program needs to run, and what `env` gives it; the rest of our environment only on request."""
    given = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    if not command.inherit_env:
        given = {name: value for name, value in given.items() if _is_needed(name)}
    return {**given, **command.env}


def _is_needed(name: str) -> bool:
    return name in _NEEDED | _CERTIFICATES or name.startswith("LC_") or name.lower() in _PROXIES


class StdioConnection(asyncio.SubprocessProtocol):
    """The connection to one process, of which the event loop tells: lines of its output, the tail of its stderr, its end."""

    has_call_streams = False

    def __init__(self, session: Session) -> None:
        self._session = session
        session.connection = self
        self._name = session.name
        self._limits = session.limits
        self._output = _Output(self._limits.message_bytes, session.take_text, self._refuse_line, self._output_lost)
        self._transport: asyncio.SubprocessTransport | None = None
        self._stdin: asyncio.WriteTransport | None = None
        self._stderr = b""
        self._stderr_line = b""  # the one that has not ended
        self._exit_code: int | None = None
        self.is_open = False  # until it closes its input or its output, or ends
        self._is_finished = False
        self._is_output_closed = False  # when it has closed its output
        self._write_pause: asyncio.Future[None] | None = None  # while it does not read what we write
        self._has_ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def send_call(self, call: OutgoingCall) -> None:
        """Send a request when the process has read enough of what came before; a caller who gives up earlier sends none."""
        try:
            while self._write_pause is not None:
                await asyncio.shield(self._write_pause)
        except asyncio.CancelledError:
            self._session.withdraw(call)
            raise
        try:
            self._write(RPCRequest(call.id, call.method, call.params))
        except LostError:
            await self._ends_within(OUTPUT_SECONDS)  # to learn how it ended
            raise self._lost() from None

    async def send(self, message: OutgoingMessage) -> None:
        """Write what has no answer; where the process reads nothing any more, it is dropped."""
        self._write_if_read(message)

    def cancel(self, message: OutgoingMessage) -> None:
        with suppress(LostError):
            self._write_if_read(message)

    def _write(self, message: OutgoingMessage) -> None:
        stdin = self._stdin
        if not self.is_open or stdin is None or stdin.is_closing():
            raise self._lost()
        stdin.write(encode(message) + b"\n")
        if stdin.is_closing():  # the write itself failed
            raise self._lost()

    def _write_if_read(self, message: OutgoingMessage) -> None:
        if self._stdin is not None and self._stdin.get_write_buffer_size() > self._limits.unread_bytes:
            self._session.warn_once("unread", "does not read its input; responses to its requests are dropped")
            return
        self._write(message)

    def _lost(self) -> LostError:
        return LostError(self._end_error(), may_have_run=False, output=self._stderr_tail)

    def _refuse_line(self, head: bytes, tail: bytes) -> None:
        limit = self._limits.message_bytes
        self._session.warn_once(
            "long", f"wrote a line over the limit of {limit} bytes (message_bytes), which is dropped"
        )
        self._session.refuse_answer(head + tail, message_too_large(limit))

    # --- the loop calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)
        self._stdin = cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0))
        # Read directly: asyncio would pass on what it reads for a process only in the next round of the loop.
        cast("asyncio.ReadTransport", self._transport.get_pipe_transport(1)).set_protocol(self._output)
        self.is_open = True

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 1:  # what came before the output had its own protocol
            self._output.data_received(data)
        else:
            self._take_stderr(data)

    def _take_stderr(self, data: bytes) -> None:
        """Keep the end of it, and log whole lines: a secret may come in two pieces."""
        self._stderr = (self._stderr + data)[-MAX_STDERR:]
        *lines, self._stderr_line = (self._stderr_line + data).split(b"\n")
        self._stderr_line = self._stderr_line[-MAX_STDERR:]
        for line in lines:
            log.debug("%s: %s", self._name, self._session.redact(line).decode("utf-8", "replace").rstrip())

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        del exc
        if fd == 0:
            self.is_open = False
            self.resume_writing()
            self._finish_soon()
        elif fd == 1:
            self._output_lost()

    def _output_lost(self) -> None:
        self._is_output_closed = True
        self._finish_soon()

    def process_exited(self) -> None:
        self._kill_group()  # whatever it has started and left behind
        self._exit_code = self._transport.get_returncode() if self._transport else None
        if not self._has_ended.done():
            self._has_ended.set_result(None)
        self._finish_soon()

    def pause_writing(self) -> None:
        if self._write_pause is None:
            self._write_pause = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        waiting, self._write_pause = self._write_pause, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def _finish_soon(self) -> None:
        """Wait a moment for the last output and the exit code of a process that ended."""
        if self._is_output_closed and self._exit_code is not None:
            self._finish()
        else:
            asyncio.get_running_loop().call_later(OUTPUT_SECONDS, self._finish)

    def _finish(self) -> None:
        if self._is_finished:
            return
        self._is_finished, self.is_open = True, False
        self.resume_writing()
        if self._stderr_tail and self._output.has_begun:  # else the user who opens the source sees it
            log.warning("%s %s: %s", self._name, self._how_it_ended(), self._stderr_tail)
        self._session.fail_all(self._end_error(), output=self._stderr_tail)
        self._kill_group()  # without its pipes the process is of no use

    # --- its end

    def _end_error(self) -> CallError:
        """How the process ended, for callers; what it printed may be of other callers or secret, and is only logged."""
        details: dict[str, Any] = {"reason": "process", "exit_code": self._exit_code}
        return CallError("UNAVAILABLE", f"{self._name} {self._how_it_ended()}", details)

    @property
    def _stderr_tail(self) -> str:
        """The end of what it printed, as one line for the log or the user who opens the source."""
        words = self._session.redact(self._stderr).decode("utf-8", "replace").split()
        return "".join(each if each.isprintable() else "?" for each in " ".join(words))[-MAX_SHOWN:]

    def _how_it_ended(self) -> str:
        code = self._exit_code
        if code is None:
            return "has closed its connection"
        return f"was ended by signal {-code}" if code < 0 else f"has ended with exit code {code}"

    async def close(self) -> None:
        """Close its input, which ends a server that behaves; then ask, then insist."""
        self._is_finished, self.is_open = True, False
        if self._transport is None:
            return
        if self._stdin is not None:
            self._stdin.close()
        try:
            if await self._ends_within(EXIT_SECONDS):
                return
            for number in (signal.SIGTERM, signal.SIGKILL):
                self._signal_group(number)
                if await self._ends_within(SIGNAL_SECONDS):
                    return
        finally:
            self._kill_group()
            self._transport.close()

    async def _ends_within(self, seconds: float) -> bool:
        """Whether it has ended by then."""
        await asyncio.wait({self._has_ended}, timeout=seconds)
        return self._has_ended.done()

    def _kill_group(self) -> None:
        self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: int) -> None:
        # Once it has ended, its process id may belong to another process.
        if self._transport is not None and self._exit_code is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._transport.get_pid(), number)


class _Output(asyncio.Protocol):
    """The lines of an output; of one that is too long only the beginning and the end are kept, to find the call they name."""

    def __init__(
        self,
        limit: int,
        take: Callable[[bytes], None],
        refuse: Callable[[bytes, bytes], None],
        lost: Callable[[], None],
    ) -> None:
        """Of each line, `take` gets the bytes; of one beyond the limit, `refuse` gets both ends."""
        self._limit = limit
        self._take = take
        self._refuse = refuse
        self._lost = lost
        self._parts: list[bytes] = []  # of the line that has not ended
        self._size = 0
        self.has_begun = False

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._lost()

    def data_received(self, data: bytes) -> None:
        self.has_begun = True
        *ended, rest = data.split(b"\n")
        for line in ended:
            if self._parts or len(line) > self._limit:
                self._add(line)
                self._end_line()
            elif line:
                self._take(line)
        if rest:
            self._add(rest)

    def _add(self, part: bytes) -> None:
        if not part:
            return
        self._size += len(part)
        self._parts.append(part)
        if self._size > self._limit and len(self._parts) > 2:
            self._parts = [self._parts[0], (b"".join(self._parts[-2:]))[-_EDGE:]]

    def _end_line(self) -> None:
        parts, size = self._parts, self._size
        self._parts, self._size = [], 0
        if size > self._limit:
            self._refuse(parts[0][:_EDGE], parts[-1][-_EDGE:])
        elif parts:
            self._take(parts[0] if len(parts) == 1 else b"".join(parts))
