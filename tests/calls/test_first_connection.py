"""The first connection to NATS: an unreachable server and one that refuses the connection are reported apart and in time."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from tests.calls.networks import PASSWORD, free_port
from tests.waiting import PATIENCE

from enfold import CallError, Context
from enfold.calls import PendingRequestMap
from enfold.calls.nats import NATSTransport
from enfold.calls.protocol.connection import address_name
from enfold.calls.transports.addresses import open_transport


@pytest.fixture
def mute() -> Iterator[str]:
    """A server that accepts connections and sends nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"nats://127.0.0.1:{listener.getsockname()[1]}"


async def _failure(servers: str | list[str], **options: Any) -> CallError:
    transport = NATSTransport(servers, **options)
    with pytest.raises(CallError) as raised:
        await asyncio.wait_for(transport.connect(), PATIENCE)
    await transport.close()
    return raised.value


WRONG: dict[str, dict[str, Any]] = {
    "a wrong password": {"user": "alice", "password": "wrong"},
    "an unknown user": {"user": "unknown", "password": PASSWORD},
    "no credentials": {"name": "alice"},
    "a token where a password is wanted": {"token": "t", "name": "alice"},
}


@pytest.mark.parametrize("options", WRONG.values(), ids=WRONG)
async def test_a_server_that_rejects_the_credentials_is_reported_immediately(
    nats_url: str, options: dict[str, Any]
) -> None:
    error = await _failure(nats_url, connect_within=None, **options)
    assert (error.code, error.details) == ("ACCESS_DENIED", {"reason": "no_identity"})
    assert "check the user, password or token" in error.message


async def test_a_server_that_is_not_there_is_reported_in_time() -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    error = await _failure(f"nats://ann:{PASSWORD}@{nowhere}", connect_within=0.3)
    assert error.code == "UNAVAILABLE"
    assert error.message.startswith(f"NATS at nats://{nowhere} cannot be reached within 0.3 s: ")
    assert PASSWORD not in error.message


async def test_a_server_that_says_nothing_is_reported_in_time(mute: str) -> None:
    error = await _failure(mute, connect_within=0.3)
    assert (error.code, error.message) == ("UNAVAILABLE", f"NATS at {mute} cannot be reached within 0.3 s")


async def test_a_call_waits_for_the_connection_no_longer_than_for_its_result(mute: str) -> None:
    transport = NATSTransport(mute, connect_within=None)
    calls = PendingRequestMap(transport)
    try:
        for call in (calls.call("shop.add", {}, timeout=0.05), calls.call("shop.add", {}, Context(timeout=0.05))):
            with pytest.raises(CallError) as raised:
                await asyncio.wait_for(call, PATIENCE)
            assert (raised.value.code, raised.value.details) == ("TIMEOUT", {"started": False})
    finally:
        await calls.close()
        await transport.close()


async def test_a_server_without_tls_is_refused_where_tls_was_asked_for(nats_url: str) -> None:
    error = await _failure(nats_url.replace("nats://", "tls://"), user="alice", password=PASSWORD)
    assert (error.code, error.details) == ("ACCESS_DENIED", {"reason": "insecure"})


async def test_one_server_of_several_is_enough(nats_url: str) -> None:
    nowhere = f"nats://127.0.0.1:{free_port()}"
    async with NATSTransport([nowhere, nats_url], user="alice", password=PASSWORD) as transport:
        assert transport.client.is_connected


async def test_a_token_is_not_shown_to_a_server_whose_address_names_a_user(nats_url: str) -> None:
    address = nats_url.replace("//", f"//alice:{PASSWORD}@")
    transport = open_transport(address, token="the token of another server")
    await transport.connect()
    await transport.close()


async def test_a_client_can_wait_for_its_server(nats_url: str) -> None:
    nowhere = f"nats://127.0.0.1:{free_port()}"
    transport = NATSTransport(nowhere, connect_within=None)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(transport.connect(), 0.5)
    await transport.close()


async def test_a_call_without_a_connection_fails_with_the_reason() -> None:
    transport = NATSTransport(f"nats://127.0.0.1:{free_port()}", connect_within=0.2)
    pending = PendingRequestMap(transport)
    for _ in range(2):  # the second tries again
        with pytest.raises(CallError) as raised:
            await pending.call("shop.add", {"x": 1, "y": 2})
        assert (raised.value.code, "cannot be reached" in raised.value.message) == ("UNAVAILABLE", True)
    await pending.close()
    await transport.close()
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


SHOWN = {
    "nats://ann:p@ss/w@host:4222,nats://bob:x@other": "nats://host:4222, nats://other",
    "ann:secret@host:4222": "host:4222",
    "127.0.0.1:4222": "127.0.0.1:4222",
    "wss://hub.example.org/calls": "wss://hub.example.org/calls",
}


@pytest.mark.parametrize("address", SHOWN)
def test_an_address_is_shown_without_its_secrets(address: str) -> None:
    assert address_name(address) == SHOWN[address]


async def test_a_hub_that_is_not_there_is_reported_without_the_secrets_of_its_address() -> None:
    transport = open_transport(f"ws://ann:p@ss@127.0.0.1:{free_port()}")
    with pytest.raises(CallError) as raised:
        await transport.connect()
    await transport.close()
    assert raised.value.code == "UNAVAILABLE"
    assert "ss@" not in raised.value.message


async def test_nats_py_still_has_the_private_attributes_that_the_transport_uses(nats_url: str) -> None:
    async with NATSTransport(nats_url, user="alice", password=PASSWORD) as transport:
        client = transport.client
        subscription = await client.subscribe("_INBOX.alice.any")
        used = {
            "Client": (client, ("_server_info", "_send_unsubscribe", "_transport", "_pending", "_pending_data_size")),
            "Subscription": (subscription, ("_id",)),
            "the transport of a client": (getattr(client, "_transport", None), ("_io_writer",)),
        }
        missing = [
            f"{name}.{each}" for name, (owner, names) in used.items() for each in names if not hasattr(owner, each)
        ]
        assert missing == []
