"""A transport from an address: one process, a hub or many machines differ by one word."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from enfold.calls.nats import Identify, NATSTransport
from enfold.calls.transport import DeniedError, Transport, TransportError
from enfold.calls.websocket import WebSocketTransport
from enfold.errors import CallError
from enfold.operation import Identity

__all__ = ["open_transport", "reached"]

FIRST_PATIENCE: Final = 5.0  # seconds for the first connection; later ones are tried for as long as it takes


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


@asynccontextmanager
async def reached(address: str, **options: Any) -> AsyncIterator[Transport]:
    """A connected transport for a command, whose user is told at once where it cannot be reached or refuses him."""
    transport = open_transport(address, **options)
    try:
        await _connect(transport, address)
        yield transport
    except DeniedError as error:
        raise CallError("ACCESS_DENIED", str(error)) from None
    except TransportError as error:
        raise CallError("UNAVAILABLE", str(error)) from None
    finally:
        await transport.close()


async def _connect(transport: Transport, address: str) -> None:
    try:
        async with asyncio.timeout(FIRST_PATIENCE):
            await transport.connect()
    except TimeoutError:
        places = ", ".join(_without_secrets(place) for place in address.split(","))
        raise CallError("UNAVAILABLE", f"{places} cannot be reached, or does not let us in") from None


def _without_secrets(address: str) -> str:
    scheme, _, rest = address.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
