"""Who serves what: workers tell each caller which operations he may call, and callers keep a list of them.

A caller asks everybody at once; a worker whose answer he has already says only that it is the same one.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias

import msgspec

from enfold.calls.eager import start
from enfold.calls.transport import (
    Message,
    Signal,
    Subscription,
    Transport,
    TransportError,
    announcement_subject,
    ask_subject,
    leads_back,
    lies_in,
    new_boot,
)
from enfold.operation import Identity, OperationSpec

__all__ = ["Announcer", "Listing", "Lookout"]

PART_BYTES: Final = 256 * 1024
LATECOMERS: Final = 0.1  # how long after an answer others may still come
MISSED: Final = 2  # how many times in a row a worker may fail to answer


class _Ask(msgspec.Struct, frozen=True):
    v: Literal[1] = 1
    known: list[str] = []


class _Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    worker: str
    boot: str
    digest: str
    v: Literal[1] = 1
    part: int = 0
    parts: int = 0  # none: the asker has this list already
    specs: list[dict[str, Any]] = []


class _Announcement(msgspec.Struct, frozen=True):
    worker: str
    boot: str
    state: Literal["up", "changed", "down"]
    v: Literal[1] = 1


# --- the worker's side --------------------------------------------------------------------------------------------

Visible: TypeAlias = Callable[[Identity | None], Iterable[OperationSpec]]


class Announcer:
    """Tells askers what they may call here, and everybody when that changes."""

    def __init__(self, transport: Transport, boot: str, visible: Visible) -> None:
        self._transport = transport
        self._boot = boot
        self._visible = visible
        self._subscription: Subscription | None = None
        self._answering: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._subscription = await self._transport.subscribe(ask_subject("*"), self._receive)

    async def announce(self, state: Literal["up", "changed", "down"]) -> None:
        name = self._transport.name
        data = msgspec.json.encode(_Announcement(name, self._boot, state))
        try:
            await self._transport.publish(announcement_subject(name), data)
        except TransportError:
            return  # whoever is not told now finds out when he asks

    async def close(self) -> None:
        if self._subscription is not None:
            await self._subscription.close()
        await self.announce("down")

    def _receive(self, message: Message) -> None:
        reply, rewritten = message.reply, self._transport.capabilities.rewrites_replies
        if message.signal is not None or reply is None or not leads_back(message, rewritten=rewritten):
            return
        try:
            ask = msgspec.json.decode(message.data, type=_Ask)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        task = start(self._answer(reply, message.identity, frozenset(ask.known)))
        if task is not None:
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _answer(self, reply: str, identity: Identity | None, known: frozenset[str]) -> None:
        specs = list(self._visible(identity))
        digest = _digest(specs)
        name = self._transport.name
        answers = (
            [_Answer(name, self._boot, digest)]
            if digest in known
            else [
                _Answer(name, self._boot, digest, part=number, parts=len(parts), specs=part)
                for parts in [_parts(specs)]
                for number, part in enumerate(parts)
            ]
        )
        try:
            for answer in answers:
                await self._transport.publish(reply, msgspec.json.encode(answer, enc_hook=str))
        except TransportError:
            return  # he will ask again


def _digest(specs: list[OperationSpec]) -> str:
    return hashlib.sha256("".join(sorted(spec.digest for spec in specs)).encode()).hexdigest()


def _parts(specs: list[OperationSpec]) -> list[list[dict[str, Any]]]:
    """The specs in parts that any transport carries; there is always one, if an empty one."""
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


# --- the caller's side --------------------------------------------------------------------------------------------


class Listing(msgspec.Struct):
    """What one worker serves, as far as we may see it."""

    worker: str
    boot: str
    digest: str
    may_offer: tuple[str, ...] | None = None  # as the transport says; what lies outside is not believed
    missed: int = 0


class Lookout:
    """Keeps the list of what running peers serve; `changed` is called whenever it is another."""

    def __init__(self, transport: Transport, changed: Callable[[], None], *, refresh: float, patience: float) -> None:
        self._transport = transport
        self._changed = changed
        self._refresh = refresh
        self._patience = patience
        self._prefix = ""
        self._workers: dict[str, Listing] = {}
        self._specs: dict[str, list[OperationSpec]] = {}  # complete lists by their digest, if it is true
        self._parts: dict[tuple[str, str], dict[int, list[dict[str, Any]]]] = {}
        self._answered: set[str] = set()
        self._heard = asyncio.Event()
        self._subscriptions: list[Subscription] = []
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()

    async def start(self) -> None:
        """Ask, and wait until somebody has answered or it seems that nobody will."""
        await self._transport.connect()
        self._prefix = f"{self._transport.inbox()}.d-{new_boot()}"
        self._subscriptions = [
            await self._transport.subscribe(self._prefix, self._receive),
            await self._transport.subscribe(announcement_subject("*"), self._hear),
        ]
        await self._ask()
        self._task = asyncio.create_task(self._keep_asking())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for subscription in self._subscriptions:
            await subscription.close()

    @property
    def workers(self) -> list[Listing]:
        return list(self._workers.values())

    def specs(self) -> dict[str, OperationSpec]:
        """The operations by id; where workers differ, the one seen first counts until it is gone."""
        found: dict[str, OperationSpec] = {}
        for listing in self._workers.values():
            for spec in self._specs.get(listing.digest, ()):
                if lies_in(spec.id, listing.may_offer):
                    found.setdefault(spec.id, spec)
        return found

    async def _keep_asking(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), self._refresh)
            self._wanted.clear()
            await self._ask()

    async def _ask(self) -> None:
        """One round: everybody is asked, those who answer are there, those who do not may be gone."""
        self._answered.clear()
        self._parts.clear()
        self._heard.clear()
        data = msgspec.json.encode(_Ask(known=list(self._specs)))
        before = self._digests()
        try:
            await self._transport.publish(ask_subject(self._transport.name), data, reply=self._prefix)
        except TransportError:
            return  # without a connection nobody can answer, and nobody is gone
        await self._listen()
        self._miss()
        if self._digests() != before:
            self._changed()

    async def _listen(self) -> None:
        """Until nobody has answered for a moment, or patience is at its end."""
        ends_at = time.monotonic() + self._patience
        pause = self._patience
        while (left := ends_at - time.monotonic()) > 0:
            try:
                await asyncio.wait_for(self._heard.wait(), min(pause, left))
            except TimeoutError:
                return
            self._heard.clear()
            pause = LATECOMERS

    def _miss(self) -> None:
        for key, listing in list(self._workers.items()):
            listing.missed = 0 if key in self._answered else listing.missed + 1
            if listing.missed >= MISSED:
                del self._workers[key]
        used = {listing.digest for listing in self._workers.values()}
        self._specs = {digest: specs for digest, specs in self._specs.items() if digest in used}

    def _digests(self) -> list[tuple[str, str]]:
        return sorted((key, listing.digest) for key, listing in self._workers.items())

    def _receive(self, message: Message) -> None:
        if message.signal is not None:
            if message.signal is Signal.RESTORED:
                self._wanted.set()
            return
        try:
            self._take(msgspec.json.decode(message.data, type=_Answer), message)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError, TypeError):
            return
        self._heard.set()

    def _take(self, answer: _Answer, message: Message) -> None:
        key = f"{message.peer} {answer.boot}"  # nobody can speak for a worker of another name
        name = answer.digest
        if answer.parts:
            parts = self._parts.setdefault((key, answer.digest), {})
            parts[answer.part] = answer.specs
            if len(parts) < answer.parts:
                return
            wires = [wire for number in sorted(parts) for wire in parts[number]]
            specs = [OperationSpec.from_dict(wire) for wire in wires]
            # Workers with the same digest share a list, so it must be true; any other list is its worker's alone.
            name = answer.digest if answer.digest == _digest(specs) else f"{key} {answer.digest}"
            self._specs[name] = specs
        if name in self._specs:
            self._answered.add(key)
            self._workers[key] = Listing(answer.worker, answer.boot, name, message.may_offer)

    def _hear(self, message: Message) -> None:
        """Somebody came, went or changed: what is true is found by asking."""
        if message.signal is not None:
            return
        try:
            news = msgspec.json.decode(message.data, type=_Announcement)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        for listing in self._workers.values():
            if news.state == "down" and listing.boot == news.boot and listing.worker == news.worker:
                listing.missed = MISSED  # said by itself; one round without an answer is enough
        self._wanted.set()
