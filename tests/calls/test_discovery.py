"""Discovery: what callers ask workers, which workers they ask, and which responses they accept."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest
from tests.waiting import until

from enfold import OperationRegistry
from enfold.calls.caller.peers import Discovery
from enfold.calls.memory import MemoryTransport
from enfold.calls.protocol.events import Announcement, DiscoveryRequest, WorkerListing, specs_digest
from enfold.calls.protocol.transport import Message, announcement_subject, discovery_subject
from enfold.operations import OperationSpec
from enfold.sources.calls import from_calls
from enfold.surfaces.calls import serve_calls

RARELY = Discovery(refresh=60, patience=0.2)


def bank(*names: str) -> OperationRegistry:
    ops = OperationRegistry("bank")
    for name in names or ("pay",):
        ops.register(_pay, name=name, type="query")
    return ops


async def _pay(amount: int) -> int:
    return amount


class Questions:
    """Counts what callers ask: all workers at once, single workers, and single workers for their whole list."""

    def __init__(self) -> None:
        self.to_all = 0
        self.to_one: list[str] = []
        self.for_lists: list[str] = []

    async def listen(self, bus: MemoryTransport, *workers: str) -> None:
        spy = bus.join("spy")
        await spy.subscribe(discovery_subject("*"), self._note)
        for worker in workers:
            await spy.subscribe(discovery_subject("*", worker), self._note)

    def _note(self, message: Message) -> None:
        worker = message.subject.removeprefix(discovery_subject("caller")).removeprefix(".")
        if not worker:
            self.to_all += 1
        elif msgspec.json.decode(message.data, type=DiscoveryRequest).wants_list:
            self.for_lists.append(worker)
        else:
            self.to_one.append(worker)


async def test_workers_with_the_same_operations_send_their_list_once() -> None:
    bus, questions = MemoryTransport("bus"), Questions()
    names = [f"worker-{number}" for number in range(10)]
    await questions.listen(bus, *names)
    async with AsyncExitStack() as stack:
        for name in names:
            await stack.enter_async_context(serve_calls(bank(), bus.join(name)))
        operations = await stack.enter_async_context(from_calls(bus.join("caller"), discovery=RARELY))
        assert len(operations.workers) == 10
        assert [operation.spec.id for operation in operations] == ["bank.pay"]
        assert len(questions.for_lists) == 1


async def test_a_change_is_asked_of_its_worker_alone() -> None:
    bus, questions = MemoryTransport("bus"), Questions()
    await questions.listen(bus, "first", "second")
    ops = bank()
    async with (
        serve_calls(bank(), bus.join("first")),
        from_calls(bus.join("caller"), discovery=RARELY) as operations,
    ):
        async with serve_calls(ops, bus.join("second")):
            await until(lambda: len(operations.workers) == 2)
            ops.register(_pay, name="refund", type="query")
            await until(lambda: {each.spec.id for each in operations} == {"bank.pay", "bank.refund"})
        await until(lambda: [each.worker for each in operations.workers] == ["first"])
    assert questions.to_all == 1
    assert set(questions.to_one) == {"second"}
    assert questions.for_lists == ["first", "second"]


async def test_a_replica_that_replaces_another_changes_no_operation() -> None:
    bus = MemoryTransport("bus")
    async with serve_calls(bank(), bus.join("first")), from_calls(bus.join("caller"), discovery=RARELY) as operations:
        changes: list[int] = []
        operations.watch(lambda: changes.append(len(operations)))
        async with serve_calls(bank(), bus.join("second")):
            await until(lambda: len(operations.workers) == 2)
        await until(lambda: len(operations.workers) == 1)
        async with serve_calls(bank("refund"), bus.join("third")):
            await until(lambda: len(operations) == 2)
    assert changes[0] == 2


async def test_a_worker_cannot_announce_the_end_of_another() -> None:
    bus = MemoryTransport("bus")
    mallory = bus.join("mallory")
    async with serve_calls(bank(), bus.join("first")), from_calls(bus.join("caller"), discovery=RARELY) as operations:
        [first] = operations.workers
        forged = msgspec.json.encode(Announcement("first", first.boot, "down"))
        await mallory.publish(announcement_subject("mallory"), forged)
        async with serve_calls(bank("refund"), bus.join("second")):  # announced later, so the forgery has been read
            await until(lambda: len(operations) == 2)
        assert "first" in [each.worker for each in operations.workers]


# --- workers that die, or lie -------------------------------------------------------------------------------------


class Scripted:
    """A peer that answers questions with what it was given: `digests` if asked for digests, `lists` if asked for lists."""

    def __init__(
        self, bus: MemoryTransport, name: str, digests: list[WorkerListing], lists: list[WorkerListing]
    ) -> None:
        self.digests = digests
        self.lists = lists
        self._transport = bus.join(name)
        self._sending: set[asyncio.Future[None]] = set()

    async def start(self) -> None:
        for subject in (discovery_subject("*"), discovery_subject("*", self._transport.name)):
            await self._transport.subscribe(subject, self._answer)

    def _answer(self, message: Message) -> None:
        asked = msgspec.json.decode(message.data, type=DiscoveryRequest)
        for answer in self.lists if asked.wants_list else self.digests:
            if asked.boot in ("", answer.boot):
                sent = self._transport.publish(message.reply or "", msgspec.json.encode(answer))
                self._sending.add(asyncio.ensure_future(sent))


def shop_wire(name: str) -> dict[str, Any]:
    return OperationSpec(namespace="shop", name=name).to_dict()


def part(number: int, of: int, *names: str, boot: str = "boot", digest: str = "d") -> WorkerListing:
    return WorkerListing("mallory", boot, digest, part=number, parts=of, specs=[shop_wire(name) for name in names])


async def test_a_worker_that_dies_silently_is_dropped_after_two_rounds() -> None:
    bus = MemoryTransport("bus")
    worker = Scripted(bus, "mallory", [WorkerListing("mallory", "boot", "d")], [part(0, 1, "add")])
    await worker.start()
    async with from_calls(bus.join("caller"), discovery=Discovery(refresh=0.05, patience=0.05)) as operations:
        await until(lambda: [each.worker for each in operations.workers] == ["mallory"])
        worker.digests = []
        await until(lambda: operations.workers == [])


HOSTILE: dict[str, list[WorkerListing]] = {
    "operations without end": [part(n, 1_000, *(f"a{n}-{each}" for each in range(20))) for n in range(20)],
    "a list that never ends": [part(n, 10**9, f"a{n}") for n in range(50)],
    "processes without end": [part(0, 1, "a", boot=f"boot{n}") for n in range(50)],
    "lists that change": [part(0, 2, "a", digest=f"d{n}") for n in range(50)],
    "long texts": [
        WorkerListing(
            "mallory", "boot", "d", part=n, parts=90, specs=[{**shop_wire(f"a{n}"), "description": "x" * 20_000}]
        )
        for n in range(20)
    ],
}


@pytest.mark.parametrize("lists", HOSTILE.values(), ids=HOSTILE)
async def test_one_peer_cannot_make_a_caller_keep_lists_without_end(lists: list[WorkerListing]) -> None:
    bus = MemoryTransport("bus")
    digests = [WorkerListing("mallory", each.boot, each.digest) for each in lists]
    await Scripted(bus, "mallory", digests, lists).start()
    discovery = Discovery(refresh=60, patience=0.1, workers=4, operations=100, size=100_000)
    async with (
        serve_calls(bank(), bus.join("honest")),
        from_calls(bus.join("caller"), discovery=discovery) as operations,
    ):
        found = [operation.spec.id for operation in operations]
        assert "bank.pay" in found
        assert len(found) <= discovery.operations
        assert len(operations.workers) <= discovery.workers + 1


async def test_a_list_that_was_not_asked_for_is_ignored() -> None:
    bus = MemoryTransport("bus")
    await Scripted(bus, "mallory", [part(0, 1, "add")], []).start()
    async with (
        serve_calls(bank(), bus.join("honest")),
        from_calls(bus.join("caller"), discovery=RARELY) as operations,
    ):
        assert [each.worker for each in operations.workers] == ["honest"]


async def test_a_worker_that_claims_the_list_of_another_cannot_replace_it() -> None:
    bus = MemoryTransport("bus")
    digest = specs_digest(bank().list())
    await Scripted(
        bus, "mallory", [WorkerListing("mallory", "boot", digest)], [part(0, 1, "add", digest=digest)]
    ).start()
    async with (
        serve_calls(bank(), bus.join("honest")),
        from_calls(bus.join("caller"), discovery=RARELY) as operations,
    ):
        assert "bank.pay" in [operation.spec.id for operation in operations]


@pytest.mark.parametrize("is_late", [False, True], ids=["at the start", "later"])
async def test_an_operation_whose_id_becomes_too_long_is_skipped_and_the_others_are_imported(is_late: bool) -> None:
    bus, ops = MemoryTransport("worker"), bank()
    if not is_late:
        ops.register(_pay, name="deep", namespace="a.b.c.d.e", type="query")
    async with serve_calls(ops, bus), from_calls(bus.join("caller"), namespace="up", discovery=RARELY) as imported:
        if is_late:
            ops.register(_pay, name="deep", namespace="a.b.c.d.e", type="query")
        ops.register(_pay, name="last", type="query")
        await until(lambda: [operation.spec.id for operation in imported] == ["up.bank.pay", "up.bank.last"])
        assert [problem.where for problem in imported.skipped] == ["a.b.c.d.e.deep"]


async def test_a_watcher_that_fails_does_not_end_discovery() -> None:
    bus, ops = MemoryTransport("worker"), bank()

    def fail() -> None:
        raise RuntimeError("not this one")

    async with serve_calls(ops, bus), from_calls(bus.join("caller"), discovery=RARELY) as imported:
        imported.watch(fail)
        for name in ("second", "third"):
            ops.register(_pay, name=name, type="query")
            await until(lambda: len(imported) == len(ops))
