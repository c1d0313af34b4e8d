"""One suite for every transport: whatever carries a call, it means the same."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.calls.networks import PEERS, Network, shop
from tests.waiting import PATIENCE, until

from enfold import CallError, Context, OperationRegistry, ResponseEnvelope, http_envelope, mcp_envelope, to_wire
from enfold.calls import PendingRequestMap
from enfold.calls.caller.peers import find_peers
from enfold.calls.protocol.settings import NEVER, CallSettings, WorkerLimits
from enfold.sources.calls import CallOperations, Discovery, from_calls
from enfold.sources.options import Selection
from enfold.surfaces.calls import Serving, serve_calls


@pytest.fixture
async def serving(network: Network) -> AsyncIterator[Serving]:
    async with serve_calls(shop(), network.peer("worker")) as serving:
        yield serving


@pytest.fixture
async def alice(network: Network, serving: Serving) -> AsyncIterator[PendingRequestMap]:
    async with PendingRequestMap(network.peer("alice")) as pending:
        yield pending


@pytest.fixture
async def imported(network: Network, serving: Serving) -> AsyncIterator[CallOperations]:
    async with from_calls(network.peer("alice")) as operations:
        yield operations


@pytest.fixture
def registry(imported: CallOperations) -> OperationRegistry:
    """What a user has: the other process's operations in a registry of their own."""
    ops = OperationRegistry()
    ops.register_all(imported)
    return ops


# --- calls --------------------------------------------------------------------------------------------------------


async def test_a_call_gives_the_result_in_the_callee_s_envelope(registry: OperationRegistry) -> None:
    envelope = await registry.execute("shop.add", {"x": 1, "y": 2})
    assert (envelope.data, to_wire(envelope)["meta"]["operationId"]) == (3, "shop.add")


async def test_a_def_runs_in_the_callee_s_threads(registry: OperationRegistry) -> None:
    assert (await registry.execute("shop.add_in_thread", {"x": 1, "y": 2})).data == 3


async def test_many_calls_at_once_get_each_its_own_answer(alice: PendingRequestMap) -> None:
    answers = await asyncio.gather(*(alice.call("shop.add", {"x": number, "y": 1}) for number in range(300)))
    assert [answer.data for answer in answers] == list(range(1, 301))
    assert len(alice) == 0


async def test_a_wrong_argument_is_reported_by_name(alice: PendingRequestMap) -> None:
    with pytest.raises(CallError) as raised:
        await alice.call("shop.add", {"x": 1})
    expected = {"argument": "y", "reason": "missing", "expected": "integer"}
    assert (raised.value.code, raised.value.details) == ("VALIDATION_ERROR", expected)


async def test_an_exception_of_the_handler_comes_as_a_sentence(alice: PendingRequestMap) -> None:
    with pytest.raises(CallError) as raised:
        await alice.call("shop.fail", {"message": "out of stock"})
    assert (raised.value.code, raised.value.message) == ("EXECUTION_ERROR", "out of stock")


async def test_an_operation_that_was_never_offered_is_not_found_at_once(alice: PendingRequestMap) -> None:
    with pytest.raises(CallError) as raised:
        await alice.call("shop.nothing", {})
    assert (raised.value.code, raised.value.details["reason"]) in {
        ("OPERATION_NOT_FOUND", "no_responders"),
        ("ACCESS_DENIED", "not_allowed"),  # a server that knows all operations does not even let us ask
    }


async def test_a_call_of_a_subscription_says_so(alice: PendingRequestMap) -> None:
    items = [envelope.data async for envelope in alice.subscribe("shop.count", {"to": 3})]
    assert items == [0, 1, 2]
    with pytest.raises(CallError) as raised:
        [envelope async for envelope in alice.subscribe("shop.add", {"x": 1, "y": 2})]
    assert raised.value.code == "INVALID_OPERATION_TYPE"


