"""One exchange over ASGI: the body, which may be late, the client, who may disconnect, and the answer."""

from __future__ import annotations

import asyncio
from asyncio import current_task
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias

import msgspec

from enfold.errors import CallError
from enfold.surfaces.asgi.messages import Header, Receive, Scope, Send
from enfold.surfaces.failures import body_too_large
from enfold.timekeeping import Timekeeper, running_task, this_thread

Ended: TypeAlias = Literal["late", "gone", "stopped", "refused"]

BODY_TIMEOUT: Final = 30.0
# After this time something must be sent, or a proxy on the way takes the connection for dead.
SILENCE: Final = 10.0


class Presence(msgspec.Struct, eq=False):
    """From `begin` to `end`, the running task is cancelled when the body is late, the client disconnects, or `stop` is called.

    Nearly all requests are over before any of that is looked for: the timekeeper says which are slow. `break_silence`
    is called when nothing has been sent for ten seconds; with `outlives_client` the client may disconnect and come back.
    """

    receive: Receive
    _body_timeout: float = BODY_TIMEOUT
    has_body: bool = True  # until it has been read, nobody else may listen to the client
    _keeper: Timekeeper | None = None
    _task: asyncio.Task[Any] | None = None
    break_silence: Callable[[], None] | None = None
    outlives_client: bool = False
    ended: Ended | None = None
    _is_reading: bool = False
    _is_slow: bool = False
    _timer: asyncio.TimerHandle | None = None
    _listener: asyncio.Task[None] | None = None

    def begin(self) -> Self:
        """Count the request among those that run; its client is watched only if it runs for long."""
        self._keeper, self._task = present_task()
        self._keeper.running.add(self)
        return self

    def end(self) -> Ended | None:
        """Stop watching the request; the answer tells why we have cancelled it, if we have.

        A cancellation of ours ends here; one that somebody else has asked for, too, goes on.
        """
        if self._keeper is not None:
            self._keeper.running.discard(self)
        if not self._is_slow and self.ended is None:
            return None
        self._release()
        task, self._task = self._task, None
        is_ours = self.ended is not None and task is not None and task.uncancel() == 0
        return self.ended if is_ours else None

    def stop(self) -> None:
        """End the work although the client is still there."""
        self._end("stopped")

    def refuse(self) -> None:
        """End the work, because its caller may not have it any more."""
        self._end("refused")

    def __enter__(self) -> Self:
        return self.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """End quietly where the client has gone or the work was stopped; a late body is a TIMEOUT."""
        ended = self.end()
        if kind is not asyncio.CancelledError or ended is None:
            return False
        if ended == "late":
            raise late_body() from None
        return True

    # the body

    async def body(self, limit: int) -> bytes | bytearray:
        """The whole body; never more is in memory than the limit and one piece."""
        self._is_reading, receive = True, self.receive
        if self._is_slow:
            self._start_body_timer()
        message = await receive()
        body: bytes | bytearray = message.get("body", b"")
        if not body or message.get("more_body"):
            body = await self._rest_of_body(message, limit)
        if len(body) > limit:
            raise body_too_large(limit)
        self.has_body = False
        if self._is_slow:
            self._watch_client()
        return body

    async def _rest_of_body(self, message: dict[str, Any], limit: int) -> bytearray:
        body = bytearray()
        while message["type"] != "http.disconnect":
            body += message.get("body", b"")
            if not message.get("more_body") or len(body) > limit:
                return body
            message = await self.receive()
        raise CallError("ABORTED", "The client went away before its body was complete")

    # a request that takes long

    def become_slow(self, loop: asyncio.AbstractEventLoop) -> None:
        del loop
        self._is_slow = True
        if not self.has_body:
            self._watch_client()
        elif self._is_reading:
            self._start_body_timer()

    def _start_body_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._body_timeout, self._end, "late")

    def _watch_client(self) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
        if self.break_silence is not None:
            self._timer = loop.call_later(SILENCE, self.break_silence)
        self._listener = loop.create_task(self._wait_for_disconnect())

    async def _wait_for_disconnect(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        if not self.outlives_client:
            self._end("gone")

    def _end(self, how: Ended) -> None:
        if self.ended is None and self._task is not None:
            self.ended = how
            self._task.cancel()

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._listener is not None:
            self._listener.cancel()


def present_task() -> tuple[Timekeeper, asyncio.Task[Any]]:
    """What `running_task` finds, from what this thread knows already."""
    keeper = this_thread.keeper
    if keeper is not None and not keeper.is_stopped and (task := current_task(keeper.loop)) is not None:
        return keeper, task
    return running_task()


def late_body() -> CallError:
    return CallError("TIMEOUT", "The body did not arrive in time", {"reason": "body"})


class Exchange(Presence, eq=False, kw_only=True):
    """One request over ASGI, the client who waits for it, and the way back to them."""

    scope: Scope
    send: Send
    extra_headers: Sequence[Header] = ()  # what a browser is told of origins
    is_started: bool = False

    async def answer_empty(self, status: int, headers: Sequence[Header] = ()) -> None:
        """Send an answer that has only headers."""
        await self._begin(status, headers)
        await self.send({"type": "http.response.body", "body": b""})

    async def begin_stream(self, media_type: str, headers: Sequence[Header] = ()) -> None:
        kind = (b"content-type", media_type.encode())
        # Neither a cache nor a proxy in between may hold back what is meant to arrive at once.
        await self._begin(200, [kind, (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"), *headers])

    async def send_part(self, chunk: bytes, *, more: bool) -> None:
        await self.send({"type": "http.response.body", "body": chunk, "more_body": more})

    async def _begin(self, status: int, headers: Sequence[Header]) -> None:
        self.is_started = True
        start = {"type": "http.response.start", "status": status, "headers": [*headers, *self.extra_headers]}
        await self.send(start)
