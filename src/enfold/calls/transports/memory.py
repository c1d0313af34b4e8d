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
    """Somebody who listens to a subject, alone or as one of a group."""

    pattern: str
    receive: Receive
    queue: str | None
    owner: object = None  # for whom it was made


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
    """Finds who listens, and hands each message to all of them, or to one of a group in turn."""

    def __init__(self) -> None:
        self._root = _Node()
        self._turn = count()
        self._routes: dict[str, Receive] = {}
        self._left: dict[str, float] = {}  # until when it is remembered that a group listened to a pattern

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
        """Deliver a message; whether anybody listens."""
        subject, routes = message.subject, self._routes
        deliver = routes.get(subject) or routes.get(subject[: subject.rfind(".") + 1]) or self._find_route(subject)
        deliver(message)
        return deliver is not _to_nobody

    def without_listeners(self, subject: str) -> Signal:
        """The signal for a subject without listeners: GONE where a group listened within the last hour."""
        # A group listens to an operation whoever calls it: the caller's name is any.
        until = self._left.get(offer_subject(operation_of(subject)), 0.0)
        return Signal.GONE if until > time.monotonic() else Signal.NO_RESPONDERS

    def _remember(self, pattern: str) -> None:
        self._left.pop(pattern, None)
        if len(self._left) >= MAX_REMEMBERED:
            del self._left[next(iter(self._left))]
        self._left[pattern] = time.monotonic() + OFFER_REMEMBERED

    def listeners(self, pattern: str) -> list[Listener]:
        """Those who listen to exactly this pattern."""
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

        Replies come on subjects that are used once: keeping each would be all cost.
        """
        listeners, by_last_token = self._find(subject.split("."))
        route = _as_route(listeners, self._turn)
        if len(self._routes) >= MAX_CACHED:
            self._routes.clear()
        self._routes[subject if by_last_token else subject[: subject.rfind(".") + 1]] = route
        return route

    def _find(self, tokens: list[str]) -> tuple[list[Listener], bool]:
        """Who listens, and whether another last token could have led to others."""
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
    """What hands a message to all who listen, and to one of each group; where one alone listens, it is that one."""
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
    return everyone[0] if everyone else _to_nobody


def _to_nobody(message: Message) -> None:
    """The route of a subject to which nobody listens."""


MAX_PAYLOAD: Final = 1024 * 1024


class MemoryTransport:
    """One peer on a bus; the bus vouches for its identity, because whoever made the peer gave it."""

    def __init__(
        self,
        name: str | None = None,
        identity: Identity | None = None,
        *,
        max_payload: int = MAX_PAYLOAD,
        router: Router | None = None,
        vouches: bool | None = None,
    ) -> None:
        """A bus of its own, or, given a router, another peer on the bus that has it.

        `vouches` says that the peers have identities, as they do where this one has; then one without any may not use
        idempotency keys.
        """
        self.name = name or peer_name("local" if identity is None else identity.id)
        self.identity = identity
        self._router = router or Router()
        self.capabilities = Capabilities(
            max_payload,
            peer_identity=identity is not None if vouches is None else vouches,
        )
        self._max_payload = max_payload
        self._inbox = inbox_of(self.name, new_boot())
        self.replies = ReplyAddresses()
        self._listeners: set[Listener] = set()
        self._is_closed = False

    def join(self, name: str, identity: Identity | None = None) -> MemoryTransport:
        """Another peer on the same bus."""
        return MemoryTransport(name, identity, max_payload=self._max_payload, router=self._router)

    async def connect(self) -> None:
        """There is nothing to connect."""

    def inbox(self) -> str:
        return self._inbox

    async def publish(
        self, subject: str, data: bytes, *, reply: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        if self._is_closed or headers is not None or len(data) > self._max_payload:
            self._check(data, headers)
        self._router.route(Message(subject, data, reply, headers, self.name, self.identity))

    async def send(
        self, subject: str, data: bytes, *, reply: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        if self._is_closed or headers is not None or len(data) > self._max_payload:
            self._check(data, headers)
        message = Message(subject, data, reply, headers, self.name, self.identity)
        if not self._router.route(message) and reply is not None:
            self._router.route(Message(reply, signal=self._router.without_listeners(subject)))

    async def subscribe(self, subject: str, receive: Receive, *, queue: str | None = None) -> MemorySubscription:
        noting = self.replies.noting(subject, receive)
        listener = Listener(subject, noting, queue, self)
        self._router.add(listener)
        self._listeners.add(listener)
        return MemorySubscription(self, listener)

    async def close(self) -> None:
        self._is_closed = True
        for listener in list(self._listeners):
            self._forget(listener)

    def _check(self, data: bytes, headers: Mapping[str, str] | None) -> None:
        if self._is_closed:
            raise DisconnectedError
        size = len(data) + sum(len(key) + len(text) for key, text in (headers or {}).items())
        if size > self._max_payload:
            raise PayloadTooLargeError(size, self._max_payload)

    def _forget(self, listener: Listener) -> None:
        self._router.remove(listener)
        self._listeners.discard(listener)


class MemorySubscription:
    """Nothing is ever on the way in memory, so draining is ending."""

    def __init__(self, transport: MemoryTransport, listener: Listener) -> None:
        self._transport = transport
        self._listener = listener

    async def close(self, *, drain: bool = False) -> None:
        del drain
        self._transport._forget(self._listener)