ENVELOPES: dict[str, ResponseEnvelope[Any]] = {
    "http bytes": http_envelope(b"\x00\xff" * 100, status_code=206, headers={"X-A": "1"}, content_type="image/png"),
    "http json": http_envelope({"a": [1, None]}, headers={"content-type": "application/json"}),
    "http event": http_envelope({"n": 1}, content_type="text/event-stream", event_type="tick", last_event_id="7"),
    "mcp": mcp_envelope({"ok": True}, content=[{"type": "text", "text": "hi"}], structured_content={"ok": True}),
    "mcp error": mcp_envelope([], is_error=True, content=[{"type": "text", "text": "no"}], _meta={"a": 1}),
}


@pytest.mark.parametrize("name", ENVELOPES)
async def test_every_kind_of_envelope_crosses_unchanged(network: Network, name: str) -> None:
    ops = OperationRegistry("shop")

    @ops.query
    async def echo(value: Any = None) -> Any:
        return ENVELOPES[name]

    async with serve_calls(ops, network.peer("worker")), PendingRequestMap(network.peer("alice")) as alice:
        assert await alice.call("shop.echo", {}) == ENVELOPES[name]


async def test_warnings_travel_beside_the_result_once(network: Network) -> None:
    ops = OperationRegistry("shop")

    @ops.query
    async def echo() -> dict[str, int]:
        return {"a": "word"}  # type: ignore[dict-item]  # a handler that breaks its promise

    async with serve_calls(ops, network.peer("worker")), from_calls(network.peer("alice")) as operations:
        mine = OperationRegistry()
        mine.register_all(operations)
        warnings = (await mine.execute("shop.echo", {})).warnings
        assert [(warning.code, warning.path) for warning in warnings] == [("type_mismatch", "/a")]


async def test_the_worker_alone_validates_the_input(registry: OperationRegistry, alice: PendingRequestMap) -> None:
    wrong = {"x": "one"}
    with pytest.raises(CallError) as by_worker:
        await alice.call("shop.add", wrong)
    with pytest.raises(CallError) as through_edge:
        await registry.execute("shop.add", wrong)
    edge, worker = through_edge.value, by_worker.value
    assert (edge.code, edge.message) == ("VALIDATION_ERROR", worker.message)
    assert {name: edge.details[name] for name in worker.details} == worker.details


async def test_a_stream_s_input_is_validated_by_its_worker(registry: OperationRegistry) -> None:
    with pytest.raises(CallError) as raised:
        [envelope async for envelope in registry.subscribe("shop.count", {"to": "many"})]
    assert (raised.value.code, raised.value.details["argument"]) == ("VALIDATION_ERROR", "to")


async def test_a_result_is_checked_against_the_schema_of_the_worker_that_made_it(network: Network) -> None:
    """During a rolling update two versions run: a result of the other version reaches the caller as it was sent."""
    ops = OperationRegistry("shop")

    @ops.query
    async def echo() -> dict[str, int]:
        return {"stock": 3}

    async with serve_calls(ops, network.peer("worker")), from_calls(network.peer("alice")) as operations:
        mine = OperationRegistry()
        mine.register_all(
            [each.replace(spec=each.spec.replace(output_schema={"type": "string"})) for each in operations]
        )
        envelope = await mine.execute("shop.echo", {})
    assert (envelope.data, envelope.warnings) == ({"stock": 3}, ())


# --- identity -----------------------------------------------------------------------------------------------------


async def test_the_callee_sees_the_peer_and_not_whom_the_caller_names(network: Network) -> None:
    ops = OperationRegistry("shop")

    @ops.query
    async def echo(context: Context) -> str | None:
        return None if context.identity is None else context.identity.id

    async with serve_calls(ops, network.peer("worker")), PendingRequestMap(network.peer("bob")) as bob:
        claimed = Context(identity=PEERS["alice"])
        assert (await bob.call("shop.echo", {}, claimed)).data == "bob"


