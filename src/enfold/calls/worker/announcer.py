"""Answers discovery: tells each asker the operations they may call here, and announces changes to all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, TypeAlias

import msgspec

from enfold.calls.protocol.discovery import Announcement, Ask, WorkerListing, specs_digest
from enfold.calls.protocol.eager_task import Background
from enfold.calls.protocol.subjects import announcement_subject, ask_subject
from enfold.calls.protocol.transport import Message, Subscription, Transport, leads_back, publish_if_possible
from enfold.operation import Identity, OperationSpec

PART_BYTES: Final = 256 * 1024

Visible: TypeAlias = Callable[[Identity | None], Iterable[OperationSpec]]


class Announcer:
    """Answers discovery for one worker."""

    def __init__(self, transport: Transport, boot: str, visible: Visible) -> None:
        self._transport = transport
        self._boot = boot
        self._visible = visible
        self._subscription: Subscription | None = None
        self._answering = Background()

    async def start(self) -> None:
        self._subscription = await self._transport.subscribe(ask_subject("*"), self._receive)

    async def announce(self, state: Literal["up", "changed", "down"]) -> None:
        name = self._transport.name
        data = msgspec.json.encode(Announcement(name, self._boot, state))
        await publish_if_possible(self._transport, announcement_subject(name), data)

    async def close(self) -> None:
        if self._subscription is not None:
            await self._subscription.close()
        await self.announce("down")

    def _receive(self, message: Message) -> None:
        reply, rewritten = message.reply, self._transport.capabilities.rewrites_replies
        if message.signal is not None or reply is None or not leads_back(message, rewritten=rewritten):
            return
        try:
            ask = msgspec.json.decode(message.data, type=Ask)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        self._answering.begin(self._answer(reply, message.identity, frozenset(ask.known)))

    async def _answer(self, reply: str, identity: Identity | None, known: frozenset[str]) -> None:
        specs = list(self._visible(identity))
        digest = specs_digest(specs)
        name = self._transport.name
        answers = [WorkerListing(name, self._boot, digest)]
        if digest not in known:
            parts = _parts(specs)
            answers = [
                WorkerListing(name, self._boot, digest, part=number, parts=len(parts), specs=part)
                for number, part in enumerate(parts)
            ]
        for answer in answers:
            await publish_if_possible(self._transport, reply, msgspec.json.encode(answer, enc_hook=str))


def _parts(specs: list[OperationSpec]) -> list[list[dict[str, Any]]]:
    """The specs in parts small enough for any transport; at least one part."""
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
