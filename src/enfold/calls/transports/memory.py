"""Routes messages by subject inside one process: for the memory transport and the hub."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Final

import msgspec

from enfold.calls.protocol.settings import OFFER_REMEMBERED
from enfold.calls.protocol.transport import (
    Capabilities,
    DisconnectedError,
    Message,
    PayloadTooLargeError,
    Receive,
    ReplyAddresses,
    Signal,
    inbox_of,
    new_boot,
    offer_subject,
    operation_of,
    peer_name,
)
from enfold.operations import Identity

ANY: Final = "*"  # one token
REST: Final = ">"  # one token or more
MAX_CACHED: Final = 4096
MAX_REMEMBERED: Final = 10_000


class Listener(msgspec.Struct, frozen=True, eq=False):
    """A subscriber to a subject, alone or in a queue group."""

    pattern: str
    receive: Receive
    queue: str | None
    owner: object = None  # the client it belongs to


class _Node:
    """One token of the patterns; `here` are the listeners whose pattern ends in it."""

    __slots__ = ("below", "here")

    def __init__(self) -> None:
        self.below: dict[str, _Node] = {}
        self.here: dict[int, Listener] = {}

    @property
    def is_empty(self) -> bool:
        return not self.below and not self.here


class Router:
    """Delivers each message to all subscribers, and to one member of each queue group in turn."""

    def __init__(self) -> None:
        self._root = _Node()
        self._turn = count()
        self._routes: dict[str, Receive] = {}
        self._left: dict[str, float] = {}  # until when a queue group without members is remembered

    def add(self, listener: Listener) -> None:
        node = self._root
        for token in listener.pattern.split("."):
            node = node.below.setdefault(token, _Node())
        node.here[id(listener)] = listener
        self._routes.clear()

    def remove(self, listener: Listener) -> None:
        path = [self._root]
        for token in listener.pattern.split("."):
            if token not in path[-1].below:
                return
            path.append(path[-1].below[token])
        if path[-1].here.pop(id(listener), None) is not None and listener.queue is not None:
            self._remember(listener.pattern)
        self._prune(path, listener.pattern.split("."))
        self._routes.clear()

    def route(self, message: Message) -> bool:
        """Deliver a message; returns whether there is a subscriber."""
        subject, routes = message.subject, self._routes
        deliver = routes.get(subject) or routes.get(subject[: subject.rfind(".") + 1]) or self._find_route(subject)
        deliver(message)
        return deliver is not _drop_message

    def signal_without_listeners(self, subject: str) -> Signal:
        """Return the signal for a subject without subscribers: GONE if it had a queue group within the last hour."""
        # Workers subscribe to an operation with a wildcard for the caller.
        until = self._left.get(offer_subject(operation_of(subject)), 0.0)
        return Signal.GONE if until > time.monotonic() else Signal.NO_RESPONDERS

    def _remember(self, pattern: str) -> None:
        self._left.pop(pattern, None)
        if len(self._left) >= MAX_REMEMBERED:
            del self._left[next(iter(self._left))]
        self._left[pattern] = time.monotonic() + OFFER_REMEMBERED

    def listeners(self, pattern: str) -> list[Listener]:
        """Return the subscribers to exactly this pattern."""
        node: _Node | None = self._root
        for token in pattern.split("."):
            node = node.below.get(token) if node is not None else None
        return [] if node is None else list(node.here.values())

    def _prune(self, path: list[_Node], tokens: list[str]) -> None:
        for depth in range(len(tokens), 0, -1):
            if not path[depth].is_empty:
                return
            del path[depth - 1].below[tokens[depth - 1]]

    def _find_route(self, subject: str) -> Receive:
        """Find the route of a subject; one that does not depend on the last token is cached for all that share the rest.

        Reply subjects are used only once, so caching each of them would not help.
        """
        listeners, by_last_token = self._find(subject.split("."))
        route = _as_route(listeners, self._turn)
        if len(self._routes) >= MAX_CACHED:
            self._routes.clear()
        self._routes[subject if by_last_token else subject[: subject.rfind(".") + 1]] = route
        return route

    def _find(self, tokens: list[str]) -> tuple[list[Listener], bool]:
        """Find the subscribers of a subject, and whether they depend on its last token."""
        found: list[Listener] = []
        nodes = [self._root]
        for token in tokens[:-1]:
            found += _rest(nodes)
            nodes = [node.below[key] for node in nodes for key in (token, ANY) if key in node.below]
        found += _rest(nodes)
        by_last_token = any(node.below.keys() - {ANY, REST} for node in nodes)
        for node in nodes:
            for key in (tokens[-1], ANY):
                if key in node.below:
                    found += node.below[key].here.values()
        return found, by_last_token


def _rest(nodes: list[_Node]) -> Iterator[Listener]:
    for node in nodes:
        if REST in node.below:
            yield from node.below[REST].here.values()


def _as_route(listeners: list[Listener], turn: Iterator[int]) -> Receive:
    """Return a function that delivers a message to all subscribers and to one of each group."""
    by_queue: dict[str, list[Receive]] = {}
    for listener in listeners:
        if listener.queue is not None:
            by_queue.setdefault(listener.queue, []).append(listener.receive)
    everyone = [listener.receive for listener in listeners if listener.queue is None]
    everyone += [group[0] for group in by_queue.values() if len(group) == 1]
    groups = [group for group in by_queue.values() if len(group) > 1]

    def to_all(message: Message) -> None:
        for receive in everyone:
            receive(message)
        for group in groups:
            group[next(turn) % len(group)](message)

    if groups or len(everyone) > 1:
        return to_all
    return everyone[0] if everyone else _drop_message


def _drop_message(message: Message) -> None:
    """Drop a message whose subject has no subscribers."""


MAX_PAYLOAD: Final = 1024 * 1024


class MemoryTransport:
    """A peer on a bus in this process. Its identity is set by the program that creates it."""

    def __init__(
        self,
        name: str | None = None,
        identity: Identity | None = None,
        *,
        max_payload: int = MAX_PAYLOAD,
        router: Router | None = None,
        has_identities: bool | None = None,
    ) -> None:
        """Create a new bus, or with a router another peer on its bus.

        `has_identities` says whether peers have identities, by default whether this one has; then a peer without an identity may
        not use idempotency keys.
        """
        self.name = name or peer_name("local" if identity is None else identity.id)
        self.identity = identity
        self._router = router or Router()
        self.capabilities = Capabilities(
            max_payload,
            peer_identity=identity is not None if has_identities is None else has_identities,
        )
        self._inbox = inbox_of(self.name, new_boot())
        self.replies = ReplyAddresses()
        self._listeners: set[Listener] = set()
        self._is_closed = False

    def join(self, name: str, identity: Identity | None = None) -> MemoryTransport:
        """Create another peer on the same bus."""
        return MemoryTransport(name, identity, max_payload=self.capabilities.max_payload, router=self._router)

    async def connect(self) -> None:
        """Do nothing: a bus is always connected."""

    def inbox(self) -> str:
        return self._inbox

    async def publish(
        self, subject: str, data: bytes, *, reply: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        self._carry(subject, data, reply, headers)

    async def send(
        self, subject: str, data: bytes, *, reply: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        if not self._carry(subject, data, reply, headers) and reply is not None:
            self._router.route(Message(reply, signal=self._router.signal_without_listeners(subject)))

    async def subscribe(self, subject: str, receive: Receive, *, queue: str | None = None) -> MemorySubscription:
        recording = self.replies.recording(subject, receive)
        listener = Listener(subject, recording, queue, self)
        self._router.add(listener)
        self._listeners.add(listener)
        return MemorySubscription(self, listener)

    async def close(self) -> None:
        self._is_closed = True
        for listener in list(self._listeners):
            self._forget(listener)

    def _carry(self, subject: str, data: bytes, reply: str | None, headers: Mapping[str, str] | None) -> bool:
        """Deliver a message; returns whether there is a subscriber."""
        if self._is_closed:
            raise DisconnectedError
        size, limit = len(data), self.capabilities.max_payload
        if headers is not None:
            size += sum(len(key) + len(text) for key, text in headers.items())
        if size > limit:
            raise PayloadTooLargeError(size, limit)
        return self._router.route(Message(subject, data, reply, headers, self.name, self.identity))

    def _forget(self, listener: Listener) -> None:
        self._router.remove(listener)
        self._listeners.discard(listener)


class MemorySubscription(msgspec.Struct, eq=False):
    """Messages are delivered at once, so draining is closing."""

    transport: MemoryTransport
    listener: Listener

    async def close(self, *, drain: bool = False) -> None:
        del drain
        self.transport._forget(self.listener)