async def test_an_operation_is_run_only_for_those_who_may(network: Network, serving: Serving) -> None:
    async with PendingRequestMap(network.peer("alice")) as alice, PendingRequestMap(network.peer("bob")) as bob:
        assert (await alice.call("shop.pay", {"amount": 5})).data == 5
        with pytest.raises(CallError) as raised:
            await bob.call("shop.pay", {"amount": 5})
        # The broker's own permissions refuse; a worker says no more than of an operation that is not there.
        assert raised.value.code == ("ACCESS_DENIED" if network.name == "nats" else "OPERATION_NOT_FOUND")


async def test_discovery_shows_a_caller_only_what_he_may_call(network: Network, serving: Serving) -> None:
    async with from_calls(network.peer("alice")) as for_alice, from_calls(network.peer("bob")) as for_bob:
        shown = {operation.spec.id for operation in for_alice} - {operation.spec.id for operation in for_bob}
        assert shown == {"shop.pay"}


async def test_the_id_a_surface_got_from_outside_travels_as_the_parent(network: Network) -> None:
    ops = OperationRegistry("shop")

    @ops.query
    async def echo(context: Context) -> list[str | None]:
        return [context.request_id, context.parent_request_id]

    async with serve_calls(ops, network.peer("worker")), PendingRequestMap(network.peer("alice")) as alice:
        own, parent = (await alice.call("shop.echo", {}, Context(request_id="from-outside"))).data
    assert parent == "from-outside"
    assert own != parent


# --- time ---------------------------------------------------------------------------------------------------------


async def test_a_call_ends_in_its_time(alice: PendingRequestMap) -> None:
    with pytest.raises(CallError) as raised:
        await alice.call("shop.wait", {"seconds": 1_000}, timeout=0.2)
    assert raised.value.code == "TIMEOUT"


async def test_a_long_call_is_kept_alive_by_heartbeats(network: Network) -> None:
    settings = CallSettings(silence=1.5, heartbeat=0.1)
    async with (
        serve_calls(shop(), network.peer("worker"), settings=settings),
        PendingRequestMap(network.peer("alice"), settings=settings) as alice,
    ):
        assert (await alice.call("shop.wait", {"seconds": 2.0})).data == "done"


async def test_a_deadline_is_accepted_in_place_of_a_remaining_time(alice: PendingRequestMap) -> None:
    with pytest.raises(CallError) as raised:
        await alice.call("shop.wait", {"seconds": 30}, deadline=time.time() * 1000 + 200)
    assert raised.value.code == "TIMEOUT"


async def test_a_call_without_time_is_not_even_sent(alice: PendingRequestMap, serving: Serving) -> None:
    with pytest.raises(CallError) as raised:
        await alice.call("shop.add", {"x": 1, "y": 2}, timeout=0)
    assert (raised.value.code, serving.handler.counts.received) == ("TIMEOUT", 0)


async def test_giving_up_stops_the_handler(network: Network) -> None:
    ops = OperationRegistry("shop")
    begun, stopped = asyncio.Event(), asyncio.Event()

    @ops.query
    async def wait() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with serve_calls(ops, network.peer("worker")), PendingRequestMap(network.peer("alice")) as alice:
        call = asyncio.create_task(alice.call("shop.wait", {}))
        await asyncio.wait_for(begun.wait(), PATIENCE)
        call.cancel()
        await asyncio.wait_for(stopped.wait(), PATIENCE)
    assert call.cancelled()


async def test_a_handler_that_will_not_be_cancelled_does_not_hold_its_caller(network: Network) -> None:
    ops = OperationRegistry("shop")
    free = asyncio.Event()

    @ops.query
    async def wait() -> None:
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                continue

    async with serve_calls(ops, network.peer("worker")), PendingRequestMap(network.peer("alice")) as alice:
        with pytest.raises(CallError) as raised:
            await asyncio.wait_for(alice.call("shop.wait", {}, timeout=0.2), PATIENCE)
        free.set()
    assert raised.value.code == "TIMEOUT"


