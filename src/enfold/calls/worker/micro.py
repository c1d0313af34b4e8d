"""Answers the discovery verbs of NATS services, PING, INFO and STATS: for `nats micro` and for `enfold peers`."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import msgspec

from enfold.calls.protocol.eager_task import Background
from enfold.calls.protocol.subjects import SERVICES, WORKERS, offer_subject
from enfold.calls.protocol.transport import Message, Subscription, Transport, TransportError, publish_if_possible
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
        """Subscribe to each verb for all services, for this one and for this process; not where the transport forbids it."""
        service, own = self._about["name"], f"{self._about['name']}.{self._about['id']}"
        try:
            for verb in ("PING", "INFO", "STATS"):
                for subject in (f"{SERVICES}.{verb}", f"{SERVICES}.{verb}.{service}", f"{SERVICES}.{verb}.{own}"):
                    receive = partial(self._receive, verb)
                    self._subscriptions.append(await self._transport.subscribe(subject, receive))
        except TransportError:
            return

    async def close(self) -> None:
        for subscription in self._subscriptions:
            await subscription.close()

    def _receive(self, verb: str, message: Message) -> None:
        # Only inboxes are answered: nobody can make us speak to an operation.
        if message.signal is None and message.reply is not None and message.reply.startswith("_INBOX."):
            data = msgspec.json.encode(self._content(verb))
            self._answering.begin(publish_if_possible(self._transport, message.reply, data))

    def _content(self, verb: str) -> dict[str, Any]:
        about = {"type": f"io.nats.micro.v1.{verb.lower()}_response", **self._about}
        content = {**about, "metadata": {"peer": self._transport.name}}
        offered = self._handler.offered
        if verb == "INFO":
            return {**content, "description": "", "endpoints": [self._endpoint(name) for name in offered]}
        if verb == "STATS":
            endpoints = [{**self._endpoint(name), **self._figures(name)} for name in offered]
            return {**content, "started": self._started, "endpoints": endpoints}
        return content

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
