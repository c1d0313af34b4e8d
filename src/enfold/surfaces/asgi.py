"""The messages of ASGI: the types of its three arguments, the headers of a request, and an answer in one piece."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias

import msgspec

from enfold.errors import CallError
from enfold.runtime.application import Lifetime
from enfold.runtime.deadlines import Timekeeper, running_task
from enfold.surfaces.responses import body_too_large

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Any]]
Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]
Header: TypeAlias = tuple[bytes, bytes]
Headers: TypeAlias = dict[bytes, bytes]

# What an app that mounts others tells them: who calls, who says so, and whether who has no identity is to be refused.
IDENTITY: Final = "enfold.identity"
VERIFIER: Final = "enfold.verifier"
IS_CLOSED: Final = "enfold.is_closed"
ABOVE: Final = "enfold.above"  # the path below which the app lies that has mounted this one
JSON: Final[Header] = (b"content-type", b"application/json")
BODILESS: Final = frozenset({204, 304})  # responses without a body and Content-Length


def header_table(scope: Scope) -> Headers:
    """Return the headers by name; a repeated one is a list."""
    lines: Sequence[Header] = scope["headers"]
    headers: Headers = dict(lines)
    if len(headers) != len(lines):
        headers = {}
        for name, value in lines:
            headers[name] = headers[name] + b", " + value if name in headers else value
    return headers


def origin_of(scope: Scope, headers: Mapping[bytes, bytes]) -> str:
    """Return the server's URL as the client sees it; check the host first."""
    return f"{scope.get('scheme', 'http')}://{headers.get(b'host', b'localhost').decode('latin-1')}"


def root_of(scope: Scope) -> str:
    """Return the path under which the client sees us, or the app that mounts us."""
    root: str = scope.get(ABOVE, scope.get("root_path", ""))
    return root


async def until_disconnected(scope: Scope, headers: Headers, receive: Receive) -> None:
    """Drop what a refused request has sent, all but its host, and wait until its client disconnects."""
    host = headers.get(b"host", b"localhost")
    headers.clear()
    headers[b"host"] = host
    if isinstance(lines := scope["headers"], list):
        lines.clear()
    while not (await receive())["type"].endswith(".disconnect"):
        pass


def with_headers(send: Send, headers: Sequence[Header]) -> Send:
    """Return a `send` that adds headers to the response."""

    async def send_with_headers(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *headers]}
        await send(message)

    return send_with_headers


async def respond(
    send: Send, status: int, body: bytes = b"", headers: Sequence[Header] = (), *, is_head: bool = False
) -> None:
    """Send a whole answer; to a HEAD request, all but its body."""
    length = () if status in BODILESS else ((b"content-length", b"%d" % len(body)),)
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *length]})
    await send({"type": "http.response.body", "body": b"" if is_head else body})


Ended: TypeAlias = Literal["late", "gone", "stopped", "refused"]

BODY_TIMEOUT: Final = 30.0
# After this time something must be sent, or a proxy on the way takes the connection for dead.
SILENCE: Final = 10.0


class RequestWatcher(msgspec.Struct, eq=False):
    """From `begin` to `end`, the running task is cancelled when the body is late, the client disconnects, or `stop` is called.

    Nearly all requests are over before any of that is looked for: the timekeeper says which are slow. `break_silence`
    is called when nothing has been sent for ten seconds; with `outlives_client` the client may disconnect and come back.
    """

    receive: Receive
    _body_timeout: float = BODY_TIMEOUT
    has_body: bool = True  # until it has been read, nothing else may receive from the client
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
        self._keeper, self._task = running_task()
        self._keeper.running.add(self)
        return self

    def end(self) -> Ended | None:
        """Stop watching the request; the answer tells why we have cancelled it, if we have.

        Our own cancellation ends here; another cancellation propagates.
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
        """Read the whole body; at most the limit plus one chunk is in memory."""
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
        raise CallError("ABORTED", "The client disconnected before the request body was complete")

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


def late_body() -> CallError:
    return CallError("TIMEOUT", "The body did not arrive in time", {"reason": "body"})


class Exchange(RequestWatcher, eq=False, kw_only=True):
    """One request over ASGI, the client who waits for it, and the way back to them."""

    scope: Scope
    send: Send
    extra_headers: Sequence[Header] = ()  # CORS headers
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
        self.outlives_client = self.outlives_client or not more  # who has all of it may leave
        await self.send({"type": "http.response.body", "body": chunk, "more_body": more})

    async def _begin(self, status: int, headers: Sequence[Header]) -> None:
        self.is_started = True
        start = {"type": "http.response.start", "status": status, "headers": [*headers, *self.extra_headers]}
        await self.send(start)


async def answer_other(
    scope: Scope, receive: Receive, send: Send, lifetime: Lifetime, stop: Callable[[], None] = lambda: None
) -> None:
    """Handle messages other than requests, for an app without mounts."""
    if scope["type"] == "lifespan":
        await run_lifespan(scope, receive, send, lifetime, stop)
    else:
        await close_websocket(receive, send)


async def close_websocket(receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.close", "code": 1008})


async def run_lifespan(
    scope: Scope,
    receive: Receive,
    send: Send,
    lifetime: Lifetime,
    stop: Callable[[], None],
    apps: Iterable[ASGIApp] = (),
) -> None:
    """Handle the server's startup and shutdown; `stop` is called before the mounted `apps` stop."""
    mounted = [Lifespan(app, scope) for app in apps]
    await receive()
    try:
        await lifetime.start()
    except Exception as error:  # noqa: BLE001  # the server tells it, and ends
        await send({"type": "lifespan.startup.failed", "message": f"on_start failed: {error}"})
        return
    replies = [await app.tell("startup") for app in mounted]
    failed = [str(reply.get("message", "")) for reply in replies if reply and reply["type"].endswith("failed")]
    if failed:
        await send({"type": "lifespan.startup.failed", "message": "; ".join(failed)})
        return
    await send({"type": "lifespan.startup.complete"})
    await receive()
    stop()
    for app in reversed(mounted):
        await app.tell("shutdown")
    await lifetime.stop()
    await send({"type": "lifespan.shutdown.complete"})


class Lifespan:
    """The lifespan of an app, in its own task, because what it opens there it must close there."""

    def __init__(self, app: ASGIApp, scope: Scope) -> None:
        self._messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._replies: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.task = asyncio.ensure_future(app(dict(scope), self._messages.get, self._replies.put))

    async def tell(self, event: str) -> dict[str, Any] | None:
        """Pass an event on and wait for its reply; None for an app that has ended, as one without a lifespan may."""
        if self.task.done():
            return None
        await self._messages.put({"type": f"lifespan.{event}"})
        reply = asyncio.ensure_future(self._replies.get())
        await asyncio.wait({reply, self.task}, return_when=asyncio.FIRST_COMPLETED)
        if reply.done():
            return reply.result()
        reply.cancel()
        self.task.exception()  # retrieved, because an app may raise here
        return None
