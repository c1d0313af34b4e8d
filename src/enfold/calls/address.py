"""A transport from an address: one process, a hub or many machines differ by one word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enfold.calls.nats import Identify, NATSTransport
from enfold.calls.transport import Transport
from enfold.calls.websocket import WebSocketTransport
from enfold.errors import CallError
from enfold.operation import Identity

__all__ = ["open_transport"]


def open_transport(
    address: str,
    *,
    name: str | None = None,
    token: str | None = None,
    identities: Mapping[str, Identity] | Identify | None = None,
    insecure: bool = False,
    **options: Any,
) -> Transport:
    """`nats://…` (several with commas), or `ws://…` and `wss://…` of a hub; it connects when it is first used."""
    scheme = address.partition("://")[0]
    if scheme in ("nats", "tls"):
        if token is not None:
            options.setdefault("token", token)
        return NATSTransport(address.split(","), name=name, identities=identities, insecure=insecure, **options)
    if scheme in ("ws", "wss"):
        return WebSocketTransport(address, token=token, **options)
    raise CallError("VALIDATION_ERROR", f"{address!r} is no address of peers: use nats://, ws:// or wss://")
