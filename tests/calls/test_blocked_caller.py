"""A caller whose own event loop was blocked: what its worker has sent meanwhile is read before the worker counts as gone."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from tests.calls.networks import Server, shop
from tests.waiting import PATIENCE, until

from enfold.calls import PendingRequestMap
from enfold.calls.nats import NATSTransport
from enfold.calls.protocol.settings import NEVER, CallSettings
from enfold.surfaces.calls import Serving, serve_calls

SILENCE = 0.5
SETTINGS = CallSettings(heartbeat=0.1, silence=SILENCE)


@contextmanager
def worker(url: str) -> Iterator[Serving]:
    """A worker on its own event loop, which goes on while that of the test is blocked."""
    is_ready, is_over = threading.Event(), threading.Event()
    served: list[Serving] = []

    async def serve() -> None:
        async with NATSTransport(url) as transport, serve_calls(shop(), transport) as serving:
            served.append(serving)
            is_ready.set()
            await asyncio.to_thread(is_over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert is_ready.wait(PATIENCE)
        yield served[0]
    finally:
        is_over.set()
        thread.join()


def block() -> None:
    """Block the event loop for longer than a silent worker is waited for."""
    time.sleep(3 * SILENCE)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[PendingRequestMap]:
    async with NATSTransport(url) as transport, PendingRequestMap(transport, settings=SETTINGS, retry=NEVER) as caller:
        yield caller


async def test_a_call_has_its_result_after_its_caller_was_blocked(server: Server) -> None:
    with worker(server.url) as serving:
        async with connected(server.url) as caller:
            calling = asyncio.create_task(caller.call("shop.wait", {"seconds": SILENCE}))
            await until(lambda: serving.handler.running == 1)
            block()
            assert (await calling).data == "done"


async def test_a_stream_goes_on_after_its_consumer_was_blocked(server: Server) -> None:
    with worker(server.url):
        async with connected(server.url) as caller:
            items = caller.subscribe("shop.count", {"to": 20, "pause": SILENCE / 5})
            found = [(await anext(items)).data]
            block()
            found += [item.data async for item in items]
    assert found == list(range(20))
