"""Opens a transport from an address: `nats://…`, `ws://…`, or a registered scheme."""

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

FIRST_PATIENCE: Final = 10.0  # seconds for a transport without a connect timeout


class AddressOptions(msgspec.Struct, frozen=True):
    """Options for opening an address; a transport uses those that apply to it."""

    name: str | None = None
    token: str | None = None
    identities: Mapping[str, Identity] | Identify | None = None
    insecure: bool = False


class OpenAddress(Protocol):
    """Creates a transport for an address; `options` are passed to its client library."""

    def __call__(self, address: str, asked: AddressOptions, /, **options: Any) -> Transport: ...


def _open_nats(address: str, asked: AddressOptions, /, **options: Any) -> Transport:
    # An address with a user brings its own password; the token is meant for another server.
    if asked.token is not None and "@" not in address:
        options.setdefault("token", asked.token)
    return NATSTransport(
        address.split(","), name=asked.name, identities=asked.identities, insecure=asked.insecure, **options
    )


def _open_websocket(address: str, asked: AddressOptions, /, **options: Any) -> Transport:
    return WebSocketTransport(address, token=asked.token, **options)


Schemes: TypeAlias = dict[str, OpenAddress]

# Register a custom transport with `SCHEMES["redis"] = open_redis` to open `redis://…`.
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
    """Create a transport for `nats://…` (several separated by commas) or a hub's `ws://…`; it connects on first use."""
    opener = SCHEMES.get(address.partition("://")[0])
    if opener is None:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise CallError("VALIDATION_ERROR", f"{address!r} is not an address of peers: use one of {known}")
    return opener(address, AddressOptions(name, token, identities, insecure), **options)


@asynccontextmanager
async def reached(address: str, **options: Any) -> AsyncIterator[Transport]:
    """Return a connected transport for a command; raise CallError at once if it is unreachable or rejects the user."""
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
        raise CallError("UNAVAILABLE", f"{address_name(address)} is unreachable or refuses the connection") from None
