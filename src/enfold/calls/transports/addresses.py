"""Opens a transport from an address: `nats://…`, `ws://…`, or a scheme of one's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from enfold.calls.protocol.connection import address_name
from enfold.calls.protocol.transport import DeniedError, Transport, TransportError
from enfold.calls.transports.nats import Identify, NATSTransport
from enfold.calls.transports.websocket import WebSocketTransport
from enfold.errors import CallError
from enfold.operations import Identity

FIRST_PATIENCE: Final = 10.0  # seconds for a transport that does not give up by itself


class AddressOptions(msgspec.Struct, frozen=True):
    """Options beside an address; a transport uses those that concern it."""

    name: str | None = None
    token: str | None = None
    identities: Mapping[str, Identity] | Identify | None = None
    insecure: bool = False


class OpenAddress(Protocol):
    """Makes a transport of an address; `options` are those of the transport's own client library."""

    def __call__(self, address: str, asked: AddressOptions, /, **options: Any) -> Transport: ...


def _open_nats(address: str, asked: AddressOptions, /, **options: Any) -> Transport:
    # Who names a user in the address shows that user's password; a token is for another server, and not to be shown to this one.
    if asked.token is not None and "@" not in address:
        options.setdefault("token", asked.token)
    return NATSTransport(
        address.split(","), name=asked.name, identities=asked.identities, insecure=asked.insecure, **options
    )


def _open_websocket(address: str, asked: AddressOptions, /, **options: Any) -> Transport:
    return WebSocketTransport(address, token=asked.token, **options)


Schemes: TypeAlias = dict[str, OpenAddress]

# Open for more: a transport of one's own is `SCHEMES["redis"] = open_redis`, and then `redis://…` is an address.
SCHEMES: Final[Schemes] = {"nats": _open_nats, "tls": _open_nats, "ws": _open_websocket, "wss": _open_websocket}


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
    opener = SCHEMES.get(address.partition("://")[0])
    if opener is None:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise CallError("VALIDATION_ERROR", f"{address!r} is no address of peers: use one of {known}")
    return opener(address, AddressOptions(name, token, identities, insecure), **options)


@asynccontextmanager
async def reached(address: str, **options: Any) -> AsyncIterator[Transport]:
    """A connected transport for a command, whose user is told at once where it cannot be reached or refuses them."""
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
        raise CallError("UNAVAILABLE", f"{address_name(address)} cannot be reached, or does not let us in") from None
