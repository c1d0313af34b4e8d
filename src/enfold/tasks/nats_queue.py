"""Fetches tasks from the queue: one shared consumer for each operation, asked only while slots are free."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from enfold.tasks.nats_names import operation_token

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from enfold.tasks.nats_bucket import Streams


LOOK_AHEAD: Final = 256  # messages of each operation that are looked at for one of another owner
COLLECTING: Final = 0.2  # seconds that a fetch may take to end after its time


class Queue:
    """The consumers of one worker. Messages beyond the free slots wait here; after `ack_wait` the server gives them to others."""

    def __init__(self, streams: Streams, ack_wait: float) -> None:
        self._streams = streams
        self._ack_wait = ack_wait
        self._subscriptions: dict[str, Any] = {}
        self._fetching: dict[str, asyncio.Future[list[Msg]]] = {}
        self._arrived: list[Msg] = []
        self._context: Any = None

    async def next(self, operations: Collection[str], n: int, wait: float, but: Collection[str] = ()) -> list[Msg]:
        """At most `n` messages, as soon as there is one, or none after some seconds.

        With `but` the queue is looked through for messages of other owners than these (by their tokens), and the rest
        goes back at once.
        """
        if not operations:
            await asyncio.sleep(wait)
            return []
        await self._open(operations)
        if but or not self._arrived:
            self._fetch(operations, LOOK_AHEAD if but else max(1, n // len(operations)), wait)
            until = asyncio.ALL_COMPLETED if but else asyncio.FIRST_COMPLETED
            await asyncio.wait(self._fetching.values(), timeout=wait + COLLECTING, return_when=until)
        self._collect()
        if but:
            return await self._of_others(n, but)
        found, self._arrived = self._arrived[:n], self._arrived[n:]
        return found

    async def _of_others(self, n: int, but: Collection[str]) -> list[Msg]:
        arrived, self._arrived = self._arrived, []
        found = [message for message in arrived if message.subject.split(".")[2] not in but][:n]
        kept = {id(message) for message in found}
        await asyncio.gather(*(message.nak() for message in arrived if id(message) not in kept))
        return found

    def close(self) -> None:
        for fetching in self._fetching.values():
            fetching.cancel()
        self._fetching.clear()
        self._subscriptions.clear()

    def _fetch(self, operations: Collection[str], n: int, wait: float) -> None:
        """Start fetches. They are never cancelled: messages that had arrived would be lost until `ack_wait`."""
        for operation in operations:
            if operation not in self._fetching:
                self._fetching[operation] = asyncio.ensure_future(_fetch(self._subscriptions[operation], n, wait))

    def _collect(self) -> None:
        over = [operation for operation, fetching in self._fetching.items() if fetching.done()]
        failures = []
        for fetching in [self._fetching.pop(operation) for operation in over]:
            if (error := fetching.exception()) is None:
                self._arrived += fetching.result()
            else:
                failures.append(error)
        if failures and not self._arrived:
            raise failures[0]

    async def _open(self, operations: Collection[str]) -> None:
        context = await self._streams.open()
        if context is not self._context:
            self.close()
            self._context = context
        for operation in operations:
            if operation not in self._subscriptions:
                self._subscriptions[operation] = await self._subscribe(context, operation)

    async def _subscribe(self, context: Any, operation: str) -> Any:
        from nats.js.api import AckPolicy, ConsumerConfig

        name, queue = operation_token(operation), self._streams.names.queue
        config = ConsumerConfig(
            name=name,
            durable_name=name,
            filter_subject=self._streams.names.queued("*", operation),
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=self._ack_wait,  # never `backoff`, which would replace it
            max_deliver=-1,  # how often a task was tried is counted in its state
            max_ack_pending=100_000,
        )
        await context.add_consumer(queue, config)
        return await context.pull_subscribe_bind(name, stream=queue)


async def _fetch(subscription: Any, n: int, wait: float) -> list[Msg]:
    with suppress(TimeoutError):
        found: list[Msg] = await subscription.fetch(n, timeout=wait)
        return found
    return []
