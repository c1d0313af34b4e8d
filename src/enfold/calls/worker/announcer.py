"""Answers discovery with the operations that the sender may call, and NATS service discovery (`nats micro`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import msgspec

from enfold.calls.protocol.connection import Background
from enfold.calls.protocol.events import Announcement, DiscoveryRequest, WorkerListing, read_as, specs_digest
from enfold.calls.protocol.transport import (
    SERVICES,
    WORKERS,
    Message,
    Subscription,
    Transport,
    TransportError,
    announcement_subject,
    discovery_subject,
    offer_subject,
    replies_to_sender,
    try_publish,
)
from enfold.calls.worker.admission import OperationCounts
from enfold.calls.worker.handler import CallHandler
from enfold.operations import Identity, OperationSpec

PART_BYTES: Final = 256 * 1024
_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")

Visible: TypeAlias = Callable[[Identity | None], Iterable[OperationSpec]]


class Announcer:
    """Tells edges and operators what one worker serves."""

    def __init__(
        self, transport: Transport, handler: CallHandler, visible: Visible, service: str, version: str
    ) -> None:
        self._transport = transport
        self._handler = handler
        self._boot = handler.boot
        self._visible = visible
        self._about = {"name": _NAME.sub("_", service), "id": handler.boot, "version": version}
        self._started = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        self._subscriptions: list[Subscription] = []
        self._answering = Background()

    async def start(self) -> None:
        """Answer discovery, and `nats micro` if the transport permits it; announce that the worker is up."""
        for subject in (discovery_subject("*"), discovery_subject("*", self._transport.name)):
            self._subscriptions.append(await self._transport.subscribe(subject, self._receive))
        service = self._about["name"]
        with suppress(TransportError):
            for verb in ("PING", "INFO", "STATS"):
                for place in ("", f".{service}", f".{service}.{self._boot}"):
                    receive = partial(self._receive_micro, verb)
                    self._subscriptions.append(await self._transport.subscribe(f"{SERVICES}.{verb}{place}", receive))
        await self.announce("up")

    async def announce(self, state: Literal["up", "changed", "down"]) -> None:
        name = self._transport.name
        data = msgspec.json.encode(Announcement(name, self._boot, state))
        await try_publish(self._transport, announcement_subject(name), data)

    async def close(self) -> None:
        for subscription in self._subscriptions:
            await subscription.close()
        await self.announce("down")

    # discovery

    def _receive(self, message: Message) -> None:
        reply, rewritten = message.reply, self._transport.capabilities.rewrites_replies
        if message.signal is not None or reply is None or not replies_to_sender(message, rewritten=rewritten):
            return
        ask = read_as(message.data, DiscoveryRequest)
        if ask is not None and ask.boot in ("", self._boot):
            self._answering.begin(self._answer(reply, message.identity, wants_list=ask.wants_list))

    async def _answer(self, reply: str, identity: Identity | None, *, wants_list: bool) -> None:
        specs = list(self._visible(identity))
        digest = specs_digest(specs)
        name = self._transport.name
        answers = [WorkerListing(name, self._boot, digest)]
        if wants_list:
            parts = _parts(specs)
            answers = [
                WorkerListing(name, self._boot, digest, part=number, parts=len(parts), specs=part)
                for number, part in enumerate(parts)
            ]
        for answer in answers:
            await try_publish(self._transport, reply, msgspec.json.encode(answer, enc_hook=str))

    # NATS services

    def _receive_micro(self, verb: str, message: Message) -> None:
        # Only inboxes are answered, so that no sender can direct an answer at an operation.
        if message.signal is None and message.reply is not None and message.reply.startswith("_INBOX."):
            data = msgspec.json.encode(self._content(verb))
            self._answering.begin(try_publish(self._transport, message.reply, data))

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


def _parts(specs: list[OperationSpec]) -> list[list[dict[str, Any]]]:
    """Split the specs into parts small enough for any transport; at least one part."""
    parts: list[list[dict[str, Any]]] = [[]]
    size = 0
    for spec in specs:
        wire = spec.to_dict()
        size += len(msgspec.json.encode(wire, enc_hook=str))
        if size > PART_BYTES and parts[-1]:
            parts.append([])
            size = 0
        parts[-1].append(wire)
    return parts
