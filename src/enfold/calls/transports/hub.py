"""The hub: a router that spokes reach by WebSocket, each under the name and with the grants of its token. No sockets here.

A spoke may call what it likes, as itself; the operation decides whether it may. It may offer what its token grants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from enfold.calls.protocol.subjects import WORKERS, is_token, lies_in, new_boot, operation_of, peer_name
from enfold.calls.protocol.transport import Message, Signal, TransportError
from enfold.calls.transports.frames import Frame, Op, read_frame, write_frame
from enfold.calls.transports.memory_bus import MAX_PAYLOAD, MemoryTransport
from enfold.calls.transports.router import Listener, Router
from enfold.errors import FormatError
from enfold.operation import Identity, with_hash

PEERS_SCOPE: Final = "enfold:peers"  # who has it may ask every worker how it is
MAX_BOOT: Final = 32
MAX_SUBSCRIPTIONS: Final = 10_000
MAX_SUBJECT: Final = 255  # in which the longest id fits; the router remembers subjects, and takes them apart


class Wire(Protocol):
    """The hub's end of a connection: it takes a frame at once, or raises a TransportError."""

    def write(self, frame: bytes) -> None: ...


class HubCounts(msgspec.Struct):
    """What the hub has dropped."""

    malformed: int = 0
    denied: int = 0
    undelivered: int = 0  # a spoke was too slow, or gone


class Hub:
    """The router of all spokes and of the hub's own peers."""

    def __init__(
        self, identity: Identity | None = None, *, max_payload: int = MAX_PAYLOAD, is_open: bool = False
    ) -> None:
        """An open hub asks for no tokens: everybody may offer anything there, and nobody has an identity."""
        self.is_open = is_open
        self.counts = HubCounts()
        self.max_payload = max_payload
        self.router = Router(in_process=False)
        self.transport = MemoryTransport(
            "hub", identity, max_payload=max_payload, router=self.router, vouches=not is_open
        )
        self.spokes: set[Spoke] = set()

    def attach(self, wire: Wire, identity: Identity | None, boot: str = "") -> Spoke:
        """Let a spoke in, and tell it its name; one without a token is named by its `boot`, which it keeps when it reconnects."""
        own = boot if is_token(boot) and len(boot) <= MAX_BOOT else new_boot()
        name = f"anonymous-{own}" if identity is None else peer_name(identity.id)
        if name == self.transport.name:  # which is not for others to have
            name = with_hash(name, name)
        spoke = Spoke(self, wire, name, identity)
        self.spokes.add(spoke)
        wire.write(write_frame(Frame(Op.HELLO, self.max_payload, name, peer=None if identity is None else name)))
        return spoke

    def connections_of(self, identity: Identity) -> int:
        """How many spokes an identity has."""
        return sum(spoke.identity is not None and spoke.identity.id == identity.id for spoke in self.spokes)

    def detach(self, spoke: Spoke) -> None:
        self.spokes.discard(spoke)
        spoke.leave()

    def give_back(self, message: Message) -> None:
        """Signal GONE to the caller of a request that could not be written to its worker."""
        if message.reply is not None and message.subject.startswith("op."):
            self.router.route(Message(message.reply, signal=Signal.GONE))


class Spoke:
    """One connected spoke: what it listens to, and what it may do."""

    def __init__(self, hub: Hub, wire: Wire, name: str, identity: Identity | None) -> None:
        self.name = name
        self.identity = identity
        self.may_offer = None if hub.is_open else _namespaces(identity)
        self.may_serve = self.may_offer is None or bool(self.may_offer)
        self.own = ("ctl.", f"op.{name}.")  # where it may speak as a caller
        self._hub = hub
        self._wire = wire
        self._listeners: dict[int, Listener] = {}

    def receive(self, data: Any) -> None:
        """Do what a frame asks for; what is no frame is counted and dropped."""
        try:
            frame, payload = read_frame(data)
        except FormatError:
            self._hub.counts.malformed += 1
            return
        op = frame.op
        if op is Op.SEND or op is Op.PUBLISH:
            self._carry(frame, payload)
        elif op is Op.SUBSCRIBE:
            self._subscribe(frame)
        elif op is Op.UNSUBSCRIBE:
            self._unsubscribe(frame)
        else:
            self._hub.counts.malformed += 1

    def leave(self) -> None:
        for listener in self._listeners.values():
            self._hub.router.remove(listener)
        self._listeners.clear()

    # what a frame asks for

    def _carry(self, frame: Frame, payload: bytes) -> None:
        subject, reply, router = frame.subject, frame.reply, self._hub.router
        if not may_speak(self, subject) or len(reply or "") > MAX_SUBJECT:
            self._hub.counts.denied += 1
            self._write(Frame(Op.DENIED, subject=subject))
            return
        message = Message(subject, payload, reply, frame.headers, self.name, self.identity, None, self.may_offer)
        if not router.route(message) and frame.op is Op.SEND and reply is not None:
            self._write(_nobody(reply, router.without_listeners(subject)))

    def _subscribe(self, frame: Frame) -> None:
        reason = why_not_listen(self, frame.subject, frame.reply, self._hub.router)
        if frame.id in self._listeners or len(self._listeners) >= MAX_SUBSCRIPTIONS:
            reason = "there are too many subscriptions, or this one twice"
        if reason is not None:
            self._hub.counts.denied += 1
            self._write(Frame(Op.REFUSED, frame.id, reason))
            return
        listener = Listener(frame.subject, self._delivering(frame.id), frame.reply, self)
        self._listeners[frame.id] = listener
        self._hub.router.add(listener)
        self._write(Frame(Op.OK, frame.id))

    def _unsubscribe(self, frame: Frame) -> None:
        listener = self._listeners.pop(frame.id, None)
        if listener is not None:
            self._hub.router.remove(listener)
        self._write(Frame(Op.OK, frame.id))

    # carrying

    def _delivering(self, number: int) -> Callable[[Message], None]:
        def deliver(message: Message) -> None:
            if message.signal is not None:
                self._write(_nobody(message.subject, message.signal))
            elif not self._write(_carrying(number, message), message.data):
                self._hub.give_back(message)

        return deliver

    def _write(self, frame: Frame, data: bytes = b"") -> bool:
        try:
            self._wire.write(write_frame(frame, data))
        except TransportError:
            self._hub.counts.undelivered += 1
            return False
        return True