async def test_a_handler_that_cancels_itself_ends_nothing_else(network: Network) -> None:
    ops = shop()
    ops.unregister("shop.fail")

    @ops.query
    async def fail() -> None:
        raise asyncio.CancelledError

    async with serve_calls(ops, network.peer("worker")), PendingRequestMap(network.peer("alice")) as alice:
        for _ in range(3):
            with pytest.raises(CallError) as raised:
                await alice.call("shop.fail", {}, timeout=2)
            assert raised.value.code == "EXECUTION_ERROR"
        assert (await alice.call("shop.add", {"x": 1, "y": 2})).data == 3


# --- load ---------------------------------------------------------------------------------------------------------


async def test_calls_over_the_limit_are_refused_immediately(network: Network) -> None:
    limits = WorkerLimits(running=8, waiting=8)
    async with (
        serve_calls(shop(), network.peer("worker"), limits=limits),
        PendingRequestMap(network.peer("alice"), retry=NEVER) as alice,
    ):
        calls = [alice.call("shop.wait_once", {"seconds": 0.1}) for _ in range(160)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    done = [outcome for outcome in outcomes if isinstance(outcome, ResponseEnvelope)]
    refused = [outcome.code for outcome in outcomes if isinstance(outcome, CallError)]
    assert (len(done), set(refused), len(refused)) == (16, {"RESOURCE_EXHAUSTED"}, 144)


async def test_one_peer_cannot_take_all_slots(network: Network) -> None:
    async with (
        serve_calls(shop(), network.peer("worker"), limits=WorkerLimits(per_peer=2)) as serving,
        PendingRequestMap(network.peer("alice"), retry=NEVER) as alice,
        PendingRequestMap(network.peer("bob"), retry=NEVER) as bob,
    ):
        greedy = [asyncio.create_task(alice.call("shop.wait", {"seconds": 30})) for _ in range(5)]
        await until(lambda: sum(task.done() for task in greedy) == 3)
        assert serving.handler.running == 2
        assert (await bob.call("shop.add", {"x": 1, "y": 2})).data == 3
        refused = [task.exception() for task in greedy if task.done()]
        assert [getattr(error, "code", None) for error in refused] == ["RESOURCE_EXHAUSTED"] * 3
        for task in greedy:
            task.cancel()


@pytest.mark.parametrize("operation", ["shop.echo", "shop.large"])
async def test_a_message_that_is_too_large_is_refused_and_other_calls_continue(
    network: Network, alice: PendingRequestMap, serving: Serving, operation: str
) -> None:
    limit = (network.peer("bob")).capabilities.max_payload
    others = [asyncio.create_task(alice.call("shop.wait", {"seconds": 0.2})) for _ in range(20)]
    await until(lambda: serving.handler.running == 20)
    arguments = {"size": limit} if operation == "shop.large" else {"value": "x" * limit}
    with pytest.raises(CallError) as raised:
        await alice.call(operation, arguments)
    assert raised.value.code == "PAYLOAD_TOO_LARGE"
    assert [answer.data for answer in await asyncio.gather(*others)] == ["done"] * 20


@pytest.mark.parametrize("operation", ["shop.wait", "shop.count"])
async def test_a_failure_with_very_large_details_is_shortened(network: Network, operation: str) -> None:
    ops = OperationRegistry("shop")

    @ops.query
    async def wait() -> None:
        await asyncio.sleep(0)
        raise CallError("SOLD_OUT", "none left", {"more": "x" * 2_000_000})

    @ops.subscription
    async def count() -> AsyncIterator[int]:
        yield 1
        raise CallError("SOLD_OUT", "none left", {"more": "x" * 2_000_000})

    async with serve_calls(ops, network.peer("worker")), PendingRequestMap(network.peer("alice"), retry=NEVER) as alice:
        asked = (
            alice.call("shop.wait", {}) if operation == "shop.wait" else _take(alice.subscribe("shop.count", {}), [])
        )
        with pytest.raises(CallError) as raised:
            await asyncio.wait_for(asked, PATIENCE)
    assert (raised.value.code, raised.value.message, raised.value.details) == ("SOLD_OUT", "none left", {})


HALF = "\ud800"  # an unpaired surrogate, as in file names that are not valid text
UNWRITABLE = {
    "sentence": (lambda: ValueError(f"no {HALF}"), "EXECUTION_ERROR", "no ?"),
    "own sentence and details": (lambda: CallError("GONE", f"no {HALF}", {HALF: [HALF]}), "GONE", "no ?"),
    "code": (lambda: CallError(HALF, "no"), "?", "no"),
    "endless": (lambda: CallError("X" * 2_000_000, "x" * 2_000_000), "X" * 128, "x" * 2_000),
}


@pytest.mark.parametrize(("fault", "code", "message"), UNWRITABLE.values(), ids=UNWRITABLE)
async def test_a_failure_that_cannot_be_serialized_reaches_its_caller_and_affects_no_other_call(
    wide_network: Network, fault: Callable[[], Exception], code: str, message: str
) -> None:
    ops = OperationRegistry("shop")

    @ops.query
    async def fail() -> None:
        raise fault()

    @ops.subscription
    async def count() -> AsyncIterator[int]:
        yield 1
        raise fault()

    @ops.query
    async def add() -> int:
        return 1

    worker, peer = wide_network.peer("worker"), wide_network.peer("alice")
    async with serve_calls(ops, worker), PendingRequestMap(peer, retry=NEVER) as alice:
        for asked in (alice.call("shop.fail", {}), _take(alice.subscribe("shop.count", {}), [])):
            with pytest.raises(CallError) as raised:
                await asyncio.wait_for(asked, PATIENCE)
            assert (raised.value.code, raised.value.message) == (code, message)
        assert (await alice.call("shop.add", {})).data == 1


async def test_a_worker_that_fails_to_accept_a_request_responds_with_an_error(network: Network) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("the keys are gone")

    async with (
        serve_calls(shop(), network.peer("worker"), verify=broken),
        PendingRequestMap(network.peer("alice"), retry=NEVER) as alice,
    ):
        for _ in range(2):
            with pytest.raises(CallError) as raised:
                await asyncio.wait_for(alice.call("shop.add", {"x": 1, "y": 2}), PATIENCE)
            assert (raised.value.code, "keys" in raised.value.message) == ("UNKNOWN_ERROR", False)


async def test_a_very_long_name_is_not_found_and_other_calls_continue(
    alice: PendingRequestMap, serving: Serving
) -> None:
    others = [asyncio.create_task(alice.call("shop.wait", {"seconds": 0.2})) for _ in range(5)]
    await until(lambda: serving.handler.running == 5)
    with pytest.raises(CallError) as raised:
        await alice.call(".".join(["x" * 64] * 100), {})
    assert raised.value.code == "OPERATION_NOT_FOUND"
    assert [answer.data for answer in await asyncio.gather(*others)] == ["done"] * 5


async def test_two_workers_share_the_work(network: Network) -> None:
    ops = [shop(), shop()]
    peers = ["worker", "worker" if network.name == "websocket" else "second"]
    async with (
        serve_calls(ops[0], network.peer(peers[0])) as one,
        serve_calls(ops[1], network.peer(peers[1])) as other,
        PendingRequestMap(network.peer("alice")) as alice,
    ):
        for _ in range(100):
            await alice.call("shop.add", {"x": 1, "y": 2})
        served = [serving.handler.operations["shop.add"].requests for serving in (one, other)]
    assert sum(served) == 100
    assert min(served) > 10


async def test_a_worker_that_stops_lets_its_calls_finish(network: Network) -> None:
    async with PendingRequestMap(network.peer("alice"), retry=NEVER) as alice:
        serving = await serve_calls(shop(), network.peer("worker"))
        await alice.call("shop.add", {"x": 1, "y": 2})
        calls = [asyncio.create_task(alice.call("shop.wait", {"seconds": 0.2})) for _ in range(20)]
        await until(lambda: serving.handler.running == 20)
        await serving.close()
        assert [answer.data for answer in await asyncio.gather(*calls)] == ["done"] * 20
        with pytest.raises(CallError) as raised:
            await alice.call("shop.add", {"x": 1, "y": 2})
        assert raised.value.code == "UNAVAILABLE"


# --- streams ------------------------------------------------------------------------------------------------------


async def test_a_stream_comes_complete_and_in_order(registry: OperationRegistry) -> None:
    assert [item.data async for item in registry.subscribe("shop.count", {"to": 3000})] == list(range(3000))


async def test_an_empty_stream_ends(alice: PendingRequestMap) -> None:
    assert [item async for item in alice.subscribe("shop.count", {"to": 0})] == []


async def test_a_stream_that_fails_gives_its_items_and_then_the_reason(alice: PendingRequestMap) -> None:
    items: list[int] = []
    with pytest.raises(CallError) as raised:
        await _take(alice.subscribe("shop.count_and_fail", {"to": 5}), items)
    assert (items, raised.value.code, raised.value.message) == ([0, 1, 2, 3, 4], "EXECUTION_ERROR", "no more")


@pytest.mark.parametrize("window", [1, 2, 16, 64])
async def test_a_producer_is_never_further_ahead_than_the_window(network: Network, window: int) -> None:
    ops = OperationRegistry("shop")
    produced = 0

    @ops.subscription
    async def count() -> AsyncIterator[int]:
        nonlocal produced
        for number in range(300):
            produced = number + 1
            yield number

    consumed = ahead = 0
    async with serve_calls(ops, network.peer("worker")), PendingRequestMap(network.peer("alice")) as alice:
        async for _ in alice.subscribe("shop.count", {}, window=window):
            consumed += 1
            if consumed % 50 == 0:
                await asyncio.sleep(0.01)  # let the producer run as far ahead as it will
            ahead = max(ahead, produced - consumed)
    assert (consumed, ahead <= window) == (300, True)


async def test_large_items_do_not_pile_up_nor_stall(alice: PendingRequestMap) -> None:
    items = [item async for item in alice.subscribe("shop.large_items", {"to": 60, "size": 200_000})]
    assert len(items) == 60


async def test_leaving_a_stream_stops_its_producer(network: Network) -> None:
    ops = OperationRegistry("shop")
    stopped = asyncio.Event()

    @ops.subscription
    async def count() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            stopped.set()

    async with serve_calls(ops, network.peer("worker")) as serving, PendingRequestMap(network.peer("alice")) as alice:
        stream = alice.subscribe("shop.count", {})
        await anext(stream)
        await stream.aclose()
        await asyncio.wait_for(stopped.wait(), PATIENCE)
        assert serving.handler.running == 0


async def test_a_slow_consumer_is_waited_for(network: Network) -> None:
    settings = CallSettings(silence=1.5, heartbeat=0.05, window=2)
    async with (
        serve_calls(shop(), network.peer("worker"), settings=settings),
        PendingRequestMap(network.peer("alice"), settings=settings) as alice,
    ):
        items = []
        async for item in alice.subscribe("shop.count", {"to": 6}):
            items.append(item.data)
            await asyncio.sleep(0.4)
    assert items == [0, 1, 2, 3, 4, 5]


async def test_a_quiet_stream_stays_open(network: Network) -> None:
    settings = CallSettings(silence=1.5, heartbeat=0.05)
    async with (
        serve_calls(shop(), network.peer("worker"), settings=settings),
        PendingRequestMap(network.peer("alice"), settings=settings) as alice,
    ):
        assert len([item async for item in alice.subscribe("shop.count", {"to": 2, "pause": 2.0})]) == 2


async def test_a_subscription_may_last_longer_than_it_may_be_idle(network: Network) -> None:
    async with (
        serve_calls(shop(), network.peer("worker")),
        PendingRequestMap(network.peer("alice")) as alice,
        from_calls(network.peer("bob"), timeout=2.0) as operations,
    ):
        asked = {"to": 6, "pause": 0.5}
        assert len([item async for item in alice.subscribe("shop.count", asked, timeout=2.0)]) == 6
        mine = OperationRegistry()
        mine.register_all(operations)
        assert mine.get_spec("shop.count").timeout is None
        assert mine.get_spec("shop.add").timeout == 2.0
        assert len([item async for item in mine.subscribe("shop.count", asked)]) == 6


async def test_a_subscription_that_is_idle_for_too_long_ends(network: Network) -> None:
    async with (
        serve_calls(shop(), network.peer("worker")) as serving,
        PendingRequestMap(network.peer("alice")) as alice,
    ):
        items: list[Any] = []
        with pytest.raises(CallError) as raised:
            await _take(alice.subscribe("shop.count", {"to": 2, "pause": 30.0}, timeout=0.2), items)
        assert (raised.value.code, raised.value.details) == ("TIMEOUT", {"reason": "idle"})
        await until(lambda: not serving.handler.running)


async def test_a_slow_consumer_does_not_count_as_idle(alice: PendingRequestMap) -> None:
    items = []
    async for item in alice.subscribe("shop.count", {"to": 3}, timeout=1.0):
        items.append(item.data)
        await asyncio.sleep(1.2)
    assert items == [0, 1, 2]


async def test_a_subscription_that_its_caller_aborts_ends_on_both_sides(network: Network) -> None:
    ops, ended = OperationRegistry("shop"), asyncio.Event()

    @ops.subscription
    async def count(context: Context) -> AsyncIterator[str]:
        try:
            while True:
                yield context.request_id
        finally:
            ended.set()

    async with (
        serve_calls(ops, network.peer("worker")),
        PendingRequestMap(network.peer("alice")) as alice,
        asyncio.timeout(PATIENCE),
    ):
        items = []
        async for item in alice.subscribe("shop.count", {}):
            items.append(item.data)
            if len(items) == 3:
                alice.abort(item.data)
        assert len(items) == 3
        await ended.wait()


async def test_ids_of_events_cross_both_ways(network: Network) -> None:
    ops = OperationRegistry("shop")

    @ops.subscription(resumable=True)
    async def count(context: Context) -> AsyncIterator[str | None]:
        context.event_id = "8"
        yield context.last_event_id

    async with serve_calls(ops, network.peer("worker")), from_calls(network.peer("alice")) as operations:
        mine = OperationRegistry()
        mine.register_all(operations)
        context = Context(last_event_id="7")
        items = [(item.data, context.event_id) async for item in mine.subscribe("shop.count", {}, context)]
    assert items == [("7", "8")]


# --- idempotency --------------------------------------------------------------------------------------------------


@pytest.fixture
async def counter(network: Network) -> AsyncIterator[list[int]]:
    """A worker whose effects can be counted."""
    ops = OperationRegistry("shop")
    effects: list[int] = []

    @ops.mutation
    async def pay(amount: int) -> int:
        effects.append(amount)
        await asyncio.sleep(0.05)
        return len(effects)

    async with serve_calls(ops, network.peer("worker")):
        yield effects


async def test_the_same_key_has_its_effect_once(network: Network, counter: list[int]) -> None:
    async with PendingRequestMap(network.peer("alice")) as alice:
        calls = [alice.call("shop.pay", {"amount": 5}, idempotency_key="k") for _ in range(10)]
        answers = await asyncio.gather(*calls)
    assert ({answer.data for answer in answers}, counter) == ({1}, [5])


async def test_the_same_key_with_another_input_is_refused(network: Network, counter: list[int]) -> None:
    async with PendingRequestMap(network.peer("alice")) as alice:
        await alice.call("shop.pay", {"amount": 5}, idempotency_key="k")
        with pytest.raises(CallError) as raised:
            await alice.call("shop.pay", {"amount": 6}, idempotency_key="k")
    assert (raised.value.code, counter) == ("VALIDATION_ERROR", [5])


# --- coming and going ---------------------------------------------------------------------------------------------


async def test_operations_come_and_go_with_their_worker(network: Network) -> None:
    ops, mine = OperationRegistry("shop"), OperationRegistry()
    ops.register(_add, name="add", type="query")
    async with (
        serve_calls(ops, network.peer("worker")) as serving,
        from_calls(network.peer("alice"), discovery=Discovery(patience=0.3)) as operations,
    ):
        operations.keep(mine)
        assert "shop.add" in mine
        ops.register(_add, name="echo", type="query")
        await until(lambda: "shop.echo" in mine)
        assert (await mine.execute("shop.echo", {"x": 1, "y": 2})).data == 3
        ops.unregister("shop.echo")
        await until(lambda: "shop.echo" not in mine)
        await serving.close()
        await until(lambda: operations.workers == [])
        assert [spec.id for spec in mine.list()] == ["shop.add"]
        with pytest.raises(CallError) as raised:
            await mine.execute("shop.add", {"x": 1, "y": 2})
        assert (raised.value.code, raised.value.details["reason"]) == ("UNAVAILABLE", "no_responders")
        async with serve_calls(ops, network.peer("second")):
            await until(lambda: operations.workers != [])
            assert (await mine.execute("shop.add", {"x": 1, "y": 2})).data == 3


async def test_an_offer_is_forgotten_an_hour_after_its_worker(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("caller.peers", "caller.pending", "transports.memory"):
        monkeypatch.setattr(f"enfold.calls.{module}.OFFER_REMEMBERED", 0.5)
    mine = OperationRegistry()
    async with from_calls(network.peer("alice"), discovery=Discovery(refresh=0.2, patience=0.2)) as operations:
        operations.keep(mine)
        async with serve_calls(shop(), network.peer("worker")):
            await until(lambda: "shop.add" in mine)
        await until(lambda: "shop.add" not in mine)
        with pytest.raises(CallError) as raised:
            await operations.pending.call("shop.add", {"x": 1, "y": 2})
        assert raised.value.code == "OPERATION_NOT_FOUND"


async def test_operations_of_register_all_stay_current(network: Network) -> None:
    ops, mine = OperationRegistry("shop"), OperationRegistry()
    ops.register(_add, name="add", type="query")
    async with (
        serve_calls(ops, network.peer("worker")),
        from_calls(network.peer("alice"), discovery=Discovery(patience=0.3)) as operations,
    ):
        mine.register_all(operations)
        ops.register(_add, name="echo", type="query")
        await until(lambda: "shop.echo" in mine)
        ops.unregister("shop.add")
        await until(lambda: "shop.add" not in mine)


async def test_an_existing_id_is_never_replaced(imported: CallOperations) -> None:
    mine = OperationRegistry("shop")
    mine.register(lambda: "mine", name="add")
    imported.keep(mine)
    assert (await mine.execute("shop.add", {})).data == "mine"
    assert "shop.echo" in mine


async def test_a_namespace_filters_and_names_are_the_user_s(network: Network, serving: Serving) -> None:
    selection = Selection(["shop.a*", "shop.echo"], ["*thread"], {"shop.echo": "shop.say"})
    async with from_calls(network.peer("alice"), namespace="far", selection=selection) as operations:
        mine = OperationRegistry()
        mine.register_all(operations)
        assert sorted(spec.id for spec in mine.list()) == ["far.shop.add", "far.shop.say"]
        assert (await mine.execute("far.shop.say", {"value": "hi"})).data == "hi"


async def test_an_operator_sees_who_serves_what(network: Network, alice: PendingRequestMap) -> None:
    await alice.call("shop.add", {"x": 1, "y": 2})
    with pytest.raises(CallError):
        await alice.call("shop.fail", {"message": "no"})
    peers = await find_peers(network.peer("operator"), patience=0.3)
    figures = {found.id: (found.requests, found.errors) for peer in peers for found in peer.operations}
    assert [peer.name for peer in peers] == ["worker"]
    assert (figures["shop.add"], figures["shop.fail"], figures["shop.echo"]) == ((1, 0), (1, 1), (0, 0))


async def _take(stream: AsyncIterator[ResponseEnvelope[Any]], items: list[Any]) -> None:
    async for item in stream:
        items.append(item.data)  # noqa: PERF401  # what came before a failure counts


async def _add(x: int, y: int) -> int:
    return x + y
