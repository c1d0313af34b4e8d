"""Callers that leave in the moment at which a NATS server has stored a change of a task."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from enfold.calls.nats import NATSTransport
from enfold.tasks.nats_streams import Names, task_pattern

T = TypeVar("T")


async def left_when_stored(
    transport: NATSTransport, task_id: str, call: Coroutine[Any, Any, T], name: str = Names().name
) -> asyncio.Future[T]:
    """Run a call, cancel it as soon as the state of a task has been stored, and return it when it has ended."""

    async def on_change(_: Any) -> None:
        leaving.cancel()

    subject = f"{Names(name).changed}.{task_pattern(None, task_id)}"
    subscription = await transport.client.subscribe(subject, cb=on_change)
    await transport.client.flush()
    leaving = asyncio.ensure_future(call)
    await asyncio.wait([leaving])
    await subscription.unsubscribe()
    return leaving
