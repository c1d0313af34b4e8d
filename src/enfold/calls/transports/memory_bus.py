"""The transport of one process: messages go straight from sender to listener, on the event loop of both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from enfold.calls.protocol.subjects import inbox_of, new_boot, peer_name
from enfold.calls.protocol.transport import (
    Capabilities,
    DisconnectedError,
    Message,
    PayloadTooLargeError,
    Receive,
    ReplyAddresses,
    reads_values,
)
from enfold.calls.transports.router import Listener, Router
from enfold.operation import Identity

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
            in_process=self._router.in_process,
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
        if self._router.needs_text:
            data = bytes(data)
        message = Message(subject, data, reply, headers, self.name, self.identity)
        if not self._router.route(message) and reply is not None:
            self._router.route(Message(reply, signal=self._router.without_listeners(subject)))

    async def subscribe(self, subject: str, receive: Receive, *, queue: str | None = None) -> MemorySubscription:
        noting = self.replies.noting(subject, receive)
        listener = Listener(subject, noting, queue, self, reads_values(receive))
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
