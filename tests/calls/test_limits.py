"""Limits per caller: slots, keys, connections and lists are counted for each caller, and an attacker reaches the limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.calls.networks import PASSWORD, PEERS, Network, Server, shop
from tests.waiting import PATIENCE, until
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from enfold import CallError, Identity, OperationRegistry, ResponseEnvelope, local_envelope
from enfold.auth.tokens import Tokens
from enfold.calls import PendingRequestMap
from enfold.calls.memory import MemoryTransport
from enfold.calls.nats import NATSIdempotencyStore, NATSTransport
from enfold.calls.protocol.settings import NEVER, WorkerLimits
from enfold.calls.transports.nats_streams import NATSUser, make_stream, nats_permissions
from enfold.calls.websocket import WebSocketHub, WebSocketTransport
from enfold.calls.worker.nats_idempotency_store import idempotency_streams
from enfold.middleware.idempotency_store import MemoryIdempotencyStore
from enfold.operations import OperationSpec
from enfold.operations.idempotency import EntryKey, KeyedCall, Run
from enfold.operations.outcomes import envelope_of
from enfold.surfaces.calls import serve_calls

# --- slots --------------------------------------------------------------------------------------------------------


async def test_a_caller_who_takes_all_slots_leaves_some_to_others(network: Network) -> None:
    limits = WorkerLimits(running=8, waiting=8, per_peer=6)
    async with (
        serve_calls(shop(), network.peer("worker"), limits=limits) as serving,
        PendingRequestMap(network.peer("mallory"), retry=NEVER) as mallory,
        PendingRequestMap(network.peer("alice"), retry=NEVER) as alice,
    ):
        flood = [asyncio.create_task(mallory.call("shop.wait", {"seconds": 30})) for _ in range(100)]
        await until(lambda: sum((task.done() for task in flood)) >= 94)
        refused = [task.exception() for task in flood if task.done()]
        assert {error.code for error in refused if isinstance(error, CallError)} == {"RESOURCE_EXHAUSTED"}
        assert (len(refused), serving.handler.counts.shed) == (94, 94)
        assert (await alice.call("shop.wait", {"seconds": 0.01})).data == "done"
        assert (await alice.call("shop.add", {"x": 1, "y": 2})).data == 3
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)


async def test_two_connections_of_one_identity_share_its_slots() -> None:
    bus, ann = MemoryTransport("bus", Identity("hub")), Identity("ann")
    async with (
        serve_calls(shop(), bus, limits=WorkerLimits(per_peer=1)),
        PendingRequestMap(bus.join("one", ann), retry=NEVER) as one,
        PendingRequestMap(bus.join("two", ann), retry=NEVER) as two,
    ):
        running = asyncio.create_task(one.call("shop.wait", {"seconds": 0.2}))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with pytest.raises(CallError) as raised:
            await two.call("shop.wait", {"seconds": 0})
        assert raised.value.code == "RESOURCE_EXHAUSTED"
        assert (await running).data == "done"


async def test_a_stream_that_has_ended_takes_no_slot(network: Network) -> None:
    limits = WorkerLimits(per_peer=4)
    async with (
        serve_calls(shop(), network.peer("worker"), limits=limits) as serving,
        PendingRequestMap(network.peer("alice"), retry=NEVER) as alice,
    ):
        for _ in range(20):
            assert len([item async for item in alice.subscribe("shop.count", {"to": 2})]) == 2
        assert (serving.handler.counts.shed, serving.handler.running) == (0, 0)


# --- idempotency keys ---------------------------------------------------------------------------------------------


async def test_a_call_that_runs_on_under_its_key_keeps_its_slot(network: Network) -> None:
    ops, begun, go_on = shop(), asyncio.Event(), asyncio.Event()
    ops.unregister("shop.wait_once")

    @ops.mutation
    async def wait_once() -> str:
        begun.set()
        await go_on.wait()
        return "done"

    async with (
        serve_calls(ops, network.peer("worker"), limits=WorkerLimits(running=1, waiting=0)) as serving,
        PendingRequestMap(network.peer("alice"), retry=NEVER) as alice,
    ):
        leaving = asyncio.create_task(alice.call("shop.wait_once", {}, idempotency_key="k"))
        await asyncio.wait_for(begun.wait(), 20)
        leaving.cancel()
        await asyncio.wait({leaving})
        with pytest.raises(CallError) as raised:
            await alice.call("shop.add", {"x": 1, "y": 2})
        assert raised.value.code == "RESOURCE_EXHAUSTED"
        go_on.set()
        await until(lambda: not serving.handler.running)
        assert (await alice.call("shop.wait_once", {}, idempotency_key="k")).data == "done"


def _key(owner: str, key: str) -> EntryKey:
    return EntryKey((owner, None), "shop.pay", key)


def _call(key: EntryKey, run: Run, seconds: float) -> KeyedCall:
    return KeyedCall(key, "digest", run, time.monotonic() + seconds)


class _Effects:
    """Counts how often something really happened."""

    def __init__(self, data: Any = None) -> None:
        self.count = 0
        self._data = data

    async def __call__(self) -> ResponseEnvelope[Any]:
        self.count += 1
        return local_envelope(self.count if self._data is None else self._data, "shop.pay")


async def test_one_identity_s_keys_do_not_push_out_another_s() -> None:
    store, effects = MemoryIdempotencyStore(), _Effects()
    first = envelope_of(await store.run_once(_call(_key("ann", "k"), effects, 5)))
    refused = 0
    for number in range(10_050):
        try:
            await store.run_once(_call(_key("mallory", str(number)), effects, 5))
        except CallError as error:
            assert (error.code, error.details["reason"]) == ("RESOURCE_EXHAUSTED", "idempotency_keys")  # noqa: PT017
            refused += 1
    assert refused == 50
    assert envelope_of(await store.run_once(_call(_key("ann", "k"), effects, 5))).data == first.data
    assert envelope_of(await store.run_once(_call(_key("mallory", "0"), effects, 5))).data == 2


async def test_large_results_push_out_only_their_own() -> None:
    store = MemoryIdempotencyStore(bytes_per_identity=10_000)
    first, large = _Effects(), _Effects("x" * 4_000)
    await store.run_once(_call(_key("ann", "k"), first, 5))
    for number in range(10):
        await store.run_once(_call(_key("mallory", str(number)), large, 5))
    await store.run_once(_call(_key("ann", "k"), first, 5))
    await store.run_once(_call(_key("mallory", "0"), large, 5))
    assert (first.count, large.count) == (1, 11)


async def test_a_key_is_forgotten_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    store, effects, later = MemoryIdempotencyStore(keep=60, per_identity=1), _Effects(), time.monotonic() + 61
    await store.run_once(_call(_key("ann", "k"), effects, 5))
    with pytest.raises(CallError):
        await store.run_once(_call(_key("ann", "other"), effects, 5))
    monkeypatch.setattr(time, "monotonic", lambda: later)
    await store.run_once(_call(_key("bob", "k"), effects, 5))
    await store.run_once(_call(_key("ann", "k"), effects, 5))
    assert effects.count == 3


async def test_a_repeat_waits_for_the_first_no_longer_than_its_own_time() -> None:
    store, begun, go_on = MemoryIdempotencyStore(), asyncio.Event(), asyncio.Event()

    async def slow() -> ResponseEnvelope[Any]:
        begun.set()
        await go_on.wait()
        return local_envelope(1, "shop.pay")

    first = asyncio.create_task(store.run_once(_call(_key("ann", "k"), slow, 5)))
    await asyncio.wait_for(begun.wait(), PATIENCE)
    with pytest.raises(CallError) as raised:
        await store.run_once(_call(_key("ann", "k"), slow, 0.02))
    assert raised.value.code == "TIMEOUT"
    repeat = asyncio.create_task(store.run_once(_call(_key("ann", "k"), slow, 5)))
    await asyncio.sleep(0)
    go_on.set()
    assert envelope_of(await first).data == envelope_of(await repeat).data == 1


@pytest.mark.parametrize(("code", "runs"), [("SOLD_OUT", 1), ("UNAVAILABLE", 2)], ids=["final", "for now"])
async def test_only_errors_that_are_final_are_kept(code: str, runs: int) -> None:
    store, ran = MemoryIdempotencyStore(), 0

    async def fail() -> ResponseEnvelope[Any]:
        nonlocal ran
        ran += 1
        raise CallError(code, "no")

    for _ in range(2):
        with pytest.raises(CallError) as raised:
            await store.run_once(_call(_key("ann", "k"), fail, 5))
        assert raised.value.code == code
    assert ran == runs


def _paying() -> tuple[OperationRegistry, list[int]]:
    ops = OperationRegistry("shop")
    effects: list[int] = []

    @ops.mutation
    async def pay(amount: int) -> int:
        effects.append(amount)
        return len(effects)

    return ops, effects


async def test_the_same_key_of_two_identities_is_two_keys(network: Network) -> None:
    ops, effects = _paying()
    ops.register(ops.get_handler("shop.pay"), name="add", type="mutation")  # which everybody may call
    async with (
        serve_calls(ops, network.peer("worker")),
        PendingRequestMap(network.peer("alice")) as alice,
        PendingRequestMap(network.peer("bob")) as bob,
    ):
        for caller in (alice, bob, alice, bob):
            await caller.call("shop.add", {"amount": 5}, idempotency_key="k")
    assert effects == [5, 5]


async def test_without_identities_all_share_one_space_of_keys() -> None:
    ops, effects = _paying()
    bus = MemoryTransport("bus")
    async with (
        serve_calls(ops, bus),
        PendingRequestMap(bus.join("one")) as one,
        PendingRequestMap(bus.join("two")) as two,
    ):
        answers = [await caller.call("shop.pay", {"amount": 5}, idempotency_key="k") for caller in (one, two)]
    assert ([answer.data for answer in answers], effects) == ([1, 1], [5])


async def test_an_anonymous_caller_beside_identities_may_not_use_keys() -> None:
    ops, effects = _paying()
    bus = MemoryTransport("bus", Identity("worker"))
    async with serve_calls(ops, bus), PendingRequestMap(bus.join("one")) as one:
        with pytest.raises(CallError) as raised:
            await one.call("shop.pay", {"amount": 5}, idempotency_key="k")
        assert (raised.value.code, effects) == ("ACCESS_DENIED", [])


async def test_a_key_without_end_is_refused() -> None:
    ops, effects = _paying()
    bus = MemoryTransport("bus")
    async with serve_calls(ops, bus), PendingRequestMap(bus.join("one")) as one:
        with pytest.raises(CallError) as raised:
            await one.call("shop.pay", {"amount": 5}, idempotency_key="k" * 257)
        assert (raised.value.code, raised.value.details["argument"]) == ("VALIDATION_ERROR", "idempotencyKey")
    assert effects == []


@pytest.fixture
async def stores(nats_program: str, tmp_path: Path) -> AsyncIterator[dict[str, NATSIdempotencyStore]]:
    """The stores of two workers, of which the server lets each serve its own namespace."""
    specs = [OperationSpec(namespace=namespace, name="pay") for namespace in ("shop", "bank")]
    users = [NATSUser(Identity(name), (name,), password=PASSWORD) for name in ("shop", "bank")]
    users.append(NATSUser(Identity("operator"), is_operator=True, password=PASSWORD))
    config = f'jetstream {{ store_dir: "{tmp_path / "store"}" }}\n{nats_permissions(specs, users, shards=3)}'
    server = Server(nats_program, tmp_path, config)
    server.wait_until_ready()
    transports = {
        name: NATSTransport(server.url, user=name, password=PASSWORD) for name in ("shop", "bank", "operator")
    }
    await transports["operator"].connect()
    client = transports["operator"].client
    jetstream = client.jetstream()
    for stream in await idempotency_streams(jetstream, 3600, None, shards=3):
        await make_stream(client, jetstream, stream)
    yield {name: NATSIdempotencyStore(transport, per_identity=3) for name, transport in transports.items()}
    for transport in transports.values():
        await transport.close()
    server.close()


async def test_on_nats_only_who_serves_an_operation_writes_its_first_results(
    stores: dict[str, NATSIdempotencyStore],
) -> None:
    key = EntryKey(("ann", None), "bank.pay", "k")
    forged, true = _Effects("forged"), _Effects("true")
    with pytest.raises(CallError) as raised:
        await stores["shop"].run_once(_call(key, forged, 1.5))
    assert (raised.value.code, forged.count) == ("UNAVAILABLE", 0)
    for _ in range(2):
        assert envelope_of(await stores["bank"].run_once(_call(key, true, 5))).data == "true"
    with pytest.raises(CallError):  # nor does it read them
        await stores["shop"].run_once(_call(key, forged, 1.5))
    assert (forged.count, true.count) == (0, 1)


async def test_on_nats_the_keys_of_an_identity_are_limited(stores: dict[str, NATSIdempotencyStore]) -> None:
    effects = _Effects()
    for number in range(3):
        await stores["shop"].run_once(_call(_key("mallory", str(number)), effects, 5))
    with pytest.raises(CallError) as raised:
        await stores["shop"].run_once(_call(_key("mallory", "one more"), effects, 5))
    assert (raised.value.code, raised.value.details["reason"]) == ("RESOURCE_EXHAUSTED", "idempotency_keys")
    assert envelope_of(await stores["shop"].run_once(_call(_key("mallory", "0"), effects, 5))).data == 1
    assert envelope_of(await stores["shop"].run_once(_call(_key("ann", "k"), effects, 5))).data == 4


# --- connections of a hub -----------------------------------------------------------------------------------------


async def test_the_connections_of_a_token_are_limited_and_others_still_connect() -> None:
    async with WebSocketHub(Tokens(PEERS), per_token=3) as hub:
        await hub.listen()
        url = f"ws://127.0.0.1:{hub.port}"
        mallory = [WebSocketTransport(url, token="mallory") for _ in range(20)]
        outcomes = await asyncio.gather(*(client.connect() for client in mallory), return_exceptions=True)
        refused = [outcome for outcome in outcomes if isinstance(outcome, CallError)]
        assert len(refused) == 17
        assert {error.code for error in refused} <= {"RESOURCE_EXHAUSTED", "UNAVAILABLE"}
        async with WebSocketTransport(url, token="alice"):
            assert hub.hub.connections_of(PEERS["mallory"]) == 3
        with pytest.raises(InvalidStatus) as raised:
            await connect(url, additional_headers={"Authorization": "Bearer mallory"})
        assert raised.value.response.status_code == 429
        for client in mallory:
            await client.close()
        await until(lambda: not hub.hub.clients)
        async with WebSocketTransport(url, token="mallory"):
            pass


async def test_the_connections_of_an_open_hub_are_limited() -> None:
    async with WebSocketHub(connections=2) as hub:
        await hub.listen()
        url = f"ws://127.0.0.1:{hub.port}"
        async with WebSocketTransport(url), WebSocketTransport(url):
            with pytest.raises(CallError) as raised:
                await WebSocketTransport(url).connect()
            assert raised.value.code == "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize(("value", "code"), [("x" * 2_000_000, "PAYLOAD_TOO_LARGE"), ("\ud800", "EXECUTION_ERROR")])
async def test_a_result_that_cannot_be_sent_is_a_failure_for_observers_too(value: str, code: str) -> None:
    ops, seen, bus = OperationRegistry("shop"), [], MemoryTransport("bus")

    @ops.query
    async def give() -> str:
        return value

    ops.observe(lambda record: seen.append((record.surface, record.code)))
    async with serve_calls(ops, bus) as serving, PendingRequestMap(bus.join("caller")) as caller:
        with pytest.raises(CallError) as raised:
            await caller.call("shop.give", {})
        await until(lambda: seen != [])
    assert raised.value.code == code
    assert seen == [("calls", code)]
    assert serving.handler.operations["shop.give"].errors == 1
