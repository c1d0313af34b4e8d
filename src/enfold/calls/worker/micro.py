"""Answers the discovery verbs of NATS services, PING, INFO and STATS: for `nats micro` and for `enfold peers`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from enfold.calls.protocol.eager_task import Background
from enfold.calls.protocol.subjects import SERVICES, WORKERS, offer_subject
from enfold.calls.protocol.transport import Message, Subscription, Transport, TransportError
from enfold.calls.worker.handler import CallHandler
from enfold.calls.worker.served import OperationCounts

_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")


class MicroService:
    """Answers whoever asks which services there are; operators may, callers as a rule may not."""

    def __init__(self, transport: Transport, handler: CallHandler, service: str, version: str) -> None:
        self._transport = transport
        self._handler = handler
        self._about = {"name": _NAME.sub("_", service), "id": handler.boot, "version": version}
        self._started = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        self._subscriptions: list[Subscription] = []
        self._answering = Background()

    async def start(self) -> None:
        """Listen under each name the conventions know; a transport that forbids it is served without."""
        for subject, reply in self._verbs():
            try:
                self._subscriptions.append(await self._transport.subscribe(subject, reply))
            except TransportError:
                return

    async def close(self) -> None:
        for subscription in self._subscriptions:
            await subscription.close()

    def _verbs(self) -> Iterator[tuple[str, Callable[[Message], None]]]:
        name, own = self._about["name"], f"{self._about['name']}.{self._about['id']}"
        for verb, content in (("PING", self._ping), ("INFO", self._info), ("STATS", self._stats)):
            for subject in (f"{SERVICES}.{verb}", f"{SERVICES}.{verb}.{name}", f"{SERVICES}.{verb}.{own}"):
                yield subject, self._answering_with(content)

    def _answering_with(self, content: Callable[[], dict[str, Any]]) -> Callable[[Message], None]:
        def receive(message: Message) -> None:
            # Only inboxes are answered: nobody can make us speak to an operation.
            if message.signal is None and message.reply is not None and message.reply.startswith("_INBOX."):
                self._answering.begin(self._answer(message.reply, content()))

        return receive

    async def _answer(self, reply: str, content: dict[str, Any]) -> None:
        try:
            await self._transport.publish(reply, msgspec.json.encode(content))
        except TransportError:
            return

    def _response(self, verb: str, **more: Any) -> dict[str, Any]:
        about = {"type": f"io.nats.micro.v1.{verb}_response", **self._about}
        return {**about, "metadata": {"peer": self._transport.name}, **more}

    def _ping(self) -> dict[str, Any]:
        return self._response("ping")

    def _info(self) -> dict[str, Any]:
        endpoints = [self._endpoint(operation_id) for operation_id in self._handler.offered]
        return self._response("info", description="", endpoints=endpoints)

    def _stats(self) -> dict[str, Any]:
        endpoints = [
            {**self._endpoint(operation_id), **self._figures(operation_id)} for operation_id in self._handler.offered
        ]
        return self._response("stats", started=self._started, endpoints=endpoints)

    def _endpoint(self, operation_id: str) -> dict[str, Any]:
        spec = self._handler.registry.get_spec(operation_id)
        return {
            "name": operation_id.replace(".", "_"),
            "subject": offer_subject(operation_id),
            "queue_group": WORKERS,
            "metadata": {"operation": operation_id, "type": spec.type.value, "version": spec.version},
        }

    def _figures(self, operation_id: str) -> dict[str, Any]:
        counts = self._handler.operations.get(operation_id) or OperationCounts()
        nanoseconds = int(counts.seconds * 1e9)
        return {
            "num_requests": counts.requests,
            "num_errors": counts.errors,
            "last_error": counts.last_error,
            "processing_time": nanoseconds,
            "average_processing_time": nanoseconds // max(1, counts.requests),
        }