def _nobody(reply: str, signal: Signal) -> Frame:
    return Frame(Op.GONE if signal is Signal.GONE else Op.NOBODY, subject=reply)


def _carrying(number: int, message: Message) -> Frame:
    """The frame of a message: of a request with the identity of its caller, of another with what its sender may offer."""
    subject = message.subject
    headers = None if message.headers is None else dict(message.headers)
    if subject.startswith("op."):
        return Frame(Op.MESSAGE, number, subject, headers, message.reply, message.peer, message.identity)
    return Frame(Op.MESSAGE, number, subject, headers, message.reply, message.peer, None, message.may_offer)


# --- what a spoke may do ------------------------------------------------------------------------------------------


def may_speak(spoke: Spoke, subject: str) -> bool:
    """Whether it may publish there: as itself, to workers that know it, and, if it serves, to those who called."""
    if "*" in subject or ">" in subject or len(subject) > MAX_SUBJECT:
        return False
    if subject.startswith(spoke.own):
        return True
    if subject.startswith("_INBOX."):
        return spoke.may_serve
    if subject.startswith("$SRV."):
        return spoke.identity is not None and PEERS_SCOPE in spoke.identity.scopes
    return subject == f"evt._enfold.{spoke.name}"


def why_not_listen(spoke: Spoke, subject: str, queue: str | None, router: Router) -> str | None:
    """Why a spoke may not listen there; None where it may."""
    if len(subject) > MAX_SUBJECT or len(queue or "") > MAX_SUBJECT:
        return f"a subject has at most {MAX_SUBJECT} letters"
    if not subject.startswith("op."):
        return None if queue is None and _is_own(spoke, subject) else "this is not yours to listen to"
    if not spoke.may_serve or not subject.startswith("op.*."):
        return "your token grants no namespace to offer"
    operation_id = operation_of(subject)
    if subject == "op.*._enfold.peers" and queue is None:
        return None
    if queue != WORKERS or not all(is_token(token) for token in operation_id.split(".")):
        return "this is no operation"
    if not lies_in(operation_id, spoke.may_offer):
        return f"your token does not grant to offer {operation_id}"
    if any(not _is_same(spoke, listener.owner) for listener in router.listeners(subject)):
        return f"{operation_id} is there already"
    return None


def _is_own(spoke: Spoke, subject: str) -> bool:
    above, _, _ = subject.rpartition(".")
    if "*" in above or ">" in above:
        return False  # nobody needs it, and each such token would double the ways to look for listeners
    if subject.startswith(f"_INBOX.{spoke.name}."):
        return True
    if not spoke.may_serve:
        return subject == "evt._enfold.*"
    return subject.startswith((f"ctl.{spoke.name}.", "$SRV.")) or subject == "evt._enfold.*"


def _namespaces(identity: Identity | None) -> tuple[str, ...]:
    """The namespaces a token lets its spoke offer: resources like `{"namespace:shop": ["offer"]}`."""
    prefix = "namespace:"
    resources = ((identity and identity.resources) or {}).items()
    found = (key.removeprefix(prefix) for key, actions in resources if key.startswith(prefix) and "offer" in actions)
    return tuple(found)


def _is_same(spoke: Spoke, owner: object) -> bool:
    """Whether it is another process of the same service: these share the work."""
    return isinstance(owner, Spoke) and owner.identity == spoke.identity
