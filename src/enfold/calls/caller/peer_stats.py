"""Running peers with counts and latencies, for `enfold peers`: asks by the STATS verb of NATS services."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from enfold.calls.protocol.subjects import SERVICES, new_boot
from enfold.calls.protocol.transport import Message, Transport

PATIENCE: Final = 1.0


class PeerOperation(msgspec.Struct, frozen=True):
    """One operation of a peer, and how it has been used."""

    id: str
    version: str
    requests: int
    errors: int
    average_ms: float


class RunningPeer(msgspec.Struct, frozen=True):
    """One worker that runs."""

    name: str
    boot: str
    service: str
    version: str
    started: str
    operations: tuple[PeerOperation, ...]


async def find_peers(transport: Transport, *, patience: float = PATIENCE) -> list[RunningPeer]:
    """All peers that answer within `patience` seconds."""
    await transport.connect()
    answers: dict[str, RunningPeer] = {}
    inbox = f"{transport.inbox()}.p-{new_boot()}"

    def receive(message: Message) -> None:
        peer = None if message.signal is not None else _peer(message.data)
        if peer is not None:
            answers[peer.boot] = peer

    subscription = await transport.subscribe(inbox, receive)
    try:
        await transport.publish(f"{SERVICES}.STATS", b"", reply=inbox)
        await asyncio.sleep(patience)
    finally:
        await subscription.close()
    return sorted(answers.values(), key=lambda peer: (peer.name, peer.boot))


class _EndpointStats(msgspec.Struct):
    metadata: dict[str, str] = {}
    num_requests: int = 0
    num_errors: int = 0
    average_processing_time: int = 0
    name: str = ""


class _ServiceStats(msgspec.Struct):
    name: str
    id: str
    version: str = ""
    started: str = ""
    metadata: dict[str, str] = {}
    endpoints: list[_EndpointStats] = []


def _peer(data: bytes) -> RunningPeer | None:
    """The peer an answer describes; another's service that follows the conventions is shown as well."""
    try:
        stats = msgspec.json.decode(data, type=_ServiceStats)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    operations = tuple(
        PeerOperation(
            endpoint.metadata.get("operation", endpoint.name),
            endpoint.metadata.get("version", ""),
            endpoint.num_requests,
            endpoint.num_errors,
            round(endpoint.average_processing_time / 1e6, 3),
        )
        for endpoint in stats.endpoints
    )
    name = stats.metadata.get("peer", stats.name)
    return RunningPeer(name, stats.id, stats.name, stats.version, stats.started, operations)
