"""What an ASGI app answers besides requests: the life of its server, with all that is mounted in it; websockets are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from enfold.lifetime import Lifetime
from enfold.surfaces.asgi.messages import ASGIApp, Receive, Scope, Send


async def answer_other(
    scope: Scope, receive: Receive, send: Send, lifetime: Lifetime, stop: Callable[[], None] = lambda: None
) -> None:
    """Answer what is no request, for an app in which nothing is mounted."""
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
    """Answer the server's start and stop; `stop` is called before the mounted `apps` are told to stop."""
    mounted = [_Mounted(app, scope) for app in apps]
    await receive()
    try:
        await lifetime.start()
    except Exception as error:  # noqa: BLE001  # the server tells it, and ends
        await send({"type": "lifespan.startup.failed", "message": f"on_start failed: {error}"})
        return
    failed = [message for app in mounted if (message := await app.tell("startup")) is not None]
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


class _Mounted:
    """A mounted app living its own lifespan in its own task, because what it opens there it must close there."""

    def __init__(self, app: ASGIApp, scope: Scope) -> None:
        self._messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._replies: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._task = asyncio.ensure_future(app(dict(scope), self._messages.get, self._replies.put))

    async def tell(self, event: str) -> str | None:
        """Pass an event on and wait for its reply: None, or what went wrong at the start."""
        if self._task.done():
            return None
        await self._messages.put({"type": f"lifespan.{event}"})
        reply = asyncio.ensure_future(self._replies.get())
        await asyncio.wait({reply, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if reply.done():
            answer = reply.result()
            return str(answer.get("message", "")) if answer["type"] == "lifespan.startup.failed" else None
        reply.cancel()
        # An app that raises here knows no lifespan, which the specification allows.
        self._task.exception()
        return None
